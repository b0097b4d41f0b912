"""Tables into their folders: the dates of a run are replaced, all others stay.

A date for which a run finds no rows any more loses those it had, so that a repeated run gives the same
whatever was there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.folders import Folders
from metrics_job.tables import PARTITION, Table, table_path

MARKERS = {"_SUCCESS", "._SUCCESS.crc"}  # what Spark leaves where it has written


class Store:
    """The tables under one output folder; `dates` are those that this run covers."""

    def __init__(self, spark: SparkSession, out: str, dates: Sequence[date]) -> None:
        self._spark, self._out, self._dates = spark, out, list(dates)
        self._folders = Folders(spark)

    def write(self, table: Table, rows: DataFrame | None) -> None:
        """Replace the run's dates. `rows` has the table's columns, and `date` or what it follows from; None:
        there are none."""
        path = table_path(self._out, table)
        before = {day: self._files(path, day) for day in self._dates}
        if rows is not None:
            shaped = _shaped(table, rows).filter(F.col(PARTITION).isin(self._dates))
            writer = shaped.hint("rebalance", PARTITION).write.mode("overwrite").partitionBy(PARTITION)
            writer.option("partitionOverwriteMode", "dynamic").parquet(path)
        for day, files in before.items():
            if files and self._files(path, day) == files:  # nothing was written in their place
                self._folders.delete(_partition(path, day))
        if all(name in MARKERS for name in self._folders.names(path)):  # nor another run at work in it
            self._folders.delete(path)  # a folder without rows tells no reader its columns

    def read(self, table: Table) -> DataFrame:
        """All dates of a table; no rows where there is none yet."""
        path = table_path(self._out, table)
        if not self._folders.exists(path):
            return self._spark.createDataFrame([], table.stored)
        return self._spark.read.schema(table.stored).parquet(path)

    def _files(self, path: str, day: date) -> list[str]:
        return self._folders.names(_partition(path, day))


def _partition(path: str, day: date) -> str:
    return f"{path}/{PARTITION}={day.isoformat()}"


def partition_path(out: str, table: Table, day: date) -> str:
    """Where a table's rows of a day lie."""
    return _partition(table_path(out, table), day)


def _shaped(table: Table, rows: DataFrame) -> DataFrame:
    day = PARTITION if PARTITION in rows.columns else "day" if "day" in rows.columns else "start"
    columns = [F.col(one.name).cast(one.dataType).alias(one.name) for one in table.schema]
    return rows.select(*columns, F.to_date(day).alias(PARTITION))
