"""The newest messages of a shard that are kept: bounded, however small they are."""

from __future__ import annotations

from ddmq_common.delivery import encode
from proxy_producer.transactions.codec import HalfMark, HalfMessage
from proxy_producer.transactions.reading import CACHE_BYTES_MAX, ENTRY_OVERHEAD_BYTES, RecentMessages

MARK = HalfMark("0" * 32, "g", "orders", 0)


def half(offset: int, body: bytes) -> HalfMessage:
    return HalfMessage(offset, bytes(16), 0, 0, encode(b"", body, b"", None), MARK, b"", b"", "")


def test_tiny_messages_are_not_kept_without_end() -> None:
    recent = RecentMessages()
    count = 2 * CACHE_BYTES_MAX // ENTRY_OVERHEAD_BYTES
    for offset in range(count):
        recent.put(half(offset, b"x"))
    there = [offset for offset in range(count) if recent.get(offset) is not None]
    assert 0 < len(there) <= CACHE_BYTES_MAX // ENTRY_OVERHEAD_BYTES
    assert there[-1] == count - 1


def test_what_was_dropped_makes_room() -> None:
    recent = RecentMessages()
    body_bytes = CACHE_BYTES_MAX - 2 * ENTRY_OVERHEAD_BYTES
    for offset in range(5):
        recent.put(half(offset, b"x" * body_bytes))
        recent.put(half(offset, b"x" * body_bytes))
        assert recent.all_of([offset]) is not None
        recent.drop(offset)
        recent.drop(offset)
    assert recent.all_of([0]) is None
