"""Rows of several streams come in the order of their log positions, against sorting all of them at once."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backend.records import ProgressView, QueueRef
from ddmq_common.metrics.cells import MetricCell
from proxy_consumer.core.order.chains import ChainTable, QueueStream, ScopeLedger
from proxy_consumer.core.order.placing import ReadAhead, merge_rows
from proxy_consumer.core.queue_feed import ReadPlan, Slice
from proxy_consumer.core.retry_policy import RetryPolicy
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.tally import Budget, Tally
from proxy_consumer.order_keys.reader import message_key

QUEUE = QueueRef("T", 0, 0)
positions = st.sets(st.integers(0, 200), min_size=3, max_size=80)


def read_ahead(found: list[int], skipped: int) -> ReadAhead:
    """Of a queue that has messages at these log positions; the first `skipped` are placed already."""
    batch: Any = SimpleNamespace(positions=[-1, *found])
    deliveries = [b"at %d" % position for position in found]
    offsets = [number * 2 for number in range(len(found))]
    view, plan = ProgressView(0, (), {}, 1, 0), ReadPlan(lambda wanted: (wanted, 1), 1)
    queue = SubscribedQueue(
        QUEUE, view, 0, RetryPolicy((), -1), Budget(), Tally(), plan, MetricCell(), deque()
    )
    queue.feed.put(Slice(batch, offsets, deliveries, range(1, len(found) + 1)), len(found) * 2)
    queue.feed.consume_messages(skipped)
    stream = QueueStream(ScopeLedger(ChainTable()), QUEUE, queue.feed, message_key, MetricCell())
    return ReadAhead(stream, queue)


@given(positions, st.integers(1, 30), st.data())
def test_pieces_are_the_beginning_of_all_in_order(whole: set[int], count: int, data: st.DataObject) -> None:
    streams = data.draw(st.integers(2, 3))
    owner = {position: data.draw(st.integers(0, streams - 1)) for position in whole}
    columns = [sorted(p for p in whole if owner[p] == number) for number in range(streams)]
    columns = [column for column in columns if column]
    skips = [data.draw(st.integers(0, len(column) - 1)) for column in columns]
    parts = [read_ahead(column, skip) for column, skip in zip(columns, skips, strict=True)]
    expected = sorted(p for column, skip in zip(columns, skips, strict=True) for p in column[skip:])
    seen: list[int] = []
    while all(part.at < part.end for part in parts):
        rows = merge_rows(parts, count)
        assert rows
        per_part = [sum(row[1] == number for row in rows) for number in range(len(parts))]
        assert max(per_part) <= count
        for position, number, offset, delivery, index in rows:
            part = parts[number]
            assert (offset, index) == (part.run.offsets[part.at], part.run.indexes[part.at])
            assert delivery == b"at %d" % position == b"at %d" % part.batch.positions[index]
            part.at += 1
            seen.append(position)
    assert seen == expected[: len(seen)]
    ended = [number for number, part in enumerate(parts) if part.at == part.end]
    assert seen[-1] == max(columns[number][-1] for number in ended)
