"""A due time relative to the record's own store time: exact, however late the store gets to it."""

from backend.testing.engine_contract.due import *  # noqa: F403 - the published tests
