"""What is still there after an engine was closed and opened again, without draining."""

from backend.testing.engine_contract.lasting import *  # noqa: F403 - the published tests
