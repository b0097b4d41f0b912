"""Settings: a small durable map, and being told of changes."""

from backend.testing.engine_contract.settings import *  # noqa: F403 - the published tests
