"""Every contract test runs once per engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.contract_engines import BROKERS, ENGINES, PERSISTENT
from tests.contract.contract_kit import Kit


def _params(names: list[str]) -> list[object]:
    return [
        pytest.param(name, marks=(pytest.mark.slow, pytest.mark.kafka)) if name in BROKERS else name
        for name in names
    ]


@pytest.fixture(params=_params(list(ENGINES)))
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    yield from _kit(request, tmp_path)


@pytest.fixture(params=_params(PERSISTENT))
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """Only engines that keep what they stored."""
    yield from _kit(request, tmp_path)


def _kit(request: pytest.FixtureRequest, directory: Path) -> Iterator[Kit]:
    engine = ENGINES[request.param](directory)
    yield Kit(engine)
    engine.close()
