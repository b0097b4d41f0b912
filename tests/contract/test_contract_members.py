"""Joining a group: each queue has one holder, each grant a higher epoch, older ones are fenced."""

from backend.testing.engine_contract.members import *  # noqa: F403 - the published tests
