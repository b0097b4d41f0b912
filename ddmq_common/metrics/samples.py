"""Sample files, the format: the names of the files and the lines in them (docs/formats-samples.md).

    date=2026-11-22/hour=03/samples-<instance>-00000017.jsonl           one interval of one process
    date=2026-11-22/hour=03/hour-<instance>-00000017-00000376.jsonl     the same of an hour, in one file
    date=2026-11-22/hour=03/.samples-<instance>-00000018.jsonl.tmp      being written

Folders are UTC hours of the interval's end. `instance` is 16 hex digits, new for every start of a process.
Spark and everybody else ignore names that start with a dot. Nothing else builds or parses these names.

A line is a metric of one process over one interval, as JSON. `encode` writes the keys in the order of the
fields; `decode` takes them in any order, ignores keys it does not know, and says of everything else why it
is not a sample. A changed meaning is a new VERSION.

What belongs into a file is said by deltas.py; the shell that writes is ddmq/server/samples/; the readers are
metrics_job/ and whoever likes JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from math import isfinite
from typing import Final, NamedTuple

import msgspec

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import BUCKETS

HOUR_MS = 3_600_000
FIRST_YEAR, LAST_YEAR = 1970, 9998  # of days that have one before and one after in epoch milliseconds
EARLIEST_MS, LATEST_MS = 0, int(datetime(LAST_YEAR, 12, 31, tzinfo=UTC).timestamp()) * 1000
_SEQ = r"(\d{8,18})"
_INTERVAL = re.compile(rf"samples-([0-9a-f]{{16}})-{_SEQ}\.jsonl")
_HOUR = re.compile(rf"hour-([0-9a-f]{{16}})-{_SEQ}-{_SEQ}\.jsonl")
_DATE_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)")
_HOUR_FOLDER = re.compile(r"hour=(\d\d)")


class SampleName(NamedTuple):
    """A parsed file name of samples: the process start, and the first and last sequence number of its
    intervals."""

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
        """Return the temporary name while the file is being written."""
        return f".{self}.tmp"

    def covers(self, other: SampleName) -> bool:
        """Return whether this file contains all intervals of `other`, if both are in the same folder."""
        return (
            self.merged
            and self.instance == other.instance
            and self.first <= other.first <= other.last <= self.last
        )


def interval_name(instance: str, seq: int) -> SampleName:
    """Return the name of the file with one interval."""
    return SampleName(instance, seq, seq, False)


def parse(name: str) -> SampleName | None:
    """Parse a file name; None if it is not a sample file or is still being written."""
    if match := _INTERVAL.fullmatch(name):
        return interval_name(match[1], int(match[2]))
    if match := _HOUR.fullmatch(name):
        return SampleName(match[1], int(match[2]), int(match[3]), True)
    return None


def parse_hidden(name: str) -> SampleName | None:
    """Parse the temporary name of a file that is being written, or was when its process died; else None."""
    return parse(name[1:-4]) if name.startswith(".") and name.endswith(".tmp") else None


def folder(wall_ms: int) -> str:
    """Return the relative folder of an interval that ended at `wall_ms`: date=…/hour=…."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("date=%Y-%m-%d/hour=%H")


def hour_start(date_folder: str, hour_folder: str) -> int | None:
    """Return the first epoch millisecond of a folder's hour; None if the names are not those of sample
    folders.
    """
    day, hour = _DATE_FOLDER.fullmatch(date_folder), _HOUR_FOLDER.fullmatch(hour_folder)
    if day is None or hour is None:
        return None
    try:
        start = datetime.strptime(f"{day[1]} {hour[1]} +0000", "%Y-%m-%d %H %z")
    except ValueError:
        return None
    return int(start.timestamp()) * 1000


def day_of(date_folder: str) -> date | None:
    """Return the day of a date folder; None if the name is invalid or outside the calendar."""
    match = _DATE_FOLDER.fullmatch(date_folder)
    try:
        day = date.fromisoformat(match[1]) if match else None
    except ValueError:
        return None
    return day if day and FIRST_YEAR <= day.year <= LAST_YEAR else None


VERSION = 1
PROCESS: Final = "ddmq_process"  # first line of every file: not a metric, says what the file is
STATES = FIRST, RUNNING, STOPPING, LAST = "first", "running", "stopping", "last"
CORRUPT, UNKNOWN_VERSION, UNKNOWN_METRIC, BAD_VALUE = (
    "corrupt",
    "unknown version",
    "unknown metric",
    "bad value",
)


class LineError(Exception):
    """The line is not a valid sample. `reason`: CORRUPT, UNKNOWN_VERSION, UNKNOWN_METRIC or BAD_VALUE."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class SampleLine(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """One line of a sample file.

    Counters and gauges have `value`; histograms have `sum`, and `counts` for the non-empty `buckets`.
    """

    v: int
    process: str
    instance: str
    seq: int
    from_: int  # epoch ms, exclusive: the end of the interval before
    to: int  # epoch ms; below `from_` when the clock was set back
    metric: str
    labels: dict[str, str]
    value: int | float | msgspec.UnsetType = msgspec.UNSET  # a counter's gain, a gauge at `to`
    sum: int | float | msgspec.UnsetType = msgspec.UNSET
    buckets: list[int] | msgspec.UnsetType = msgspec.UNSET  # rising indexes, see cells.py
    counts: list[int] | msgspec.UnsetType = msgspec.UNSET  # one for each, what it gained, never 0


class _LineVersion(msgspec.Struct):
    v: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SampleLine).decode
_decode_version = msgspec.json.Decoder(_LineVersion).decode


def encode(line: SampleLine) -> bytes:
    """Encode a line without its line end."""
    return _encode(line)


def decode(text: bytes) -> SampleLine:
    """Decode a line and check it against the catalogue. Raises LineError."""
    try:
        version = _decode_version(text).v
        if version != VERSION:
            raise LineError(UNKNOWN_VERSION, f"v is {version}; this program reads {VERSION}")
        line = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise LineError(CORRUPT, str(error)) from error
    _check(line)
    return line


def _check(line: SampleLine) -> None:
    if line.seq < 0 or not line.instance or not line.process:
        raise LineError(BAD_VALUE, "seq, instance and process say who made the sample; one is missing")
    if line.metric == PROCESS:
        _check_process(line)
        return
    metric = CATALOGUE.get(line.metric)
    if metric is None:
        raise LineError(UNKNOWN_METRIC, f"metric {line.metric!r} is not in the catalogue of this version")
    if line.labels.keys() != set(metric.labels):
        raise LineError(BAD_VALUE, f"{line.metric} has labels {metric.labels}, not {sorted(line.labels)}")
    if metric.kind == "histogram":
        _check_histogram(line)
    elif not _is_number(line.value) or line.sum is not msgspec.UNSET:
        raise LineError(BAD_VALUE, f"{line.metric} is a {metric.kind}: a finite value and no sum is wanted")


def _check_process(line: SampleLine) -> None:
    states: Mapping[str, str] = line.labels
    if line.labels.keys() != {"state"} or states["state"] not in STATES:
        raise LineError(BAD_VALUE, f"the state of a process is {', '.join(STATES)}, not {line.labels}")
    if not isinstance(line.value, int) or line.value < 1:
        raise LineError(BAD_VALUE, f"a file has 1 line or more, not {line.value!r}")


def _check_histogram(line: SampleLine) -> None:
    buckets, counts = line.buckets, line.counts
    if not _is_number(line.sum) or not isinstance(buckets, list) or not isinstance(counts, list):
        raise LineError(BAD_VALUE, f"{line.metric} is a histogram: sum, buckets and counts are wanted")
    if len(buckets) != len(counts) or any(count < 1 for count in counts):
        raise LineError(
            BAD_VALUE, f"{len(buckets)} buckets, {len(counts)} counts; each bucket has one above 0"
        )
    if buckets != sorted(set(buckets)) or (buckets and not 0 <= buckets[0] <= buckets[-1] < BUCKETS):
        raise LineError(BAD_VALUE, f"buckets are rising indexes from 0 to {BUCKETS - 1}, not {buckets[:9]}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)
