"""Answers about the processes of a server, their clients and their configuration."""
