"""Tables into their folders: the dates of a run are replaced, all others stay.

A date for which a run finds no rows any more loses those it had, so that a repeated run gives the same
whatever was there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from metrics_job.folders import Folders
from metrics_job.tables import BY_HOUR, HOUR, PARTITION, Table, table_path

MARKERS = {"_SUCCESS", "._SUCCESS.crc"}  # what Spark leaves where it has written


class Store:
    """The tables under one output folder; `dates` are those that this run covers.

    With `hours` (epoch hours; of a stream) it covers only these in the tables of tables.BY_HOUR, whose rows
    lie in `date=…/hour=…` then.
    """

    def __init__(
        self, spark: SparkSession, out: str, dates: Sequence[date], hours: Sequence[int] | None = None
    ) -> None:
        self._spark, self._out, self._dates, self._hours = spark, out, list(dates), hours
        self._folders = Folders(spark)

    def write(self, table: Table, rows: DataFrame | None) -> None:
        """Replace the run's dates, or hours. `rows` has the table's columns, and `date` or what it follows
        from; None: there are none."""
        path = table_path(self._out, table)
        before = {part: self._folders.names(part) for part in self._parts(path, table)}
        if rows is not None:
            shaped = _shaped(table, rows).filter(F.col(PARTITION).isin(self._dates))
            by = [PARTITION]
            if self._by_hour(table):
                shaped = shaped.filter(_hour().isin(self._hours)).withColumn(
                    HOUR, F.date_format("start", "HH")
                )
                by.append(HOUR)
            writer = shaped.hint("rebalance", PARTITION).write.mode("overwrite").partitionBy(*by)
            writer.option("partitionOverwriteMode", "dynamic").parquet(path)
        for part, files in before.items():
            if files and self._folders.names(part) == files:  # nothing was written in their place
                self._folders.delete(part)
        if all(name in MARKERS for name in self._folders.names(path)):  # nor another run at work in it
            self._folders.delete(path)  # a folder without rows tells no reader its columns

    def read(self, table: Table) -> DataFrame:
        """All dates of a table; no rows where there is none yet."""
        path = table_path(self._out, table)
        if not self._folders.exists(path):
            return self._spark.createDataFrame([], table.stored)
        return self._spark.read.schema(table.stored).parquet(path).select(*table.stored.names)

    def _by_hour(self, table: Table) -> bool:
        return self._hours is not None and table in BY_HOUR

    def _parts(self, path: str, table: Table) -> list[str]:
        """The folders that are replaced."""
        if not self._folders.exists(path):
            return []
        if not self._by_hour(table):
            return [_partition(path, day) for day in self._dates]
        starts = (datetime.fromtimestamp(hour * 3600, UTC) for hour in self._hours or ())
        return [f"{_partition(path, start.date())}/{HOUR}={start:%H}" for start in starts]


def _hour() -> Column:
    """The epoch hour of a row with `start`."""
    return F.floor(F.unix_timestamp("start") / 3600)


def _partition(path: str, day: date) -> str:
    return f"{path}/{PARTITION}={day.isoformat()}"


def partition_path(out: str, table: Table, day: date) -> str:
    """Where a table's rows of a day lie."""
    return _partition(table_path(out, table), day)


def _shaped(table: Table, rows: DataFrame) -> DataFrame:
    day = PARTITION if PARTITION in rows.columns else "day" if "day" in rows.columns else "start"
    columns = [F.col(one.name).cast(one.dataType).alias(one.name) for one in table.schema]
    return rows.select(*columns, F.to_date(day).alias(PARTITION))
