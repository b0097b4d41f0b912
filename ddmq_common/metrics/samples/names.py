"""The places and names of sample files; nothing else builds or parses these names.

    date=2026-11-22/hour=03/samples-<instance>-00000017.jsonl           one interval of one process
    date=2026-11-22/hour=03/hour-<instance>-00000017-00000376.jsonl     the same of an hour, in one file
    date=2026-11-22/hour=03/.samples-<instance>-00000018.jsonl.tmp      being written

Folders are UTC hours of the interval's end. `instance` is 16 hex digits, new for every start of a process.
Spark and everybody else ignore names that start with a dot.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import NamedTuple

HOUR_MS = 3_600_000
FIRST_YEAR, LAST_YEAR = 1970, 9998  # of days that have one before and one after in epoch milliseconds
EARLIEST_MS, LATEST_MS = 0, int(datetime(LAST_YEAR, 12, 31, tzinfo=UTC).timestamp()) * 1000
_SEQ = r"(\d{8,18})"
_PART = re.compile(rf"samples-([0-9a-f]{{16}})-{_SEQ}\.jsonl")
_HOUR = re.compile(rf"hour-([0-9a-f]{{16}})-{_SEQ}-{_SEQ}\.jsonl")
_DATE_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)")
_HOUR_FOLDER = re.compile(r"hour=(\d\d)")


class SampleName(NamedTuple):
    """What a file's name says: whose samples, and the sequence numbers of the first and last interval."""

    instance: str
    first: int
    last: int
    merged: bool  # an hour's file; else that of one interval, and first == last

    def __str__(self) -> str:
        if self.merged:
            return f"hour-{self.instance}-{self.first:08d}-{self.last:08d}.jsonl"
        return f"samples-{self.instance}-{self.first:08d}.jsonl"

    @property
    def hidden(self) -> str:
        """The name while it is written."""
        return f".{self}.tmp"

    def covers(self, other: SampleName) -> bool:
        """All intervals of `other` are in this one, when both lie in the same folder."""
        return (
            self.merged
            and self.instance == other.instance
            and self.first <= other.first <= other.last <= self.last
        )


def part(instance: str, seq: int) -> SampleName:
    """The file of one interval."""
    return SampleName(instance, seq, seq, False)


def parse(name: str) -> SampleName | None:
    """Parse a name; None when it is not one of ours, or one that is still being written."""
    if found := _PART.fullmatch(name):
        return part(found[1], int(found[2]))
    if found := _HOUR.fullmatch(name):
        return SampleName(found[1], int(found[2]), int(found[3]), True)
    return None


def parse_hidden(name: str) -> SampleName | None:
    """Parse the name of a file that is being written, or was when its process died."""
    return parse(name[1:-4]) if name.startswith(".") and name.endswith(".tmp") else None


def folder(wall_ms: int) -> str:
    """The folder of an interval that ended at `wall_ms`, relative: date=…/hour=…."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("date=%Y-%m-%d/hour=%H")


def hour_start(date_folder: str, hour_folder: str) -> int | None:
    """Epoch ms of the beginning of a folder's hour; None when these are not names of ours."""
    day, hour = _DATE_FOLDER.fullmatch(date_folder), _HOUR_FOLDER.fullmatch(hour_folder)
    if day is None or hour is None:
        return None
    try:
        start = datetime.strptime(f"{day[1]} {hour[1]} +0000", "%Y-%m-%d %H %z")
    except ValueError:
        return None
    return int(start.timestamp()) * 1000


def day_of(date_folder: str) -> date | None:
    """The day of a date's folder; None when this is not a name of ours, or a day that no clock shows."""
    found = _DATE_FOLDER.fullmatch(date_folder)
    try:
        day = date.fromisoformat(found[1]) if found else None
    except ValueError:
        return None
    return day if day and FIRST_YEAR <= day.year <= LAST_YEAR else None
