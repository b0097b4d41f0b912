"""Messages that tell their key and their number in it, so that a load generator can prove order.

The end of a body is MARK, key number, number within the key, and the moment its sending was due; the
offset follows it in an answer. A key's messages go to one queue always (hash id = key number).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from bench import frames, load
from bench.servers import Running

MARK = b"\xfeKEY\xfe"
TAIL = struct.Struct(">IId")
_MESSAGE = re.compile(MARK + rb"(.{16})\x06\x08([\x80-\xff]*[\x00-\x7f])\x00", re.DOTALL)
BATCH = 100


class Message(NamedTuple):
    """One message of an answer. `due`: in seconds, 0 where nobody gave one."""

    offset: int
    key: int
    number: int
    due: float


def body(size: int, key: int, number: int, due: float = 0.0) -> bytes:
    """A body of `size` bytes."""
    return bytes(size - len(MARK) - TAIL.size) + MARK + TAIL.pack(key, number, due)


def message(topic: bytes, size: int, key: int, number: int) -> bytes:
    """For frames.send_batch_sync."""
    return frames.producer_message(topic, b"k%d" % key, body(size, key, number), key)


def read_messages(payload: bytes) -> list[Message]:
    """The messages of a pull's answer, in its order."""
    messages = []
    for tail, offset in _MESSAGE.findall(payload):
        number, _ = frames.read_varint(offset, 0)
        messages.append(Message(number >> 1, *TAIL.unpack(tail)))
    return messages


def fill(server: Running, topic: bytes, size: int, messages: Iterator[tuple[int, int]]) -> int:
    """Store messages (key, number within it) in this order, by one connection; how many there were."""
    connection = load.connect(server.addresses["producer"], 1)
    stored = 0

    def next_frame(_: int, reply: bytes | None) -> bytes | None:
        nonlocal stored
        if reply is not None and not frames.reply_ok(reply):
            raise AssertionError(f"not stored: {reply!r}")
        batch = [message(topic, size, *one) for _, one in zip(range(BATCH), messages, strict=False)]
        stored += len(batch)
        return frames.send_batch_sync(batch) if batch else None

    load.closed_loop(connection, next_frame)
    connection[0].close()
    return stored
