"""Every contract test runs once per engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_engines import ENGINES, PERSISTENT
from contract_kit import Kit


@pytest.fixture(params=list(ENGINES))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    yield from _kit(request.param, tmp_path)


@pytest.fixture(params=PERSISTENT)
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """Only engines that keep what they stored."""
    yield from _kit(request.param, tmp_path)


def _kit(name: str, directory: Path) -> Iterator[Kit]:
    engine = ENGINES[name](directory)
    yield Kit(engine)
    engine.close()
