"""Keys of the delay store: one byte for the kind, then what sorts, big-endian and of fixed width.

docs/formats-delay.md has the table. Every kind's keys stand in [prefix, prefix + 1).
"""

from __future__ import annotations

import struct

from delay_service.store.port import DueKey, Pending

DUE, ID, FORGET, ASIDE, COUNT, META = b"d", b"i", b"x", b"w", b"c", b"m"
UUID_BYTES = 16
DUE_MS_MAX = OFFSET_MAX = (1 << 63) - 1

_DUE = struct.Struct(">cQQ")
_DUE_TAIL = struct.Struct(">QQ")
_FORGET = struct.Struct(">cQ16s")

_pack_due = _DUE.pack


def after(prefix: bytes) -> bytes:
    """The end of a prefix's range."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


DUE_END, ID_END, FORGET_END, ASIDE_END, COUNT_END, META_END = map(
    after, (DUE, ID, FORGET, ASIDE, COUNT, META)
)


def due_key(due_ms: int, offset: int) -> bytes:
    """`d`, due time, offset."""
    return _pack_due(DUE, due_ms, offset)


def due_keys(messages: list[Pending]) -> list[bytes]:
    """Of many messages."""
    return [_pack_due(DUE, message[0], message[1]) for message in messages]


def read_due(key: bytes) -> DueKey:
    """Of a `d` or `w` key."""
    return DueKey(*_DUE_TAIL.unpack_from(key, len(key) - _DUE_TAIL.size))


def just_after(key: DueKey) -> bytes:
    """The smallest `d` key behind `key`."""
    return _pack_due(DUE, key.due_ms, key.offset) + b"\0"


def aside_prefix(topic: str) -> bytes:
    """`w`, topic, 0: a topic's messages that are put aside."""
    return b"%b%b\0" % (ASIDE, topic.encode())


def aside_key(topic: str, due_ms: int, offset: int) -> bytes:
    """`w`, topic, 0, due time, offset."""
    return aside_prefix(topic) + _DUE_TAIL.pack(due_ms, offset)


def forget_key(moment_ms: int, uuid: bytes) -> bytes:
    """`x`, moment, uuid."""
    return _FORGET.pack(FORGET, moment_ms, uuid)


def read_forget(key: bytes) -> tuple[int, bytes]:
    """Moment and uuid of an `x` key."""
    _, moment_ms, uuid = _FORGET.unpack(key)
    return moment_ms, uuid
