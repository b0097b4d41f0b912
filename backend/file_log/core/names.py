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
    """Parse the start position from a segment's name; None for other names."""
    return int(name) if len(name) == 20 and name.isascii() and name.isdecimal() else None


def dead_letter_segment_name(start: int, end: int) -> str:
    """Return the file name of a dead-letter segment: one that is retained only for its dead letters."""
    return f"{start:020d}-{end:020d}"


def parse_dead_letter_segment(name: str) -> tuple[int, int] | None:
    """Parse the log positions `[start, end)` from a dead-letter segment's file name; None for other names."""
    start, _, end = name.partition("-")
    range_ = parse_segment(start), parse_segment(end)
    return None if range_[0] is None or range_[1] is None else (range_[0], range_[1])


class QueueFile(NamedTuple):
    """The parsed name of one consume-queue file."""

    incarnation: int
    start: int  # offset of its first entry


def queue_folder(topic: str, queue_id: int) -> str:
    """Return the folder that holds the files of one queue."""
    return f"{CONSUME_QUEUE}/{topic}/{queue_id}"


def queue_file_name(incarnation: int, start: int) -> str:
    """Return the name of the file whose first entry is for offset `start`."""
    return f"{incarnation:010d}-{start:020d}"


def parse_queue_file(name: str) -> QueueFile | None:
    """Parse the name of a consume-queue file; None for other names."""
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


def parse_index_file(name: str) -> tuple[int, str] | None:
    """Parse (segment start, suffix) from the name of a finished index file; None for other names."""
    digits, suffix = name[:DIGITS], name[DIGITS:]
    if suffix in (ENTRIES, SORTED) and len(digits) == DIGITS and digits.isascii() and digits.isdecimal():
        return int(digits), suffix
    return None


def indexed_segments(names: Iterable[str]) -> list[int]:
    """Return the starts of all segments that have an entries file, ascending."""
    parsed = (parse_index_file(name) for name in names)
    return sorted(entry[0] for entry in parsed if entry is not None and entry[1] == ENTRIES)
