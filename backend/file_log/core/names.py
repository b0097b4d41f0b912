"""File names of the log and its index, built and parsed in one place. All are plain text, relative to DIR."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
INDEX = "index"
SENDS = "sends"
DAMAGED = "damaged"
FORMAT = "format"
OLDER_STOPS_HERE = f"{COMMIT_LOG}/format-2-is-not-for-this-release.new"
CHECKPOINT = "checkpoint"
RETENTION = "retention"
CHECKPOINT_OLD = "checkpoint.old"
CHECKPOINT_NEW = "checkpoint.new"
UNFINISHED = ".new"


def segment_name(start: int) -> str:
    """Return the name of the segment whose first byte has this log position."""
    return f"{start:020d}"


def parse_segment(name: str) -> int | None:
    """The start position, None for what is no segment."""
    return int(name) if len(name) == 20 and name.isascii() and name.isdecimal() else None


def kept_name(start: int, end: int) -> str:
    """Return the name of a segment retained for its dead letters alone; later segments may be deleted."""
    return f"{start:020d}-{end:020d}"


def parse_kept(name: str) -> tuple[int, int] | None:
    """The log positions `[start, end)`, None for what is no such segment."""
    start, _, end = name.partition("-")
    found = parse_segment(start), parse_segment(end)
    return None if found[0] is None or found[1] is None else (found[0], found[1])


class QueueFile(NamedTuple):
    """Name of one consume-queue file."""

    incarnation: int
    start: int  # offset of its first entry


def queue_folder(topic: str, queue_id: int) -> str:
    """Return the folder that holds the files of one queue."""
    return f"{CONSUME_QUEUE}/{topic}/{queue_id}"


def queue_file_name(incarnation: int, start: int) -> str:
    """Return the name of the file whose first entry is for offset `start`."""
    return f"{incarnation:010d}-{start:020d}"


def parse_queue_file(name: str) -> QueueFile | None:
    """None for what is no consume-queue file."""
    incarnation, dash, start = name.partition("-")
    if dash and len(incarnation) == 10 and len(start) == 20 and (incarnation + start).isdecimal():
        return QueueFile(int(incarnation), int(start))
    return None


def slice_name(number: int) -> str:
    """Return the name of the file of one slice of idempotency keys."""
    return f"{number:020d}"


def damaged_name(segment: int, position: int, length: int) -> str:
    """Return the name of the copy of a damaged range."""
    return f"{segment:020d}-{position:020d}-{length:010d}.bin"


ENTRIES = ".entries"
SORTED = ".sorted"
DIGITS = 20


def entries_name(segment_start: int) -> str:
    return f"{segment_start:0{DIGITS}d}{ENTRIES}"


def sorted_name(segment_start: int) -> str:
    return f"{segment_start:0{DIGITS}d}{SORTED}"


def parse(name: str) -> tuple[int, str] | None:
    """(segment start, suffix) of a finished file of the index; None for every other name."""
    digits, suffix = name[:DIGITS], name[DIGITS:]
    if suffix in (ENTRIES, SORTED) and len(digits) == DIGITS and digits.isascii() and digits.isdecimal():
        return int(digits), suffix
    return None


def segments(names: Iterable[str]) -> list[int]:
    """Starts of all segments that have an entries file, ascending."""
    found = (parse(name) for name in names)
    return sorted(entry[0] for entry in found if entry is not None and entry[1] == ENTRIES)
