"""Commits: all or nothing, fenced by epoch and generation, and the progress that they leave."""

from backend.testing.engine_contract.commit import *  # noqa: F403 - the published tests
