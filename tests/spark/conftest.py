"""One Spark session for all of them: small, on two cores, gone when the run ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.few_rows import small_session

PATIENCE_S = 900  # a Spark session and a first job take a minute, and several on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test here that names no limit of its own has a longer one than others."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this test run; leave its settings as they are."""
    session = small_session("tests")
    yield session
    session.stop()
