"""Queues shared among the members of a group: who gets which, and how they change hands."""

from backend.testing.engine_contract.sharing import *  # noqa: F403 - the published tests
