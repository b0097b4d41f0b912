"""Folders on whatever Spark reads (a disk, HDFS, an object store), and the hours of a range.

Samples lie in `<dir>/date=YYYY-MM-DD/hour=HH/`, in UTC of the interval's end.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from ddmq_common.errors import ConfigError
from ddmq_common.metrics.samples import (
    EARLIEST_MS,
    FIRST_YEAR,
    LAST_YEAR,
    LATEST_MS,
    day_of,
    hour_start,
)

DAY = timedelta(days=1)


class Hour(NamedTuple):
    """One folder of samples."""

    start: datetime
    path: str


class Days(NamedTuple):
    """Whole UTC days [first, end); None: open on that side."""

    first: date | None
    end: date | None

    def hold(self, day: date) -> bool:
        return (self.first is None or day >= self.first) and (self.end is None or day < self.end)

    @property
    def from_ms(self) -> int | None:
        return None if self.first is None else day_ms(self.first)

    @property
    def to_ms(self) -> int | None:
        return None if self.end is None else day_ms(self.end)


def days_of(from_ms: int | None, to_ms: int | None) -> Days:
    """The days that [from_ms, to_ms) touches. Raises ConfigError when it is empty."""
    for option, moment_ms in (("--from", from_ms), ("--to", to_ms)):
        if moment_ms is not None and not EARLIEST_MS <= moment_ms <= LATEST_MS:
            raise ConfigError(f"{option} {moment_ms}: allowed: times from {FIRST_YEAR} to {LAST_YEAR}")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise ConfigError(f"--from {from_ms} is not before --to {to_ms}: the range holds nothing")
    first = None if from_ms is None else _day(from_ms)
    return Days(first, None if to_ms is None else _day(to_ms - 1) + timedelta(days=1))


def day_ms(day: date) -> int:
    """Its first millisecond, since the epoch."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


def _day(moment_ms: int) -> date:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).date()


class Folders:
    """The file systems of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._java: Any = spark.sparkContext._jvm
        self._settings: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def exists(self, path: str) -> bool:
        return bool(self._system(path).exists(self._path(path)))

    def find_local_path(self, path: str) -> Path | None:
        """Return the path on a disk of this machine, or mounted like one; None: it is on another store."""
        whole = self._system(path).makeQualified(self._path(path)).toUri()
        return Path(str(whole.getPath())) if whole.getScheme() == "file" else None

    def read_ages_ms(self, path: str, now_ms: int) -> dict[str, int]:
        """Return how long ago each entry of a folder was changed, by name."""
        if not self.exists(path):
            return {}
        entries = self._system(path).listStatus(self._path(path))
        return {str(one.getPath().getName()): now_ms - int(one.getModificationTime()) for one in entries}

    def names(self, path: str) -> list[str]:
        """What lies in a folder, sorted; nothing when it is not there."""
        if not self.exists(path):
            return []
        return sorted(str(one.getPath().getName()) for one in self._system(path).listStatus(self._path(path)))

    def sizes(self, paths: Iterable[str]) -> dict[str, int]:
        """Bytes of every file in these folders, by name; a folder that is gone has none."""
        return {
            str(one.getPath().getName()): int(one.getLen())
            for path in paths
            if self.exists(path)
            for one in self._system(path).listStatus(self._path(path))
        }

    def plain(self, url: str) -> str:
        """A path as `load` takes it, of one as input_files() gives it."""
        return str(self._java.org.apache.hadoop.fs.Path(self._java.java.net.URI(url)).toString())

    def read(self, path: str) -> str | None:
        """A small text file; None when it is not there."""
        if not self.exists(path):
            return None
        stream = self._system(path).open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """A small text file, over what is there."""
        stream = self._system(path).create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def rename(self, path: str, to: str) -> bool:
        return bool(self._system(path).rename(self._path(path), self._path(to)))

    def delete(self, path: str) -> None:
        """Away with it and all below; nothing happens when it is not there."""
        self._system(path).delete(self._path(path), True)

    def hours(self, samples: str, days: Days) -> list[Hour]:
        """The folders that can hold intervals of these days, in order.

        With one hour before and after: a file that was late or sent again may lie in a neighbour. Raises
        ConfigError when `samples` is not there.
        """
        if not self.exists(samples):
            raise ConfigError(
                f"{samples}: no such folder; --samples wants the folder that the processes write to"
            )
        found = [
            Hour(start, f"{samples.rstrip('/')}/{day_name}/{hour_name}")
            for day_name in self.names(samples)
            if (day := day_of(day_name)) and any(days.hold(day + by * DAY) for by in (-1, 0, 1))
            for hour_name in self.names(f"{samples.rstrip('/')}/{day_name}")
            if (start := _start(day_name, hour_name)) and _near(days, start)
        ]
        return sorted(found)

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)

    def _system(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._settings)


def near(days: Iterable[date], start: datetime) -> bool:
    """Whether an hour is of one of these days, or beside one."""
    return any(_near(Days(day, day + DAY), start) for day in days)


def input_files(rows: DataFrame) -> list[str]:
    """The files that rows are read from, as URLs (with what they escape)."""
    return list(rows.inputFiles())


def _start(day_name: str, hour_name: str) -> datetime | None:
    start_ms = hour_start(day_name, hour_name)
    return None if start_ms is None else datetime.fromtimestamp(start_ms / 1000, UTC)


def _near(days: Days, start: datetime) -> bool:
    hour = timedelta(hours=1)
    return any(days.hold((start + shift).date()) for shift in (-hour, timedelta(), hour))
