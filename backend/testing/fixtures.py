"""The fixtures of the contract's tests. A suite provides `backend_engine`, the Engine under test."""

from __future__ import annotations

import pytest

from backend.testing.kit import Engine, Kit


@pytest.fixture
def kit(request: pytest.FixtureRequest, backend_engine: Engine) -> Kit:
    """The engine under test; skips what it says that it cannot keep."""
    return _kit_of(request, backend_engine)


@pytest.fixture
def lasting(request: pytest.FixtureRequest, backend_engine: Engine) -> Kit:
    """The same, for tests of what is there again after a restart."""
    if not backend_engine.persists:
        pytest.skip("the engine keeps nothing over a restart (Engine.persists)")
    return _kit_of(request, backend_engine)


def _kit_of(request: pytest.FixtureRequest, engine: Engine) -> Kit:
    reason = engine.not_kept.get(request.node.originalname)
    if reason is not None:
        pytest.skip(reason)
    return Kit(engine)
