"""Where a pushed message ends: HTTP, Redis, files; connections.py bounds what a receiver may send."""
