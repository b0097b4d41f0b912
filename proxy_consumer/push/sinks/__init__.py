"""Sinks of pushed messages: HTTP, Redis, files; connections.py limits what a receiver may send."""
