"""Frame headers: one frame of the commit log is one group commit (docs/formats.md).

Rules: a header is believed only when its CRC is right, it names the position it was found at, and it says of
nothing behind itself that it is durable. The CRC starts from the directory's salt, 0 in what was written
before there was one: nobody who knows only what he sends can make a header.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

FRAME_MAGIC = b"DQF1"
FRAME_VERSION = 2  # with a salt
UNSALTED_VERSION = 1
VERSION_AT = 8
_FRONT = struct.Struct("<4sI")
_REST = struct.Struct("<B3xIIIQQQq")
FRAME_BYTES = _FRONT.size + _REST.size


class Salting(NamedTuple):
    """Of one directory: where the CRCs of frames and records start, from 1 to 2^32 − 1.

    It is random and leaves the machine nowhere, so no byte that a client sends can be taken for a frame or
    record when recovery looks for the next sound one. Segments that start before `since` were written without
    one (salt 0).
    """

    salt: int
    since: int  # log position: where the first segment with it starts

    def of_segment(self, start: int) -> int:
        """The salt of the segment that starts at this log position; 0: it has none."""
        return self.salt if start >= self.since else 0


UNSALTED = Salting(0, 0)


class Frame(NamedTuple):
    """A sound frame header."""

    records: int
    payload_bytes: int
    writer_epoch: int
    position: int
    batch_id: int
    durable: int  # everything below was durable before this frame was written
    stored_ms: int

    @property
    def end(self) -> int:
        """Log position behind the frame."""
        return self.position + FRAME_BYTES + self.payload_bytes


def version_of(salt: int) -> int:
    """Of frames and records that are written with this salt."""
    return FRAME_VERSION if salt else UNSALTED_VERSION


def pack_frame(frame: Frame, salt: int = 0) -> bytes:
    """The header's bytes."""
    rest = _REST.pack(version_of(salt), *frame)
    return _FRONT.pack(FRAME_MAGIC, google_crc32c.extend(salt, rest)) + rest


def unpack_frame(data: bytes, position: int, salt: int = 0) -> Frame | None:
    """The header at the start of `data`, which was read at log position `position`; None when not sound."""
    if frame_version(data, position, salt) != version_of(salt):
        return None
    frame = Frame(*_REST.unpack(data[_FRONT.size : FRAME_BYTES])[1:])
    return frame if frame.durable <= position else None


def frame_version(data: bytes, position: int, salt: int) -> int | None:
    """The version of the header at the start of `data`, whatever it is; None when CRC or place is wrong."""
    if len(data) < FRAME_BYTES:
        return None
    magic, crc = _FRONT.unpack_from(data)
    rest = data[_FRONT.size : FRAME_BYTES]
    if magic != FRAME_MAGIC or google_crc32c.extend(salt, rest) != crc:
        return None
    version: int = rest[0]
    return version if _REST.unpack(rest)[4] == position else None


def salt_of(data: bytes, position: int) -> tuple[int, int] | None:
    """(version, salt) of the header at the start of `data`, where only its place is known; None when what it
    says of magic and position is wrong. Whether that is the salt, another piece has to show."""
    if len(data) < FRAME_BYTES:
        return None
    magic, crc = _FRONT.unpack_from(data)
    rest = data[_FRONT.size : FRAME_BYTES]
    if magic != FRAME_MAGIC or _REST.unpack(rest)[4] != position:
        return None
    return rest[0], crc_start(rest, crc)


def crc_start(data: bytes, crc: int) -> int:
    """The value from which the CRC of `data` has to start to become `crc`: it is linear in it."""
    zero = google_crc32c.extend(0, data)
    rows = [(google_crc32c.extend(1 << bit, data) ^ zero, 1 << bit) for bit in range(32)]
    wanted, start = crc ^ zero, 0
    for bit in reversed(range(32)):
        pivot = next(row for row in rows if row[0].bit_length() == bit + 1)
        rows = [
            (row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0].bit_length() == bit + 1 else row
            for row in rows
            if row is not pivot
        ]
        if wanted >> bit & 1:
            wanted, start = wanted ^ pivot[0], start ^ pivot[1]
    return start
