"""Frames and message headers: the bytes that precede a struct on the wire. Pure.

A frame is a 4-byte big-endian length and that many bytes. A length that is negative or over the limit is
rejected as soon as its four bytes are there, before any memory is taken for it: memory follows what has
really arrived, never what a length promises. Frames keep their length prefix, so that one that came alone in
one piece is not copied; a payload starts at byte 4.

The header is parsed and built by hand for both protocols. Compact: 0x82, (type << 5 | 1), sequence id as
varint, name. Strict binary: 0x80 0x01 0x00 type, name, sequence id as i32. Names are a length and bytes. The
sequence id is echoed as the bytes that came.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ddmq_common.delivery import varint
from ddmq_rpc.api import Wire

PREFIX_BYTES = 4
_LENGTH = Struct(">i")
_length_of = _LENGTH.unpack_from
pack_length = _LENGTH.pack


class FrameLengthError(Exception):
    """The frame length is outside its bounds, so the rest of the stream cannot be parsed."""

    def __init__(self, length: int, length_max: int) -> None:
        super().__init__(f"frame length is {length}; allowed: 0 to {length_max} bytes")
        self.length = length


class Frames:
    """The received and unparsed bytes of one stream.

    Pass received bytes to `feed_bytes`, which returns the first complete frame; `next_frame` returns the
    others until None.
    """

    __slots__ = ("_frame_bytes_max", "_rest")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest: bytes | bytearray = b""

    @property
    def buffered_bytes(self) -> int:
        """Return the number of buffered bytes: a partial frame, or frames not yet returned."""
        return len(self._rest)

    def feed_bytes(self, data: bytes) -> bytes | None:
        """Add received bytes; return the first complete frame, or None. Raises FrameLengthError."""
        if self._rest:
            self.keep_bytes(data)
            return self.next_frame()
        if len(data) >= PREFIX_BYTES:
            (length,) = _length_of(data)
            if length == len(data) - PREFIX_BYTES and 0 <= length <= self._frame_bytes_max:
                return data
        self._rest = data
        return self.next_frame()

    def keep_bytes(self, data: bytes) -> None:
        """Add received bytes without looking for a frame."""
        if not self._rest:
            self._rest = data
            return
        if not isinstance(self._rest, bytearray):
            self._rest = bytearray(self._rest)
        self._rest += data

    def next_frame(self) -> bytes | None:
        """Return the next complete frame, with its prefix, or None. Raises FrameLengthError."""
        rest = self._rest
        if len(rest) < PREFIX_BYTES:
            return None
        (length,) = _length_of(rest)
        if not 0 <= length <= self._frame_bytes_max:
            raise FrameLengthError(length, self._frame_bytes_max)
        end = PREFIX_BYTES + length
        if len(rest) < end:
            return None
        frame = bytes(rest) if len(rest) == end else bytes(memoryview(rest)[:end])
        self._drop_bytes(end)
        return frame

    def missing_bytes(self) -> int:
        """Return how many bytes the partial frame lacks; 0 if there is none or its length is not known
        yet."""
        if len(self._rest) < PREFIX_BYTES:
            return 0
        return max(PREFIX_BYTES + int(_length_of(self._rest)[0]) - len(self._rest), 0)

    def _drop_bytes(self, end: int) -> None:
        rest = self._rest
        if len(rest) == end:
            self._rest = b""
        elif isinstance(rest, bytearray):
            del rest[:end]
        else:
            self._rest = bytearray(memoryview(rest)[end:])


CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
NAME_BYTES_MAX = 1_024
_SEQUENCE_BYTES_MAX = 10  # a varint of 64 bits, as some clients write negative ids
_I32 = Struct(">i")


class HeaderError(Exception):
    """The message header cannot be parsed. The readable fields are kept for the answer."""

    def __init__(self, text: str, wire: Wire = Wire.COMPACT, sequence: bytes = b"\x00") -> None:
        super().__init__(text)
        self.wire = wire
        self.sequence = sequence


class Header(NamedTuple):
    """The decoded header of an RPC message. `sequence`: the call's id in wire format.

    `body_at`: the index of the struct's first byte.
    """

    wire: Wire
    kind: int
    name: bytes
    sequence: bytes
    body_at: int


_COMPACT, _BINARY = Wire.COMPACT, Wire.BINARY
_new_header = Header._make


def read_header(frame: bytes) -> Header:
    """Parse the header of a frame that has its length prefix. Raises HeaderError."""
    first = frame[4] if len(frame) > PREFIX_BYTES else 0
    try:
        if first == 0x82:
            return _read_compact(frame)
        if first == 0x80:
            return _read_binary(frame)
    except IndexError:
        text = f"message header is cut off after {len(frame) - PREFIX_BYTES} bytes"
        if first == 0x80:
            raise HeaderError(text, _BINARY, bytes(4)) from None
        raise HeaderError(text) from None
    if len(frame) == PREFIX_BYTES:
        raise HeaderError("the frame is empty; allowed: a message of the compact or strict binary protocol")
    raise HeaderError(f"first byte is 0x{first:02x}; allowed: 0x82 (compact) or 0x80 (strict binary)")


def _read_compact(frame: bytes) -> Header:
    kind = frame[5]
    if kind & 31 != 1:
        raise HeaderError(f"compact protocol version is {kind & 31}; allowed: 1")
    at = 7
    while frame[at - 1] > 127:
        at += 1
        if at > 6 + _SEQUENCE_BYTES_MAX:
            raise HeaderError(f"sequence id is longer than {_SEQUENCE_BYTES_MAX} bytes")
    sequence = frame[6:at]
    length = frame[at]
    at += 1
    if length > 127:
        length += (frame[at] << 7) - 128
        at += 1
    end = at + length
    if length > NAME_BYTES_MAX or end > len(frame):
        raise HeaderError(_describe_name_error(length), _COMPACT, sequence)
    return _new_header((_COMPACT, kind >> 5, frame[at:end], sequence, end))


def _read_binary(frame: bytes) -> Header:
    if frame[5] != 1:
        raise HeaderError(
            f"binary protocol version is 0x80{frame[5]:02x}; allowed: 0x8001", _BINARY, bytes(4)
        )
    if len(frame) < 16:
        raise IndexError
    (length,) = _I32.unpack_from(frame, 8)
    end = 12 + length
    if not 0 <= length <= NAME_BYTES_MAX or end + 4 > len(frame):
        raise HeaderError(_describe_name_error(length), _BINARY, bytes(4))
    return _new_header((_BINARY, frame[7], frame[12:end], frame[end : end + 4], end + 4))


def _describe_name_error(length: int) -> str:
    return f"method name of {length} bytes; allowed: at most {NAME_BYTES_MAX}, and inside the frame"


def sequence_bytes(wire: Wire, sequence: int) -> bytes:
    """Encode a 32-bit sequence id, which may be negative, in the protocol's format."""
    if not -(1 << 31) <= sequence < 1 << 31:
        raise ValueError(f"sequence id is {sequence}; allowed: 32 bits with sign")
    return varint(sequence & 0xFFFFFFFF) if wire is _COMPACT else _I32.pack(sequence)


def sequence_number(wire: Wire, raw: bytes) -> int:
    """Decode a 32-bit sequence id from the protocol's format."""
    if wire is _COMPACT:
        number = sum((byte & 127) << 7 * index for index, byte in enumerate(raw)) & 0xFFFFFFFF
        return number - (1 << 32) if number >> 31 else number
    return int(_I32.unpack(raw)[0])


class Envelope:
    """Builds the messages of one method and one message type in both protocols. The name is encoded once."""

    __slots__ = ("_binary_head", "_compact_kind", "_compact_name")

    def __init__(self, name: bytes, kind: int) -> None:
        self._compact_kind = bytes((0x82, kind << 5 | 1))
        self._compact_name = varint(len(name)) + name
        self._binary_head = b"\x80\x01\x00%c%b%b" % (kind, _I32.pack(len(name)), name)

    def build_head(self, wire: Wire, sequence: bytes, body_bytes: int) -> bytes:
        """Build the length prefix and header of a message whose struct has `body_bytes` bytes."""
        if wire is _COMPACT:
            name = self._compact_name
            length = pack_length(2 + len(sequence) + len(name) + body_bytes)
            return b"%b%b%b%b" % (length, self._compact_kind, sequence, name)
        head = self._binary_head
        return b"%b%b%b" % (pack_length(len(head) + 4 + body_bytes), head, sequence)

    def build_frame(self, wire: Wire, sequence: bytes, body: bytes) -> bytes:
        """Build a complete frame around an encoded struct."""
        if wire is _COMPACT:
            name = self._compact_name
            length = pack_length(2 + len(sequence) + len(name) + len(body))
            return b"%b%b%b%b%b" % (length, self._compact_kind, sequence, name, body)
        head = self._binary_head
        return b"%b%b%b%b" % (pack_length(len(head) + 4 + len(body)), head, sequence, body)
