"""Secured installations: their certificates and files, and the checks of both."""
