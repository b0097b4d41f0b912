"""Requests as prebuilt bytes, compact protocol, so that a load generator costs as little as it can."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ddmq_common.delivery import varint, zigzag


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def call(method: str, arguments: bytes, seqid: int = 1) -> bytes:
    """A framed compact call."""
    name = method.encode()
    return frame(b"\x82\x21" + varint(seqid) + varint(len(name)) + name + arguments)


def text(value: bytes) -> bytes:
    return varint(len(value)) + value


def producer_message(topic: bytes, key: bytes, body: bytes, hash_id: int) -> bytes:
    """Message with topic, key, hashId, partitionId −1, body, version, as the Java client writes it."""
    return (
        b"\x18" + text(topic) + b"\x18" + text(key) + b"\x26" + zigzag(hash_id)
        + b"\x25" + zigzag(-1) + b"\x18" + text(body) + b"\x18" + text(b"bench") + b"\x00"
    )  # fmt: skip


def send_sync(topic: bytes, key: bytes, body: bytes, hash_id: int, timeout_ms: int = 5000) -> bytes:
    arguments = b"\x1c" + producer_message(topic, key, body, hash_id) + b"\x16" + zigzag(timeout_ms) + b"\x00"
    return call("sendSync", arguments)


def send_batch_sync(messages: Sequence[bytes]) -> bytes:
    """`messages`: what producer_message gave."""
    return call("sendBatchSync", b"\x19" + list_header(len(messages), 12) + b"".join(messages) + b"\x00")


def list_header(count: int, kind: int) -> bytes:
    return bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)


class Done(NamedTuple):
    """What became of messages of one queue."""

    qid: bytes
    succeeded: range | Sequence[int]
    failed: Sequence[int] = ()


def pull(
    group: bytes,
    topic: bytes,
    batch: int,
    linger_ms: int,
    acknowledged: tuple[bytes, range | list[int]] | None,
) -> bytes:
    """A pull; `acknowledged` = (qid, offsets) of the last answer."""
    done = () if acknowledged is None else (Done(*acknowledged),)
    return pull_with(group, topic, batch, linger_ms, done)


def pull_with(group: bytes, topic: bytes, batch: int, linger_ms: int, done: Sequence[Done]) -> bytes:
    """A pull with the results of any queues of the topic."""
    request = (
        b"\x18" + text(group) + b"\x18" + text(topic) + b"\x85" + zigzag(batch) + b"\x15" + zigzag(linger_ms)
    )
    if done:
        request += b"\x0c" + zigzag(50) + consume_result(group, topic, done)
    return call("pull", b"\x1c" + request + b"\x00" + b"\x00")


def submit(group: bytes, topic: bytes, done: Sequence[Done]) -> bytes:
    """Results alone."""
    return call("submit", b"\x1c" + consume_result(group, topic, done) + b"\x00")


def consume_result(group: bytes, topic: bytes, done: Sequence[Done]) -> bytes:
    """The linked list of ConsumeResults, one element a queue."""
    rest = b""
    for one in reversed(done):
        context = b"\x18" + text(group) + b"\x18" + text(topic) + b"\x18" + text(one.qid) + b"\x00"
        head = b"\x1c" + context + b"\x29" + numbers(one.succeeded) + b"\x19" + numbers(one.failed)
        rest = head + (b"\x6c" + rest if rest else b"") + b"\x00"
    return rest


def numbers(values: range | Sequence[int]) -> bytes:
    """A list of i64."""
    return list_header(len(values), 6) + b"".join(map(zigzag, values))


def reply_ok(payload: bytes) -> bool:
    """Whether a reply's Result has code 0 (the first field of the success struct)."""
    start = payload.find(b"\x0c\x00")
    return start >= 0 and payload[start + 2 : start + 4] == b"\x15\x00"


class Pulled(NamedTuple):
    """What a load generator needs of a pull's answer: whose, how many, and the offsets' last."""

    qid: bytes
    messages: int
    last: int

    @property
    def offsets(self) -> range:
        """All offsets, where the queue has no gaps."""
        return range(self.last - self.messages + 1, self.last + 1)


def pulled(payload: bytes) -> Pulled | None:
    """Read the ends of a compact PullResponse without decoding its messages; None for an empty one."""
    at = payload.find(b"\x0c\x00\x1c", 4) + 3
    if at < 3:
        raise AssertionError(f"not a PullResponse: {payload[:80]!r}")
    if payload[at] == 0:
        return None
    qid = b""
    while payload[at]:
        length, at = read_varint(payload, at + 1)
        qid = payload[at : at + length]
        at += length
    header = payload[at + 2]
    count = header >> 4 if header < 0xF0 else read_varint(payload, at + 3)[0]
    if count == 0:
        return None
    end = len(payload) - 3  # the stop bytes of result, response and message
    start = end - 1
    while payload[start - 1] & 0x80:
        start -= 1
    number, _ = read_varint(payload, start)
    return Pulled(qid, count, (number >> 1) ^ -(number & 1))


def _behind_map(payload: bytes, at: int) -> int:
    """Where a map of texts that begins at `at` ends."""
    size, at = read_varint(payload, at)
    at += 1 if size else 0
    for _ in range(2 * size):
        length, at = read_varint(payload, at)
        at += length
    return at


def offsets(payload: bytes, answer: Pulled) -> range | list[int]:
    """All offsets of an answer, also of one with gaps: each message's, behind its bytes.

    Messages are walked by the lengths of their fields (key, value, tag: texts; properties).
    """
    at = payload.find(b"\x0c\x00\x1c", 4) + 3
    while payload[at]:  # the context
        length, at = read_varint(payload, at + 1)
        at += length
    at += 3 if payload[at + 2] < 0xF0 else 2 + len(varint(answer.messages)) + 1
    numbers = []
    for _ in range(answer.messages):
        while payload[at] & 0x0F == 8:
            length, at = read_varint(payload, at + 1)
            at += length
        if payload[at] & 0x0F == 11:
            at = _behind_map(payload, at + 1)
        if payload[at : at + 2] != b"\x06\x08":
            raise AssertionError(f"no offset in {payload[at : at + 20]!r}")
        number, at = read_varint(payload, at + 2)
        numbers.append(number >> 1)
        at += 1
    return numbers


def read_varint(payload: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = payload[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
