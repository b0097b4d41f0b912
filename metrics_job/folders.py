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
    """The folder with the samples of one hour, and the start of that hour."""

    start: datetime
    path: str


class Days(NamedTuple):
    """A range of UTC days [first, end). None: open at that end."""

    first: date | None
    end: date | None

    def contains(self, day: date) -> bool:
        return (self.first is None or day >= self.first) and (self.end is None or day < self.end)

    @property
    def from_ms(self) -> int | None:
        return None if self.first is None else day_ms(self.first)

    @property
    def to_ms(self) -> int | None:
        return None if self.end is None else day_ms(self.end)


def days_of(from_ms: int | None, to_ms: int | None) -> Days:
    """Return the days that [from_ms, to_ms) touches. Raises ConfigError if the range is empty."""
    for option, moment_ms in (("--from", from_ms), ("--to", to_ms)):
        if moment_ms is not None and not EARLIEST_MS <= moment_ms <= LATEST_MS:
            raise ConfigError(f"{option} {moment_ms}: allowed: times from {FIRST_YEAR} to {LAST_YEAR}")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise ConfigError(f"--from {from_ms} is not before --to {to_ms}: the range holds nothing")
    first = None if from_ms is None else _utc_day(from_ms)
    return Days(first, None if to_ms is None else _utc_day(to_ms - 1) + timedelta(days=1))


def day_ms(day: date) -> int:
    """Return the first epoch millisecond of a day."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


def _utc_day(moment_ms: int) -> date:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).date()


class Folders:
    """File operations on the file systems that a Spark session can reach."""

    def __init__(self, spark: SparkSession) -> None:
        self._java: Any = spark.sparkContext._jvm
        self._settings: Any = spark._jsparkSession.sessionState().newHadoopConf()

    def exists(self, path: str) -> bool:
        return bool(self._file_system(path).exists(self._to_path(path)))

    def find_local_path(self, path: str) -> Path | None:
        """Return the path as a local path, or None if it is on another store."""
        url = self._file_system(path).makeQualified(self._to_path(path)).toUri()
        return Path(str(url.getPath())) if url.getScheme() == "file" else None

    def read_ages_ms(self, path: str, now_ms: int) -> dict[str, int]:
        """Return the age of each entry of a folder since its last change in ms, by name."""
        if not self.exists(path):
            return {}
        entries = self._file_system(path).listStatus(self._to_path(path))
        return {str(one.getPath().getName()): now_ms - int(one.getModificationTime()) for one in entries}

    def list_names(self, path: str) -> list[str]:
        """Return the names of the entries of a folder, sorted; [] when it does not exist."""
        if not self.exists(path):
            return []
        return sorted(
            str(one.getPath().getName()) for one in self._file_system(path).listStatus(self._to_path(path))
        )

    def read_sizes(self, paths: Iterable[str]) -> dict[str, int]:
        """Return the size of every file in these folders by name. A missing folder counts as empty."""
        return {
            str(one.getPath().getName()): int(one.getLen())
            for path in paths
            if self.exists(path)
            for one in self._file_system(path).listStatus(self._to_path(path))
        }

    def to_load_path(self, url: str) -> str:
        """Convert a URL of input_files() to a path for Spark's `load`."""
        return str(self._java.org.apache.hadoop.fs.Path(self._java.java.net.URI(url)).toString())

    def read(self, path: str) -> str | None:
        """Read a small text file; None when it does not exist."""
        if not self.exists(path):
            return None
        stream = self._file_system(path).open(self._to_path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a small text file, replacing an existing one."""
        stream = self._file_system(path).create(self._to_path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def rename(self, path: str, to: str) -> bool:
        return bool(self._file_system(path).rename(self._to_path(path), self._to_path(to)))

    def delete(self, path: str) -> None:
        """Delete a path and everything below it, if it exists."""
        self._file_system(path).delete(self._to_path(path), True)

    def list_hours(self, samples: str, days: Days) -> list[Hour]:
        """Return the folders that may contain intervals of these days, in order.

        They include one hour before and after, where a late or resent file may be. Raises ConfigError if
        `samples` does not exist.
        """
        if not self.exists(samples):
            raise ConfigError(
                f"{samples}: no such folder; --samples wants the folder that the processes write to"
            )
        hours = [
            Hour(start, f"{samples.rstrip('/')}/{day_name}/{hour_name}")
            for day_name in self.list_names(samples)
            if (day := day_of(day_name)) and any(days.contains(day + by * DAY) for by in (-1, 0, 1))
            for hour_name in self.list_names(f"{samples.rstrip('/')}/{day_name}")
            if (start := _start(day_name, hour_name)) and _is_near(days, start)
        ]
        return sorted(hours)

    def _to_path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)

    def _file_system(self, path: str) -> Any:
        return self._to_path(path).getFileSystem(self._settings)


def is_near_days(days: Iterable[date], start: datetime) -> bool:
    """Return whether an hour belongs to one of these days or is adjacent to one."""
    return any(_is_near(Days(day, day + DAY), start) for day in days)


def input_files(rows: DataFrame) -> list[str]:
    """Return the files that the rows are read from, as escaped URLs."""
    return list(rows.inputFiles())


def _start(day_name: str, hour_name: str) -> datetime | None:
    start_ms = hour_start(day_name, hour_name)
    return None if start_ms is None else datetime.fromtimestamp(start_ms / 1000, UTC)


def _is_near(days: Days, start: datetime) -> bool:
    hour = timedelta(hours=1)
    return any(days.contains((start + shift).date()) for shift in (-hour, timedelta(), hour))
