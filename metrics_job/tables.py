"""The shapes of what goes in and what comes out: one explicit StructType each; and how tables are written.

A table is Parquet under `<out>/<table>/date=YYYY-MM-DD/`; `date` (UTC) is the partition column of all of
them and stands last, `Table.schema` has it not, `Table.stored` has. `start` is the beginning of the minute
or hour. `topic`, `group` and `detail` are "" where the metric has no such label; `detail` holds all other
labels as "name=value,name=value" in the order of the names. An interval of a process belongs to the minute
(and hour, and date) of its end.

The dates of a run are replaced, all others stay. A date for which a run finds no rows any more loses those
it had, so that a repeated run gives the same whatever was there before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from ddmq_common.metrics.catalogue import CATALOGUE
from metrics_job.folders import Folders

VERSION = 1  # of the sample lines this job reads
PROCESS_METRIC = "ddmq_process"  # the first line of a file: not a metric, says what the file is
STATE_LABEL, LAST = "state", "last"  # its label, and what the last file of a process says there
CORRUPT = "corrupt_line"  # where the reader keeps a line that is not a sample
PARTITION = "date"
HOUR = "hour"  # the second one of a stream's tables, of those that have a row of an hour or less

STRING, LONG, DOUBLE, INT = T.StringType(), T.LongType(), T.DoubleType(), T.IntegerType()


def label_names() -> list[str]:
    """Return all labels of the catalogue and the state label of a file's first line, sorted."""
    return sorted({STATE_LABEL, *(label for metric in CATALOGUE.values() for label in metric.labels)})


def _struct_type(**columns: T.DataType) -> T.StructType:
    """Build a StructType from columns by name. A name that is a Python keyword ends in _."""
    return T.StructType([T.StructField(name.rstrip("_"), kind) for name, kind in columns.items()])


def _columns_of(kind: T.DataType, *names: str) -> dict[str, T.DataType]:
    return dict.fromkeys(names, kind)


def line_schema() -> T.StructType:
    """Return the schema of one line of a sample file: `from` and `to` in epoch ms, absent labels null."""
    return _struct_type(
        v=LONG,
        **_columns_of(STRING, "process", "instance"),
        **_columns_of(LONG, "seq", "from_", "to"),
        metric=STRING,
        labels=_struct_type(**_columns_of(STRING, *label_names())),
        **_columns_of(DOUBLE, "value", "sum"),
        buckets=T.ArrayType(INT),
        counts=T.ArrayType(LONG),
        **_columns_of(STRING, CORRUPT),
    )


class Table(NamedTuple):
    """One output table: its folder's name and its columns."""

    name: str
    schema: T.StructType

    @property
    def stored_schema(self) -> T.StructType:
        """Return the columns including the partition, as a reader of the folder sees them."""
        return T.StructType([*self.schema.fields, T.StructField(PARTITION, T.DateType())])


SERIES_KEY = ("metric", "process", "topic", "group", "detail")
SUBSCRIPTION = ("start", "group", "topic")
_START = {"start": T.TimestampType()}
_OF_SERIES = _START | _columns_of(STRING, *SERIES_KEY)
_OF_SUBSCRIPTION = _START | _columns_of(STRING, "group", "topic")

# `seconds`: what the process's intervals of that minute cover, so a counter that stood still for half a
# minute has the same `seconds` as one that moved. `per_s` is total / seconds, null when that is 0.
_COUNTERS = _struct_type(**_OF_SERIES, **_columns_of(DOUBLE, "total", "seconds", "per_s"))
COUNTERS_MINUTE = Table("counters_minute", _COUNTERS)
COUNTERS_HOUR = Table("counters_hour", _COUNTERS)
_GAUGES = _struct_type(**_OF_SERIES, **_columns_of(DOUBLE, "last", "max", "min", "mean"))
GAUGES_MINUTE = Table("gauges_minute", _GAUGES)
GAUGES_HOUR = Table("gauges_hour", _GAUGES)
# Rows with process "" are the merge over all processes. Percentiles and max are upper edges of buckets.
_LATENCIES = _struct_type(
    **_OF_SERIES,
    count=LONG,
    sum=DOUBLE,
    buckets=T.ArrayType(INT),
    counts=T.ArrayType(LONG),
    **_columns_of(DOUBLE, "p50", "p90", "p99", "p999", "max"),
)
LATENCIES_MINUTE = Table("latencies_minute", _LATENCIES)
LATENCIES_HOUR = Table("latencies_hour", _LATENCIES)
LAG_MINUTE = Table(
    "lag_minute",
    _struct_type(
        **_OF_SUBSCRIPTION,
        **_columns_of(DOUBLE, "lag", "lag_max", "lag_age_ms"),  # `lag`: at the end of the minute
        **_columns_of(DOUBLE, "finished_per_s", "arrived_per_s"),
        time_to_drain_s=DOUBLE,  # null: never at present rates; 0: nothing to drain
        **_columns_of(DOUBLE, "blocked_keys", "blocked_key_age_ms"),
    ),
)
RATIOS_HOUR = Table(
    "ratios_hour",
    _struct_type(
        **_OF_SUBSCRIPTION,
        **_columns_of(
            DOUBLE, "delivered", "acked", "failed", "retried", "redelivered", "timeouts", "dead_lettered"
        ),
        **_columns_of(DOUBLE, "error_ratio", "retry_ratio", "dead_letter_ratio"),
    ),
)
SLO_DAY = Table(
    "slo_day",
    _struct_type(
        day=T.DateType(),
        **_columns_of(STRING, "slo", "topic", "group"),
        target=DOUBLE,  # the share of good ones that was promised, 0 to 1
        **_columns_of(LONG, "good", "total"),
        compliance=DOUBLE,
        met=T.BooleanType(),
    ),
)
# One row per process and instance for every date on which it was seen; counts are of that date.
PROCESSES = Table(
    "processes",
    _struct_type(
        **_columns_of(STRING, "process", "instance"),
        **_columns_of(T.TimestampType(), "first_seen", "last_seen"),
        samples=LONG,  # lines, duplicates not counted
        files=LONG,  # sequence numbers seen
        missing=LONG,  # sequence numbers not seen between the first and the last of the date
        duplicates=LONG,  # lines dropped because they were there before
        longest_gap_s=DOUBLE,  # between the end of an interval and the start of the next one seen
        ended=STRING,  # last, vanished, running: of that date alone
        clock_steps=LONG,  # intervals that end before they begin: the wall clock went back
        interval_s=DOUBLE,  # how long its intervals usually are; of one with only its first, the others'
    ),
)
ANOMALIES_HOUR = Table(
    "anomalies_hour",
    _struct_type(
        **_START,
        **_columns_of(STRING, "metric", "topic", "group"),
        **_columns_of(DOUBLE, "value", "usual", "deviation"),
        weeks=INT,
    ),
)
REJECTS = Table("rejects", _struct_type(file=STRING, reason=STRING, lines=LONG, example=STRING))

BY_HOUR = (
    COUNTERS_MINUTE, COUNTERS_HOUR, GAUGES_MINUTE, GAUGES_HOUR, LATENCIES_MINUTE, LATENCIES_HOUR, RATIOS_HOUR,
    ANOMALIES_HOUR,
)  # fmt: skip
TABLES = {table.name: table for table in (*BY_HOUR, LAG_MINUTE, SLO_DAY, PROCESSES, REJECTS)}


def table_path(out: str, table: Table) -> str:
    """Return the path or URL of the table's folder under the output folder."""
    return f"{out.rstrip('/')}/{table.name}"


STAGING = ".spark-staging-"  # how Spark's folders begin in which a run writes before it replaces
STAGING_RETENTION_MS = 24 * 3_600_000  # on a store without a lock: another run may be at work in younger ones
MARKERS = {"_SUCCESS", "._SUCCESS.crc"}  # what Spark leaves where it has written


class Store:
    """The tables under one output folder.

    `dates`: the dates that this run covers. `hours` (epoch hours, only for a stream): in the tables of
    tables.BY_HOUR, whose rows are then in `date=…/hour=…`, the run covers only these hours.
    """

    def __init__(
        self, spark: SparkSession, out: str, dates: Sequence[date], hours: Sequence[int] | None = None
    ) -> None:
        self._spark, self._out, self._dates, self._hours = spark, out, list(dates), hours
        self._folders = Folders(spark)

    def shape_rows(self, table: Table, rows: DataFrame) -> DataFrame:
        """Return the rows of the run's dates with exactly the columns that `write` stores."""
        return _select_columns(table, rows).filter(F.col(PARTITION).isin(self._dates))

    def write(self, table: Table, rows: DataFrame | None) -> None:
        """Replace the rows of the run's dates or hours in a table. `rows` has the table's columns, and `date`
        or a column that determines it; None means that there are no rows."""
        path = table_path(self._out, table)
        self._delete_staging(path)
        before = {folder: self._folders.list_names(folder) for folder in self._replaced_folders(path, table)}
        if rows is not None:
            shaped = self.shape_rows(table, rows)
            by = [PARTITION]
            if self._by_hour(table):
                shaped = shaped.filter(_epoch_hour().isin(self._hours)).withColumn(
                    HOUR, F.date_format("start", "HH")
                )
                by.append(HOUR)
            writer = shaped.hint("rebalance", PARTITION).write.mode("overwrite").partitionBy(*by)
            writer.option("partitionOverwriteMode", "dynamic").parquet(path)
        for folder, files in before.items():
            if files and self._folders.list_names(folder) == files:  # nothing was written in their place
                self._folders.delete(folder)
        if all(name in MARKERS for name in self._folders.list_names(path)):  # nor another run at work in it
            self._folders.delete(path)  # a folder without rows tells no reader its columns

    def _delete_staging(self, path: str) -> None:
        """Delete unfinished files of killed runs. On a local disk the lock keeps other runs out."""
        now_ms = time.time_ns() // 1_000_000
        is_locked = self._folders.find_local_path(path) is not None
        for name, age_ms in self._folders.read_ages_ms(path, now_ms).items():
            if name.startswith(STAGING) and (is_locked or age_ms >= STAGING_RETENTION_MS):
                self._folders.delete(f"{path}/{name}")

    def read(self, table: Table) -> DataFrame:
        """Read all dates of a table; no rows if the table does not exist."""
        path = table_path(self._out, table)
        if not self._folders.exists(path):
            return self._spark.createDataFrame([], table.stored_schema)
        return self._spark.read.schema(table.stored_schema).parquet(path).select(*table.stored_schema.names)

    def _by_hour(self, table: Table) -> bool:
        return self._hours is not None and table in BY_HOUR

    def _replaced_folders(self, path: str, table: Table) -> list[str]:
        """Return the folders that a write replaces."""
        if not self._folders.exists(path):
            return []
        if not self._by_hour(table):
            return [_partition_folder(path, day) for day in self._dates]
        starts = (datetime.fromtimestamp(hour * 3600, UTC) for hour in self._hours or ())
        return [f"{_partition_folder(path, start.date())}/{HOUR}={start:%H}" for start in starts]


def _epoch_hour() -> Column:
    """Return a column with the epoch hour of a row's `start`."""
    return F.floor(F.unix_timestamp("start") / 3600)


def _partition_folder(path: str, day: date) -> str:
    return f"{path}/{PARTITION}={day.isoformat()}"


def partition_path(out: str, table: Table, day: date) -> str:
    """Return the path of the folder with a table's rows of one day."""
    return _partition_folder(table_path(out, table), day)


def _select_columns(table: Table, rows: DataFrame) -> DataFrame:
    day = PARTITION if PARTITION in rows.columns else "day" if "day" in rows.columns else "start"
    columns = [F.col(one.name).cast(one.dataType).alias(one.name) for one in table.schema]
    return rows.select(*columns, F.to_date(day).alias(PARTITION))
