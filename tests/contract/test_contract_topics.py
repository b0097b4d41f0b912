"""Topics: creating, changing, deleting, and what a new incarnation means."""

from backend.testing.engine_contract.topics import *  # noqa: F403 - the published tests
