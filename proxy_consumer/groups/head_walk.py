"""Walks over the heads of a group's keys in the order of their positions.

A group may have 100,000 heads, and the walk runs where clients are served: so each step of it is short, and
between two steps the caller may let other work run. What changes meanwhile is seen or not; no head is yielded
twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import NamedTuple

from proxy_consumer.core.order.chains import QueueStream
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.groups.blocked_keys import KeyHead

CHUNK = 1_000  # offsets that are sorted in one step


class HeadPosition(NamedTuple):
    """The position of a head in its group."""

    topic: str = ""
    queue_id: int = -1
    offset: int = -1


START = HeadPosition()


def walk_heads(
    queues: Iterable[tuple[SubscribedQueue, QueueStream]], after: HeadPosition = START
) -> Iterator[KeyHead | None]:
    """Yield the heads of the keys behind the position `after`, in order.

    None stands for a step that yields no head.
    """
    ordered = sorted(queues, key=lambda pair: (pair[0].ref.topic, pair[0].ref.queue_id))
    for queue, stream in ordered:
        at = HeadPosition(queue.ref.topic, queue.ref.queue_id)
        if at[:2] < after[:2]:
            continue
        floor = after.offset if at[:2] == after[:2] else -1
        offsets = iter(list(stream.busy))
        chunks: list[list[int]] = []
        while chunk := list(islice(offsets, CHUNK)):
            chunks.append(sorted(offset for offset in chunk if offset > floor))
            yield None
        for offset in merge(*chunks):
            chain = stream.busy.get(offset)
            is_head = chain is not None and chain.head == (stream, offset)
            yield KeyHead(queue, offset, chain) if chain is not None and is_head else None
