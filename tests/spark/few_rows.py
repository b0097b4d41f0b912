"""A Spark session for queries over a few rows, in the test run and in the processes that tests start."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from metrics_job.session import session

# Of such queries most of the time goes into compiling code for them, into planning again what is known, into
# conditions that follow from others, and into tasks without a row.
FEW_ROWS = {
    "spark__sql__shuffle__partitions": "2",
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
    "spark__sql__constraintPropagation__enabled": "false",
}


def small_session(name: str) -> SparkSession:
    """The session of this process, on two cores."""
    return session(name, master="local[2]", spark__driver__memory="1g", **FEW_ROWS)


def worker_was_late(query: StreamingQuery) -> bool:
    """The query has ended since the machine was too busy: Spark gives a Python worker 10 s to connect, a
    constant of its own. Such a query may be started again; any other end is an AssertionError."""
    if query.isActive:
        return False
    error = str(query.exception())
    assert "worker failed to connect back" in error, f"the query has ended: {error}"
    return True
