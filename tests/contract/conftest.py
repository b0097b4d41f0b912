"""Every contract test runs once per engine; one of what lasts, once per engine that keeps what it stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.testing import Engine
from backend.testing.fixtures import kit, lasting  # noqa: F401 - for every test here
from tests.contract.contract_engines import BROKERS, ENGINES, PERSISTENT

ENGINE = "backend_engine"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if ENGINE in metafunc.fixturenames:
        names = PERSISTENT if "lasting" in metafunc.fixturenames else list(ENGINES)
        metafunc.parametrize(ENGINE, _params(names), indirect=True)


def _params(names: list[str]) -> list[object]:
    return [
        pytest.param(name, marks=(pytest.mark.slow, pytest.mark.kafka)) if name in BROKERS else name
        for name in names
    ]


@pytest.fixture
def backend_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = ENGINES[request.param](tmp_path)
    yield engine
    engine.close()
