"""One Spark session for all tests of this folder: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from metrics_job.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, two shuffle partitions; its settings are those of the job."""
    made = session("tests", master="local[2]", spark__sql__shuffle__partitions="2")
    yield made
    made.stop()
