"""Finding by time, key and message id; the store's clock."""

from backend.testing.engine_contract.find import *  # noqa: F403 - the published tests
