"""File names of the index: the segment's start position in 20 digits, and what the file is."""

from __future__ import annotations

from collections.abc import Iterable

ENTRIES = ".entries"
SORTED = ".sorted"
UNFINISHED = ".new"
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
