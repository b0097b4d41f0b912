"""The settings and certificates that decide who may connect to the ports of a server."""
