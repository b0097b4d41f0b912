"""Keep the rows of every streaming batch until no later line can touch their day.

A batch is stored in `<root>/batches=<first>-<last>/date=…/hour=…/*.parquet` (both numbers are its own);
merged neighbours are stored in a folder with their combined range. All folders are read as one source, so
their number does not slow down planning. A folder is complete when it has its state file, which is written
last and appears under its final name at once. A folder inside the range of another complete folder is
outdated and is deleted. So a repeated batch replaces itself, and a kill at any point leaves each row in
exactly one complete folder. Folders are merged FANOUT at a time, so that an hour is read from few files and
a row is rewritten as many times as the logarithm of the number of batches.

Works on every file system Spark reaches (paths or URLs).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812

from metrics_job.folders import Folders
from metrics_job.minutes import INTERVAL
from metrics_job.tables import HOUR, PARTITION

FANOUT = 16
STATE = "_state.json"  # Spark reads no file that starts with _
BATCHES = "batches"  # the partition column of the folders
NEVER = -(1 << 62)


@dataclass(frozen=True)
class State:
    """The contents of a folder's state file: the latest interval end of its own batches, and that of all
    batches up to them."""

    last_ms: int = NEVER  # the latest `to` in it
    newest_ms: int = NEVER  # the latest `to` in it and in everything before it


class Range(NamedTuple):
    """A range of batches whose rows are in one folder; both ends are included."""

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.first:012d}-{self.last:012d}"

    @property
    def folder_name(self) -> str:
        return f"{BATCHES}={self.name}"

    @property
    def merge_level(self) -> int:
        """Return how many times the rows of this folder have been merged."""
        level, count = 0, self.last - self.first + 1
        while count >= FANOUT:
            level, count = level + 1, count // FANOUT
        return level

    def covers(self, other: Range) -> bool:
        return self.first <= other.first and other.last <= self.last and self != other


def drop_covered(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges that are not contained in another one, in order."""
    wide = sorted(ranges, key=lambda one: (one.first, -one.last))
    widest: list[Range] = []
    for one in wide:
        if not widest or not widest[-1].covers(one):
            widest.append(one)
    return widest


def to_merge(ranges: list[Range]) -> list[Range]:
    """Return the first FANOUT neighbouring ranges of the highest merge level that has FANOUT of them; else
    []."""
    for _, same in groupby(ranges, key=lambda one: one.merge_level):
        run = list(same)
        if len(run) >= FANOUT:
            return run[:FANOUT]
    return []


class Arrived:
    """The rows of all batches of the streaming job, stored under `root`. `schema`: their schema with the
    partition columns `date` and `hour`."""

    def __init__(self, spark: SparkSession, root: str, schema: T.StructType) -> None:
        self._spark, self._root, self._schema = spark, root.rstrip("/"), schema
        self._folders = Folders(spark)

    def list_ranges(self, before: int) -> list[Range]:
        """Return the ranges of the complete folders that contain only batches below `before`, in order."""
        return drop_covered(one for one in self._list_all() if one.last < before and self._has_state(one))

    def newest_ms(self, before: int) -> int:
        """Return the latest `to` (interval end) in the batches below `before`; NEVER if there is none."""
        return max((self.read_state(one).newest_ms for one in self.list_ranges(before)), default=NEVER)

    def write(self, batch: int, rows: DataFrame, limit_ms: int) -> DataFrame:
        """Store the rows of a batch, replacing earlier rows of it, and return them as stored.

        An interval end (`to_ms`) above `limit_ms` comes from a wrong clock; it does not move the time before
        which lines count as late.
        """
        own = Range(batch, batch)
        self._write(own, rows)
        stored = self._read([own])
        times = stored.filter((F.col("kind") == INTERVAL) & (F.col("to_ms") <= limit_ms))
        newest = times.agg(F.max("to_ms")).first()
        last = NEVER if newest is None or newest[0] is None else int(newest[0])
        self._write_state(own, State(last, max(last, self.newest_ms(batch))))
        return stored

    def read(self, through: int) -> DataFrame:
        """Return the rows of all batches up to and including `through`."""
        return self._read(self.list_ranges(through + 1))

    def tidy_folders(self, before: int, keep_from: date) -> None:
        """Delete covered and outdated folders of batches below `before`, and merge small ones.

        Keep rows from `keep_from` on.
        """
        ranges = self.list_ranges(before)
        for one in self._list_all():
            if one.last < before and one not in ranges:
                self._delete(one)
        newest = [(one, utc_date(self.read_state(one).newest_ms)) for one in ranges[:-1]]
        old = [one for one, day in newest if day < keep_from - timedelta(1)]
        for one in old:
            self._delete(one)
        merging = to_merge([one for one in ranges if one not in old])
        if merging:
            self._merge_ranges(merging, keep_from)

    def read_state(self, one: Range) -> State:
        """Read the state file of a folder. Raises FileNotFoundError if it has none."""
        text = self._folders.read(self._path_of(one, STATE))
        if text is None:
            raise FileNotFoundError(self._path_of(one, STATE))
        return State(**json.loads(text))

    def _merge_ranges(self, ranges: list[Range], keep_from: date) -> None:
        states = [self.read_state(one) for one in ranges]
        merged = Range(ranges[0].first, ranges[-1].last)
        self._write(merged, self._read(ranges).filter(F.col(PARTITION) >= F.lit(keep_from)))
        newest_ms = max(one.newest_ms for one in states)
        self._write_state(merged, State(max(one.last_ms for one in states), newest_ms))
        for one in ranges:
            self._delete(one)

    def _write(self, one: Range, rows: DataFrame) -> None:
        self._delete(one)
        writer = rows.write.partitionBy(PARTITION, HOUR).mode("overwrite")
        writer.option("partitionOverwriteMode", "static").parquet(self._path_of(one))

    def _write_state(self, one: Range, state: State) -> None:
        hidden = self._path_of(one, "_" + STATE)
        self._folders.write(hidden, json.dumps(asdict(state)))
        if not self._folders.rename(hidden, self._path_of(one, STATE)):
            raise OSError(f"cannot rename {hidden} to {STATE}: batch {one.name} is not kept")

    def _read(self, ranges: list[Range]) -> DataFrame:
        if not ranges:
            return self._spark.createDataFrame([], self._schema)
        reader = self._spark.read.schema(self._schema).option("basePath", self._root)
        return reader.parquet(*map(self._path_of, ranges)).select(*self._schema.names)

    def _list_all(self) -> list[Range]:
        names = (name.partition("=") for name in self._folders.list_names(self._root))
        return [Range(*map(int, numbers.split("-"))) for column, _, numbers in names if column == BATCHES]

    def _has_state(self, one: Range) -> bool:
        return self._folders.exists(self._path_of(one, STATE))

    def _delete(self, one: Range) -> None:
        self._folders.delete(
            self._path_of(one, STATE)
        )  # first, so that a partly deleted folder is never complete
        self._folders.delete(self._path_of(one))

    def _path_of(self, one: Range, *name: str) -> str:
        return "/".join((self._root, one.folder_name, *name))


def utc_date(ms: int) -> date:
    """Return the UTC day of an epoch time; the earliest possible day for NEVER."""
    return date.min if ms == NEVER else datetime.fromtimestamp(ms / 1000, UTC).date()
