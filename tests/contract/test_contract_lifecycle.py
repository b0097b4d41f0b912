"""Health, draining and closing."""

from backend.testing.engine_contract.lifecycle import *  # noqa: F403 - the published tests
