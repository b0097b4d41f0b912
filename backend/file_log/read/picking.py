"""What a read asks for, and which consume-queue entries it has to look at: all of a run, or by tag hash.

Choosing by tag touches no record. Rules: an entry whose checksum is wrong says nothing, not even its tag,
so it is always chosen and looked into; a run of entries is checked by one CRC over all of it. That one
CRC suffices because an entry ends in its own: each sound entry takes the CRC's state over to the next in
the same way whatever is in it, so that n sound entries have the CRC of n sound entries of any content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import google_crc32c

from backend.file_log.consume_queue import QueueFiles
from backend.file_log.core.layout import ENTRY_BYTES, GAP_ENTRY, entry_is_sound
from backend.records import QueueRef

HUB_ENTRIES = 4096  # of them are looked through on the hub; a longer search goes to a thread
_TAG_AT = 12  # of the tag hash in an entry
_HASH = Struct("<I")


class Ask(NamedTuple):
    """The arguments of Backend.read."""

    queue: QueueRef
    offset: int
    count_max: int
    bytes_max: int
    tags: frozenset[int] | None = None

    @property
    def entries_max(self) -> int:
        """How many entries are looked at first."""
        return self.count_max if self.tags is None else HUB_ENTRIES


class Picked(NamedTuple):
    """The entries to read records by, their offsets, and where to go on when all of them are read."""

    entries: bytes
    offsets: Sequence[int]
    after: int


def pick(ask: Ask, entries: bytes) -> Picked:
    """Choose from `entries`, which start at the asked offset."""
    count = len(entries) // ENTRY_BYTES
    if ask.tags is None:
        return Picked(entries, range(ask.offset, ask.offset + count), ask.offset + count)
    places = list(_first(_places(entries, ask.tags), ask.count_max + 1))
    after = count
    if len(places) > ask.count_max:
        after = places.pop()
    chosen = b"".join([entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] for at in places])
    return Picked(chosen, [ask.offset + at for at in places], ask.offset + after)


def _first(places: Iterator[int], count: int) -> Iterator[int]:
    return (place for _, place in zip(range(count), places, strict=False))


def _places(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    return _tagged(entries, tags) if all_sound(entries) else _tagged_or_unsound(entries, tags)


def all_sound(entries: bytes) -> bool:
    """Whether every entry of a run has the right CRC."""
    return bool(google_crc32c.value(entries) == _crc_of_sound(len(entries) // ENTRY_BYTES))


@lru_cache(maxsize=8)
def _crc_of_sound(count: int) -> int:
    found: int = google_crc32c.value(GAP_ENTRY * count)
    return found


def _tagged(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    """Places of entries with one of the tag hashes: their lowest bytes first, with string searches."""
    lowest = entries[_TAG_AT::ENTRY_BYTES].translate(_is_lowest(tags))
    unpack = _HASH.unpack_from
    at = lowest.find(1)
    while at >= 0:
        if unpack(entries, at * ENTRY_BYTES + _TAG_AT)[0] in tags:
            yield at
        at = lowest.find(1, at + 1)


@lru_cache(maxsize=64)
def _is_lowest(tags: frozenset[int]) -> bytes:
    lowest = {tag & 255 for tag in tags}
    return bytes(byte in lowest for byte in range(256))


def _tagged_or_unsound(entries: bytes, tags: frozenset[int]) -> Iterator[int]:
    """The same where something is wrong: one by one."""
    for at in range(len(entries) // ENTRY_BYTES):
        entry = entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES]
        if _HASH.unpack_from(entry, _TAG_AT)[0] in tags or not entry_is_sound(entry):
            yield at


def search(ask: Ask, files: QueueFiles, end: int) -> Picked:
    """Go on until something is chosen, or to `end`, or as far as the files reach. Blocking."""
    at = ask.offset
    while True:
        entries = files.read(ask.queue, at, min(HUB_ENTRIES, end - at))
        picked = pick(ask._replace(offset=at), entries)
        if picked.entries or not entries or picked.after >= end:
            return picked
        at = picked.after
