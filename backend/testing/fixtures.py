"""The fixtures of the contract's tests. A suite provides `backend_engine`, the Engine under test."""

from __future__ import annotations

import pytest

from backend.testing.kit import Engine, Kit


@pytest.fixture
def kit(request: pytest.FixtureRequest, backend_engine: Engine) -> Kit:
    """Return the engine under test; skip the tests in its `skipped_tests`."""
    return _kit_of(request, backend_engine)


@pytest.fixture
def lasting(request: pytest.FixtureRequest, backend_engine: Engine) -> Kit:
    """Return the engine for tests that restart it; skip them for an engine that does not persist."""
    if not backend_engine.persists:
        # A third party's engine may be one in memory: its suite says so, and names what it does not test.
        pytest.skip("the engine keeps nothing over a restart (Engine.persists)")
    return _kit_of(request, backend_engine)


def _kit_of(request: pytest.FixtureRequest, engine: Engine) -> Kit:
    reason = engine.skipped_tests.get(request.node.originalname)
    if reason is not None:
        pytest.skip(reason)
    return Kit(engine)
