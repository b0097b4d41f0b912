"""The keys and values of the delay store as bytes (docs/formats-delay.md has the tables).

A key is one byte for the kind, then what sorts, big-endian and of fixed width; every kind's keys stand in
[prefix, prefix + 1). A value is a version byte, then the content; RocksDB keeps a checksum per block.
Whatever does not parse is a DamagedError, never a message; what a newer release wrote is a NewerFormatError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from ddmq_common.errors import DamagedError, NewerFormatError, newer_format
from delay_service.store.port import DueKey, IdKind, IdState, Pending

DUE, ID, FORGET, ASIDE, COUNT, META, DUE_COUNT = b"d", b"i", b"x", b"w", b"c", b"m", b"h"
SENDER = b"s"
UUID_BYTES = 16
DUE_MS_MAX = OFFSET_MAX = (1 << 63) - 1

_DUE = struct.Struct(">cQQ")
_DUE_TAIL = struct.Struct(">QQ")
_FORGET = struct.Struct(">cQ16s")
_pack_due = _DUE.pack
VERSION = 1
_PREFIX = bytes((VERSION,))
_STATE = struct.Struct(">BBQQQ")
_COUNT = struct.Struct(">BQQQ")
_COUNT_1 = struct.Struct(">BQQ")  # as the first release wrote it, without bytes
_COUNT_VERSION = 2
_SENDER_COUNT = struct.Struct(">BQ")
_DAY_COUNT, _HOUR_COUNT = b"d", b"h"  # the two kinds of blocks
_BLOCK_NUMBER = struct.Struct(">Q")
COUNTED_NONE, COUNTED_ALL = DueKey(-1, 0), DueKey(DUE_MS_MAX, OFFSET_MAX)
COUNTED_KEY = META + b".counted"
COUNTED_EPOCH_KEY = META + b".counted-epoch"
COUNT_ROUND_KEY = META + b".counted-round"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pending).decode
_pack_state = _STATE.pack
_KINDS = {int(kind): kind for kind in IdKind}


# --- keys


def range_end(prefix: bytes) -> bytes:
    """Return the exclusive end of the range of keys with this prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


DUE_END, ID_END, FORGET_END, ASIDE_END, COUNT_END, META_END, DUE_COUNT_END, SENDER_END = map(
    range_end, (DUE, ID, FORGET, ASIDE, COUNT, META, DUE_COUNT, SENDER)
)


def due_key(due_ms: int, offset: int) -> bytes:
    """Return the `d` key: due time, then offset."""
    return _pack_due(DUE, due_ms, offset)


def due_keys(messages: list[Pending]) -> list[bytes]:
    """Return the `d` keys of these messages."""
    return [_pack_due(DUE, message[0], message[1]) for message in messages]


def read_due(key: bytes) -> DueKey:
    """Parse the due time and offset of a `d` or `w` key."""
    return DueKey(*_DUE_TAIL.unpack_from(key, len(key) - _DUE_TAIL.size))


def just_after(key: DueKey) -> bytes:
    """Return the smallest `d` key that is greater than that of `key`."""
    return _pack_due(DUE, key.due_ms, key.offset) + b"\0"


def aside_prefix(topic: str) -> bytes:
    """Return the prefix of the `w` keys of a topic's deferred messages: `w`, topic, 0."""
    return b"%b%b\0" % (ASIDE, topic.encode())


def aside_key(topic: str, due_ms: int, offset: int) -> bytes:
    """Return the `w` key of a deferred message: `w`, topic, 0, due time, offset."""
    return aside_prefix(topic) + _DUE_TAIL.pack(due_ms, offset)


def forget_key(moment_ms: int, uuid: bytes) -> bytes:
    """Return the `x` key, under which an id's expiry is stored: `x`, moment, uuid."""
    return _FORGET.pack(FORGET, moment_ms, uuid)


def read_forget(key: bytes) -> tuple[int, bytes]:
    """Parse an `x` key; return the moment and the uuid."""
    _, moment_ms, uuid = _FORGET.unpack(key)
    return moment_ms, uuid


def hour_count_key(topic: str, hour: int) -> bytes:
    """Return the key of the block with the counts of an hour's minutes: `h`, topic, 0, `h`, hour."""
    return b"%b%b\0%b%b" % (DUE_COUNT, topic.encode(), _HOUR_COUNT, _BLOCK_NUMBER.pack(hour))


def day_count_key(topic: str, day: int) -> bytes:
    """Return the key of the block with the counts of a day's hours: `h`, topic, 0, `d`, day."""
    return b"%b%b\0%b%b" % (DUE_COUNT, topic.encode(), _DAY_COUNT, _BLOCK_NUMBER.pack(day))


def day_count_range(topic: str) -> tuple[bytes, bytes]:
    """Return the range `[start, end)` of the keys of a topic's day blocks."""
    prefix = b"%b%b\0%b" % (DUE_COUNT, topic.encode(), _DAY_COUNT)
    return prefix, range_end(prefix)


def count_row_key(number: int) -> bytes:
    """Return the key of a row of changes that the blocks do not have yet; its number begins at 0."""
    return b"%b.counted-row-%04d" % (META, number)


def is_day_count(key: bytes) -> bool:
    """Return whether the key is that of a day block, not of an hour block."""
    return key[-_BLOCK_NUMBER.size - 1 : -_BLOCK_NUMBER.size] == _DAY_COUNT


def read_count_number(key: bytes) -> int:
    """Parse the number of the hour or day of a block's key."""
    number: int = _BLOCK_NUMBER.unpack_from(key, len(key) - _BLOCK_NUMBER.size)[0]
    return number


# --- values


def encode_pending(message: Pending) -> bytes:
    """Encode a waiting message: a version byte and its fields as a msgpack array."""
    return _PREFIX + _encode(message)


def decode_pending(value: bytes) -> Pending:
    """Decode a waiting message. Raises DamagedError."""
    if value[:1] != _PREFIX:
        raise unreadable_value("pending message", value)
    try:
        return _decode(value[1:])
    except msgspec.DecodeError as error:
        raise DamagedError(f"a pending message of {len(value)} bytes does not parse: {error}") from error


def encode_all(messages: Iterable[Pending]) -> list[bytes]:
    """Encode many waiting messages, as `encode_pending` does but faster."""
    return [_PREFIX + _encode(message) for message in messages]


def decode_all(pairs: Iterable[tuple[bytes, bytes]]) -> list[Pending]:
    """Decode the waiting messages in the values of these pairs, as `decode_pending` does."""
    try:
        return [_decode(value[1:]) if value[0] == VERSION else decode_pending(value) for _, value in pairs]
    except (msgspec.DecodeError, IndexError) as error:
        raise DamagedError(f"a pending message does not parse: {error}") from error


def encode_state(state: IdState) -> bytes:
    """Encode the state of an id: version, kind, at, offset, forget."""
    return _pack_state(VERSION, *state)


def decode_state(value: bytes) -> IdState:
    """Decode the stored state of a delay id. Raises DamagedError."""
    if value[:1] != _PREFIX:
        raise unreadable_value("state of an id", value)
    try:
        _, kind, at_ms, offset, forget_ms = _STATE.unpack(value)
        return IdState(_KINDS[kind], at_ms, offset, forget_ms)
    except (struct.error, KeyError) as error:
        raise DamagedError(f"the state of an id, {value.hex()}, does not parse") from error


def encode_count(pending: int, aside: int, pending_bytes: int) -> bytes:
    """Encode a topic's counters: version, waiting messages, deferred ones among them, and bytes."""
    return _COUNT.pack(_COUNT_VERSION, pending, aside, pending_bytes)


def decode_count(value: bytes) -> tuple[int, int, int]:
    """Decode a topic's counters. Raises DamagedError. Values of the first release have 0 bytes."""
    if value[:1] == _PREFIX and len(value) == _COUNT_1.size:
        _, pending, aside = _COUNT_1.unpack(value)
        return pending, aside, 0
    if value[:1] != bytes((_COUNT_VERSION,)) or len(value) != _COUNT.size:
        raise unreadable_value("count of a topic", value, _COUNT_VERSION)
    _, pending, aside, pending_bytes = _COUNT.unpack(value)
    return pending, aside, pending_bytes


def encode_sender_count(pending: int) -> bytes:
    """Encode the number of waiting messages of an identity."""
    return _SENDER_COUNT.pack(VERSION, pending)


def decode_sender_count(value: bytes) -> int:
    """Decode the number of waiting messages of an identity. Raises DamagedError."""
    if value[:1] != _PREFIX or len(value) != _SENDER_COUNT.size:
        raise unreadable_value("count of an identity", value)
    pending: int = _SENDER_COUNT.unpack(value)[1]
    return pending


def encode_position(key: DueKey) -> bytes:
    """Encode the position up to which messages are counted: due time and offset as decimal numbers."""
    return b"%d %d" % key


def decode_position(value: bytes) -> DueKey:
    """Decode a position. Raises DamagedError."""
    try:
        due_ms, offset = map(int, value.split(b" "))
    except ValueError as error:
        raise DamagedError(f"a position in the delay store, {value.hex()}, does not parse") from error
    return DueKey(due_ms, offset)


def unreadable_value(what: str, value: bytes, version: int = VERSION) -> DamagedError | NewerFormatError:
    """Return the error for a value that cannot be decoded: NewerFormatError for a higher version, else
    DamagedError.
    """
    if value[:1] > bytes((version,)):
        return newer_format(f"a {what} in the delay store", value[0], version)
    return DamagedError(
        f"a {what} of {len(value)} bytes starts with version {value[:1].hex() or 'none'};"
        f" this program reads version {version}"
    )
