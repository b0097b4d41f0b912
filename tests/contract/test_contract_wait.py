"""Waiting for data: woken at once, False at the deadline, never after a cancel, never forgotten."""

from backend.testing.engine_contract.wait import *  # noqa: F403 - the published tests
