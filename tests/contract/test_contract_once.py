"""Appends that say who they are: stored once, and a later one hears of the first."""

from backend.testing.engine_contract.once import *  # noqa: F403 - the published tests
