"""A line of a sample file: a metric of one process over one interval, as JSON.

`encode` writes the keys in the order of the fields; `decode` takes them in any order, ignores keys it does
not know, and says of everything else why it is not a sample. A changed meaning is a new VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final

import msgspec

from ddmq_common.metrics.buckets import BUCKETS
from ddmq_common.metrics.catalogue import CATALOGUE

VERSION = 1
PROCESS: Final = "ddmq_process"  # first line of every file: not a metric, says what the file is
FIRST, RUNNING, LAST = "first", "running", "last"
CORRUPT, UNKNOWN_VERSION, UNKNOWN_METRIC, BAD_VALUE = (
    "corrupt",
    "unknown version",
    "unknown metric",
    "bad value",
)


class LineError(Exception):
    """The line is no sample. `reason` is one of CORRUPT, UNKNOWN_VERSION, UNKNOWN_METRIC, BAD_VALUE."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(f"{reason}: {said}")
        self.reason = reason


class SampleLine(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Counters and gauges have `value`; histograms `sum`, and `counts` of the `buckets` that have any."""

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
    buckets: list[int] | msgspec.UnsetType = msgspec.UNSET  # rising indexes, see metrics/buckets.py
    counts: list[int] | msgspec.UnsetType = msgspec.UNSET  # one for each, what it gained, never 0


class _LineVersion(msgspec.Struct):
    v: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SampleLine).decode
_decode_version = msgspec.json.Decoder(_LineVersion).decode


def encode(line: SampleLine) -> bytes:
    """The line without its end."""
    return _encode(line)


def decode(text: bytes) -> SampleLine:
    """The sample in one line, checked against the catalogue. Raises LineError."""
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
    elif not _number(line.value) or line.sum is not msgspec.UNSET:
        raise LineError(BAD_VALUE, f"{line.metric} is a {metric.kind}: a finite value and no sum is wanted")


def _check_process(line: SampleLine) -> None:
    states: Mapping[str, str] = line.labels
    if line.labels.keys() != {"state"} or states["state"] not in (FIRST, RUNNING, LAST):
        raise LineError(BAD_VALUE, f"the state of a process is first, running or last, not {line.labels}")
    if not isinstance(line.value, int) or line.value < 1:
        raise LineError(BAD_VALUE, f"a file has 1 line or more, not {line.value!r}")


def _check_histogram(line: SampleLine) -> None:
    buckets, counts = line.buckets, line.counts
    if not _number(line.sum) or not isinstance(buckets, list) or not isinstance(counts, list):
        raise LineError(BAD_VALUE, f"{line.metric} is a histogram: sum, buckets and counts are wanted")
    if len(buckets) != len(counts) or any(count < 1 for count in counts):
        raise LineError(
            BAD_VALUE, f"{len(buckets)} buckets, {len(counts)} counts; each bucket has one above 0"
        )
    if buckets != sorted(set(buckets)) or (buckets and not 0 <= buckets[0] <= buckets[-1] < BUCKETS):
        raise LineError(BAD_VALUE, f"buckets are rising indexes from 0 to {BUCKETS - 1}, not {buckets[:9]}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)
