"""The bytes around a call: Thrift framing and the compact protocol's message head. Pure.

A frame is a 4-byte big-endian length and a payload; a payload is a head (protocol, type, sequence id,
method) and one struct. The structs themselves are encoded and decoded by `ddmq_client.wire`; here they
are bytes. Because a Thrift struct's bytes do not depend on where it stands, a message is encoded once
and the frames of a send, a batch and a resend are joined from the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddmq_client.printable import printable

HEAD_BYTES_MAX = 128  # more than any head and argument frame of ours takes around the messages

CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
_PROTOCOL = 0x82
_VERSION = 1
_STOP = b"\x00"
_I64_FIELD = b"\x16"  # one field id further than the field before
_STRUCT_FIELD = b"\x1c"
_LIST_FIELD = b"\x19"
_STRUCT = 0x0C
_MESSAGES_FIELD = b"\x09\x06"  # of a PrepareRequest: list, its id 3 said in full
_TIMEOUT_BEHIND = b"\x26"  # behind it: i64, two ids further
_REPLIES_FIELD = b"\x09\x08"  # of a ReplyRequest: list, its id 4 said in full
_TIMEOUT_FIELD = b"\x06\x0a"  # of an EndTransactionRequest: i64, its id 5 said in full
_PRODUCER_ID_FIELD = b"\x08\xce\x01"  # of a Message: binary, its id 103 said in full


class FrameError(Exception):
    """Received bytes are not a valid answer: a bad length, another protocol or a malformed head."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class HttpAnswerError(FrameError):
    """An HTTP server answers, which has not understood the request."""


class ReplyHead(NamedTuple):
    """The head of an answer: the call that it answers, and the position of its struct."""

    kind: int  # REPLY or EXCEPTION
    sequence_id: int
    body_at: int


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def encode_varint(value: int) -> bytes:
    """Encode an unsigned number as a varint: groups of seven bits, the lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_zigzag(value: int) -> bytes:
    """Encode a signed 64-bit number as a zigzag varint, as the compact protocol does."""
    return encode_varint((value << 1) ^ (value >> 63))


def build_frame(chunks: Sequence[bytes]) -> bytes:
    """Join the chunks of a payload into one frame, with its length."""
    body = b"".join(chunks)
    return len(body).to_bytes(4, "big") + body


def call_head(method: bytes, sequence_id: int, kind: int = CALL) -> bytes:
    """Encode the head of a request."""
    return b"%c%c%b%b%b" % (
        _PROTOCOL,
        _VERSION | kind << 5,
        encode_varint(sequence_id),
        encode_varint(len(method)),
        method,
    )


def one_message_args(message: bytes, timeout_ms: int | None) -> tuple[bytes, ...]:
    """Encode the arguments (1 message, 2 timeout) as chunks of a frame; no timeout if it is None."""
    if timeout_ms is None:
        return _STRUCT_FIELD, message, _STOP
    return _STRUCT_FIELD, message, _I64_FIELD, encode_zigzag(timeout_ms), _STOP


def many_messages_args(messages: Sequence[bytes], timeout_ms: int | None) -> tuple[bytes, ...]:
    """Encode the arguments (1 list of messages, 2 timeout) as chunks of a frame."""
    tail = (_STOP,) if timeout_ms is None else (_I64_FIELD, encode_zigzag(timeout_ms), _STOP)
    return _LIST_FIELD, _list_head(len(messages)), *messages, *tail


def prepare_args(request: bytes, messages: Sequence[bytes], timeout_ms: int) -> tuple[bytes, ...]:
    """Complete an encoded PrepareRequest with messages and timeout, as chunks of a frame."""
    return _messages_between(_MESSAGES_FIELD, request, messages, timeout_ms)


def reply_args(request: bytes, messages: Sequence[bytes], timeout_ms: int) -> tuple[bytes, ...]:
    """Complete an encoded ReplyRequest with messages and timeout, as chunks of a frame."""
    return _messages_between(_REPLIES_FIELD, request, messages, timeout_ms)


def _messages_between(
    field: bytes, request: bytes, messages: Sequence[bytes], timeout_ms: int
) -> tuple[bytes, ...]:
    timeout = (_TIMEOUT_BEHIND, encode_zigzag(timeout_ms))
    head = (field, _list_head(len(messages)))
    return _STRUCT_FIELD, request[:-1], *head, *messages, *timeout, _STOP, _STOP


def end_args(request: bytes, timeout_ms: int) -> tuple[bytes, ...]:
    """Complete an encoded EndTransactionRequest with its timeout, as chunks of a frame."""
    return _STRUCT_FIELD, request[:-1], _TIMEOUT_FIELD, encode_zigzag(timeout_ms), _STOP, _STOP


def request_args(request: bytes) -> tuple[bytes, ...]:
    """Wrap a complete encoded request as a call's arguments, as chunks of a frame."""
    return _STRUCT_FIELD, request, _STOP


def _list_head(count: int) -> bytes:
    """Encode the head of a list of structs."""
    return bytes((count << 4 | _STRUCT,)) if count < 15 else bytes((0xF0 | _STRUCT,)) + encode_varint(count)


def producer_field(producer_id: bytes) -> bytes:
    """Encode field 103 (producer) of a Message and the header of field 104, which must follow it."""
    return b"%b%b%b%b" % (_PRODUCER_ID_FIELD, encode_varint(len(producer_id)), producer_id, _I64_FIELD)


def answered_below(sequence: int) -> bytes:
    """Encode field 105 (answered below), which follows field 104, and the end of the Message."""
    return _I64_FIELD + encode_varint(sequence << 1) + _STOP


def under_way(below: bytes, ms: int) -> bytes:
    """Insert field 106 (milliseconds under way) after field 105 in the bytes of `answered_below`."""
    return b"".join((below[:-1], _I64_FIELD, encode_varint(ms << 1), _STOP))


def with_number(message: bytes, producer: bytes, sequence: int, below: bytes) -> bytes:
    """Add the sequence number, fields 103 to 105, to an encoded message.

    `producer` and `below` come from `producer_field` and `answered_below`.
    """
    return b"".join((message[:-1], producer, encode_varint(sequence << 1), below))


def body_of_reply(payload: bytes, method: bytes, sequence_id: int) -> int | None:
    """Return the position of the struct in the expected kind of answer.

    None if `reply_head` must parse it.
    """
    head = call_head(method, sequence_id, REPLY)
    return len(head) if payload.startswith(head) else None


def reply_head(payload: bytes) -> ReplyHead:
    """Parse the head of an answer. Raises FrameError if it is invalid."""
    if len(payload) < 4 or payload[0] != _PROTOCOL or payload[1] & 0x1F != _VERSION:
        raise FrameError(f"not an answer in the compact protocol: starts with {payload[:4].hex()!r}")
    kind = payload[1] >> 5
    if kind not in (REPLY, EXCEPTION):
        raise FrameError(f"not an answer: message type {kind}, expected {REPLY} or {EXCEPTION}")
    sequence_id, at = _read_varint(payload, 2)
    name_bytes, at = _read_varint(payload, at)
    if at + name_bytes > len(payload):
        raise FrameError(f"method name of {name_bytes} bytes in an answer of {len(payload)}")
    return ReplyHead(kind, sequence_id, at + name_bytes)


def _read_varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(payload) and shift < 35:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise FrameError("a number in the answer's head does not end")


class FrameBuffer:
    """Splits received bytes into payloads. Holds at most one frame's bytes more than it was fed last."""

    __slots__ = ("_buffer", "_frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed_bytes(self, data: bytes) -> bytes | None:
        """Add received bytes; return a payload if one is complete, else None.

        Call with b"" for the next one.
        """
        buffer = self._buffer
        buffer += data
        if len(buffer) < 4:
            return None
        size = int.from_bytes(buffer[:4], "big")
        if size > self._frame_bytes_max:
            if buffer.startswith(b"HTTP"):
                raise HttpAnswerError("an HTTP server answers; is this an admin port? Check the address")
            raise FrameError(f"answer announces {size} bytes; at most {self._frame_bytes_max} are accepted")
        if len(buffer) < 4 + size:
            return None
        payload = bytes(memoryview(buffer)[4 : 4 + size])
        del buffer[: 4 + size]
        return payload
