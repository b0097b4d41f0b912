"""What people ask the delay service: one message, lists by topic and time, counts, a copy on the disk.

It answers for the shards that this process owns; `shards` says which, so that the asker knows whom else to
ask. Lists are bounded; they read the store on the hub, a page at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import gevent

from ddmq_common.delay_id import parse_delay_id, uuid_bytes
from ddmq_common.delay_order import DelayOrder, decode_order
from ddmq_common.errors import DamagedError, StorageError
from delay_service.core.kinds import occurrence_id
from delay_service.core.orders import before
from delay_service.service import DelayService
from delay_service.shard import Shard
from delay_service.store.port import DelayStore, DueKey, IdKind, IdState, Pending

LIST_MAX = 1_000
FOREVER_MS = (1 << 63) - 1


class Page(NamedTuple):
    """Where the next page of a list begins: behind this message."""

    due_ms: int
    shard: int
    offset: int


class Waiting(NamedTuple):
    """One message that waits. `delay_id`: of the occurrence that is next. `order` None: it does not parse."""

    place: Page
    uuid: str
    delay_id: str
    topic: str
    due_ms: int
    occurrence: int
    body_bytes: int
    born_ms: int
    aside: bool
    order: DelayOrder | None


class Known(NamedTuple):
    """What is known of an id. `state`: pending, fired, cancelled, tombstone; `at_ms`: its due time, or when
    it fired or was cancelled."""

    state: str
    at_ms: int
    shard: int
    message: Waiting | None


class ShardRow(NamedTuple):
    """One shard of this process. `reason`: why it does not fire, "" when it does."""

    shard: int
    epoch: int
    reason: str
    taken_to: int | None
    pending: int


class DelayQueries:
    """Over one service; see the module's text."""

    def __init__(self, service: DelayService) -> None:
        self._service = service

    def shards(self) -> list[ShardRow]:
        """The shards that this process owns."""
        return [
            ShardRow(number, shard.epoch, shard.why, shard.position, _waiting_in(shard))
            for number, shard in self._service.shards.items()
        ]

    def find(self, uuid_or_id: str) -> Known | None:
        """What the shards here know of a uuid, or of the uuid in an id; None when they know nothing."""
        parsed = parse_delay_id(uuid_or_id.encode())
        key = uuid_bytes(uuid_or_id if parsed is None else parsed.uuid)
        for number, store in self._stores():
            [state] = store.ids([key])
            if state is not None:
                return _known(number, store, state)
        return None

    def waiting(
        self,
        topic: str | None = None,
        from_ms: int = 0,
        to_ms: int = FOREVER_MS,
        limit: int = 100,
        after: Page | None = None,
    ) -> list[Waiting]:
        """Messages that wait with `from_ms` ≤ due < `to_ms`, by due time; at most LIST_MAX of them."""
        limit = max(1, min(limit, LIST_MAX))
        found = [
            self._page(number, store, topic, from_ms, to_ms, limit, after) for number, store in self._stores()
        ]
        return [*islice(merge(*found, key=lambda one: one.place), limit)]

    @staticmethod
    def _page(
        number: int,
        store: DelayStore,
        topic: str | None,
        from_ms: int,
        to_ms: int,
        limit: int,
        after: Page | None,
    ) -> Iterator[Waiting]:
        behind = None if after is None else _behind(after, number)
        aside = frozenset(store.topics_put_aside())
        found = store.scan(topic, from_ms, to_ms, limit, behind)
        return (row_of(number, message, message.topic in aside) for message in found)

    def count(self, topic: str | None = None) -> dict[str, int]:
        """How many wait, per topic."""
        counts = self._service.pending_counts()
        return dict(counts) if topic is None else {topic: counts[topic]}

    def checkpoint(self, folder: Path) -> dict[int, Path]:
        """Consistent copies of the stores here while they are in use, `folder`/shard-N each, by shard.

        Blocks the calling greenlet, not the hub. Raises StorageError, also when this process has no shard.
        """
        stores = list(self._stores())
        if not stores:
            raise StorageError("this process owns no delay shard that is open; nothing was copied")
        made = {}
        for number, store in stores:
            made[number] = folder / f"shard-{number}"
            gevent.get_hub().threadpool.apply(store.checkpoint, (made[number],))
        return made

    def _stores(self) -> Iterator[tuple[int, DelayStore]]:
        for number, shard in self._service.shards.items():
            if shard.holding is not None and shard.holding.running:
                yield number, shard.holding.store


def row_of(shard: int, message: Pending, aside: bool) -> Waiting:
    """A message for people. `aside`: its topic takes nothing now."""
    try:
        order: DelayOrder | None = decode_order(message.order)
    except DamagedError:
        order = None
    return Waiting(
        Page(message.due_ms, shard, message.offset),
        "" if order is None else order.uuid,
        "" if order is None else occurrence_id(order, message.occurrence),
        message.topic,
        message.due_ms,
        message.occurrence,
        len(message.delivery),
        message.born_ms,
        aside,
        order,
    )


def _known(number: int, store: DelayStore, state: IdState) -> Known:
    message = store.get(DueKey(state.at_ms, state.offset)) if state.kind is IdKind.PENDING else None
    row = None
    if message is not None:
        row = row_of(number, message, message.topic in store.topics_put_aside())
    return Known(state.kind.name.lower(), state.at_ms, number, row)


def _behind(after: Page, shard: int) -> DueKey | None:
    """Where a shard goes on behind a message that may be another shard's."""
    if shard < after.shard:
        return DueKey(after.due_ms, FOREVER_MS)
    key = DueKey(after.due_ms, after.offset)
    return key if shard == after.shard else before(DueKey(after.due_ms, 0))


def _waiting_in(shard: Shard) -> int:
    holding = shard.holding
    return sum(holding.store.counts().values()) if holding is not None and holding.running else 0
