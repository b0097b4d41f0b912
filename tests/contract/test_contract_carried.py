"""Records in short: what they carry is what the whole record says."""

from backend.testing.engine_contract.carried import *  # noqa: F403 - the published tests
