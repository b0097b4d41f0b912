"""Messages that wait in chains stay in memory for a while: which, and how many bytes."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from backend.records import ProgressView, QueueRef
from proxy_consumer.core.queue_feed import CACHED_BATCHES_MAX, CACHED_BYTES_MAX, ReadPlan
from proxy_consumer.core.retry_policy import RetryPolicy
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.tally import Budget, Count, Tally

SIZE = 10


def queue(read_bytes: Count) -> SubscribedQueue:
    view, plan = ProgressView(0, (), {}, 1, 0), ReadPlan(lambda count: (count, 1), 1)
    ref = QueueRef("T", 3, 1)
    return SubscribedQueue(ref, view, 0, RetryPolicy((), -1), Budget(), Tally(), plan, read_bytes, deque())


def cache_message(one: SubscribedQueue, offset: int, read: Any, index: int) -> None:
    one.cached.cache_message(one.reread, offset, read, index)


def batch(messages: int = 2) -> Any:
    return SimpleNamespace(deliveries=[bytes(SIZE)] * messages)


def test_messages_of_the_newest_batches_are_cached_and_counted_with_their_batch() -> None:
    read_bytes = Count()
    one = queue(read_bytes)
    for number in range(CACHED_BATCHES_MAX + 1):
        read = batch()
        cache_message(one, 2 * number, read, 0)
        cache_message(one, 2 * number + 1, read, 1)
    assert sorted(one.reread) == list(range(2, 2 * CACHED_BATCHES_MAX + 2))
    assert read_bytes.value == CACHED_BATCHES_MAX * 2 * SIZE
    one.forget_reads()
    assert (one.reread, read_bytes.value) == ({}, 0)


def test_a_message_that_was_reread_outlives_its_first_batch() -> None:
    one = queue(Count())
    cache_message(one, 0, batch(), 0)
    second_batch = batch()
    one.reread[0] = second_batch, 1
    for number in range(1, CACHED_BATCHES_MAX + 1):
        cache_message(one, number, batch(), 0)
    assert one.reread[0] == (second_batch, 1)


def test_nothing_more_is_cached_at_the_bound_of_all_subscriptions() -> None:
    read_bytes = Count()
    read_bytes.value = CACHED_BYTES_MAX
    one = queue(read_bytes)
    cache_message(one, 0, batch(), 0)
    assert (one.reread, read_bytes.value) == ({}, CACHED_BYTES_MAX)


def test_a_lost_queue_gives_its_bytes_back() -> None:
    read_bytes = Count()
    one = queue(read_bytes)
    cache_message(one, 0, batch(), 0)
    one.release_all()
    assert read_bytes.value == 0
