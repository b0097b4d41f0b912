"""Where a pushed message ends: HTTP, Redis, files; receiving.py bounds what a receiver sends."""
