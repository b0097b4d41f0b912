"""Reading: statuses, limits, and where to go on."""

from backend.testing.engine_contract.read import *  # noqa: F403 - the published tests
