"""The fixtures of the tests of sends that are stored once; tests with a `server` of their own have theirs."""

from once_kit import client, key, server, topic

__all__ = ["client", "key", "server", "topic"]
