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


def read_ahead(positions_read: list[int], skipped: int) -> ReadAhead:
    """Of a queue that has messages at these log positions; the first `skipped` are placed already."""
    batch: Any = SimpleNamespace(positions=[-1, *positions_read])
    deliveries = [b"at %d" % position for position in positions_read]
    offsets = [number * 2 for number in range(len(positions_read))]
    view, plan = ProgressView(0, (), {}, 1, 0), ReadPlan(lambda count_max: (count_max, 1), 1)
    queue = SubscribedQueue(
        QUEUE, view, 0, RetryPolicy((), -1), Budget(), Tally(), plan, MetricCell(), deque()
    )
    queue.feed.put(
        Slice(batch, offsets, deliveries, range(1, len(positions_read) + 1)), len(positions_read) * 2
    )
    queue.feed.consume_messages(skipped)
    stream = QueueStream(ScopeLedger(ChainTable()), QUEUE, queue.feed, message_key, MetricCell())
    return ReadAhead(stream, queue)


@given(positions, st.integers(1, 30), st.data())
def test_merged_slices_are_the_beginning_of_all_in_order(
    all_positions: set[int], count: int, data: st.DataObject
) -> None:
    streams = data.draw(st.integers(2, 3))
    owner = {position: data.draw(st.integers(0, streams - 1)) for position in all_positions}
    columns = [sorted(p for p in all_positions if owner[p] == number) for number in range(streams)]
    columns = [column for column in columns if column]
    skips = [data.draw(st.integers(0, len(column) - 1)) for column in columns]
    read_streams = [read_ahead(column, skip) for column, skip in zip(columns, skips, strict=True)]
    expected = sorted(p for column, skip in zip(columns, skips, strict=True) for p in column[skip:])
    merged: list[int] = []
    while all(stream.at < stream.end for stream in read_streams):
        rows = merge_rows(read_streams, count)
        assert rows
        rows_per_stream = [sum(row[1] == number for row in rows) for number in range(len(read_streams))]
        assert max(rows_per_stream) <= count
        for position, number, offset, delivery, index in rows:
            stream = read_streams[number]
            assert (offset, index) == (stream.run.offsets[stream.at], stream.run.indexes[stream.at])
            assert delivery == b"at %d" % position == b"at %d" % stream.batch.positions[index]
            stream.at += 1
            merged.append(position)
    assert merged == expected[: len(merged)]
    exhausted = [number for number, stream in enumerate(read_streams) if stream.at == stream.end]
    assert merged[-1] == max(columns[number][-1] for number in exhausted)
