"""The newest messages of a shard that are kept: bounded, however small they are."""

from __future__ import annotations

from ddmq_common.delivery import encode
from proxy_producer.transactions.codec import HalfMark, HalfMessage
from proxy_producer.transactions.reading import KEPT_BYTES, KEPT_BYTES_MAX, RecentMessages

MARK = HalfMark("0" * 32, "g", "orders", 0)


def half(offset: int, body: bytes) -> HalfMessage:
    return HalfMessage(offset, bytes(16), 0, 0, encode(b"", body, b"", None), MARK, b"", b"", "")


def test_tiny_messages_are_not_kept_without_end() -> None:
    kept = RecentMessages()
    count = 2 * KEPT_BYTES_MAX // KEPT_BYTES
    for offset in range(count):
        kept.put(half(offset, b"x"))
    there = [offset for offset in range(count) if kept.get(offset) is not None]
    assert 0 < len(there) <= KEPT_BYTES_MAX // KEPT_BYTES
    assert there[-1] == count - 1


def test_what_was_dropped_makes_room() -> None:
    kept = RecentMessages()
    whole = KEPT_BYTES_MAX - 2 * KEPT_BYTES
    for offset in range(5):
        kept.put(half(offset, b"x" * whole))
        kept.put(half(offset, b"x" * whole))
        assert kept.all_of([offset]) is not None
        kept.drop(offset)
        kept.drop(offset)
    assert kept.all_of([0]) is None
