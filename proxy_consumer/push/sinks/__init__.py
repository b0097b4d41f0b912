"""Sinks of pushed messages: HTTP, Redis, files; connections.py bounds what a receiver may send."""
