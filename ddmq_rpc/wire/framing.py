"""Cut a byte stream into frames: a 4-byte big-endian length, then that many bytes. Pure.

A length that is negative or over the limit is refused as soon as its four bytes are there, before any
memory is taken for it. Memory follows what has really arrived, never what a length promises. Frames are
handed out with their length prefix still on, so that a frame that came alone in one piece is not copied.
"""

from __future__ import annotations

from struct import Struct

PREFIX_BYTES = 4
_LENGTH = Struct(">i")
_length_of = _LENGTH.unpack_from
pack_length = _LENGTH.pack


class FrameRefusedError(Exception):
    """The length cannot be taken; nothing after it on this stream makes sense."""

    def __init__(self, length: int, length_max: int) -> None:
        super().__init__(f"frame length is {length}; allowed: 0 to {length_max} bytes")
        self.length = length


class Frames:
    """The unread part of one stream.

    `feed` what arrived, and take frames until None: the first from `feed` itself, others from `next`.
    """

    __slots__ = ("_frame_bytes_max", "_rest")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest: bytes | bytearray = b""

    @property
    def held_bytes(self) -> int:
        """Bytes kept here: a frame that is not whole yet, or frames not taken yet."""
        return len(self._rest)

    def feed(self, data: bytes) -> bytes | None:
        """Add what arrived; the first whole frame, or None. Raises FrameRefusedError."""
        if self._rest:
            self.keep(data)
            return self.next()
        if len(data) >= PREFIX_BYTES:
            (length,) = _length_of(data)
            if length == len(data) - PREFIX_BYTES and 0 <= length <= self._frame_bytes_max:
                return data
        self._rest = data
        return self.next()

    def keep(self, data: bytes) -> None:
        """Add what arrived without looking at it."""
        if not self._rest:
            self._rest = data
            return
        if not isinstance(self._rest, bytearray):
            self._rest = bytearray(self._rest)
        self._rest += data

    def next(self) -> bytes | None:
        """The next whole frame, with its prefix, or None. Raises FrameRefusedError."""
        rest = self._rest
        if len(rest) < PREFIX_BYTES:
            return None
        (length,) = _length_of(rest)
        if not 0 <= length <= self._frame_bytes_max:
            raise FrameRefusedError(length, self._frame_bytes_max)
        end = PREFIX_BYTES + length
        if len(rest) < end:
            return None
        frame = bytes(rest) if len(rest) == end else bytes(memoryview(rest)[:end])
        self._drop(end)
        return frame

    def missing(self) -> int:
        """Bytes until the frame under way is whole; 0 when none is, or its length is not known."""
        if len(self._rest) < PREFIX_BYTES:
            return 0
        return max(PREFIX_BYTES + int(_length_of(self._rest)[0]) - len(self._rest), 0)

    def _drop(self, end: int) -> None:
        rest = self._rest
        if len(rest) == end:
            self._rest = b""
        elif isinstance(rest, bytearray):
            del rest[:end]
        else:
            self._rest = bytearray(memoryview(rest)[end:])
