"""Appending: order, a status per record, and that what is stored comes back whole."""

from backend.testing.engine_contract.append import *  # noqa: F403 - the published tests
