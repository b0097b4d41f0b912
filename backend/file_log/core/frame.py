"""Frame headers: one frame of the commit log is one group commit (docs/formats.md).

Rules: a header is believed only when its CRC is right and it names the position it was found at.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

FRAME_MAGIC = b"DQF1"
FRAME_VERSION = 1
_FRONT = struct.Struct("<4sI")
_REST = struct.Struct("<B3xIIIQQQq")
FRAME_BYTES = _FRONT.size + _REST.size


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


def pack_frame(frame: Frame) -> bytes:
    """The header's bytes."""
    rest = _REST.pack(FRAME_VERSION, *frame)
    return _FRONT.pack(FRAME_MAGIC, google_crc32c.value(rest)) + rest


def unpack_frame(data: bytes, position: int) -> Frame | None:
    """The header at the start of `data`, which was read at log position `position`; None when not sound."""
    if len(data) < FRAME_BYTES:
        return None
    magic, crc = _FRONT.unpack_from(data)
    rest = data[_FRONT.size : FRAME_BYTES]
    if magic != FRAME_MAGIC or google_crc32c.value(rest) != crc:
        return None
    version, *fields = _REST.unpack(rest)
    frame = Frame(*fields)
    return frame if version == FRAME_VERSION and frame.position == position else None
