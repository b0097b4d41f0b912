"""One Spark session for all of them: small, on two cores, gone when the run ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from metrics_job.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this test run; leave its settings as they are."""
    made = session(
        "tests", master="local[2]", spark__sql__shuffle__partitions="2", spark__driver__memory="1g"
    )
    yield made
    made.stop()
