"""An installation that is moved: filled at random, and what a group there has left to do."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from backend.port import Backend
from backend.records import CommitBatch, NewRecord, ProgressDelta, QueueRef, TopicInfo
from ddmq.move.context import MoveContext, all_records
from ddmq.move.core.copies import hash_record
from ddmq.move.core.scope import Scope
from ddmq.move.engines import source_id
from ddmq.move.runs import MoveRun
from ddmq_common.clock import Clock, SystemClock
from ddmq_common.delivery import encode
from ddmq_common.names import DLQ_PREFIX, DONE_GROUP, RETRY_PREFIX, SCHEDULE_TOPIC
from delay_service.config import DelayConfig
from delay_service.store.port import StoreOpener
from proxy_consumer.groups.group import GROUP_PREFIX, SUBSCRIPTION_PREFIX
from tests.service.delay.delay_rig import Disks
from tests.support.waits import done

GROUPS = ("billing", "audit")
TOPICS = ("orders", "prices")
WAIT_S = 30.0
_ids = count(1)


class Left(NamedTuple):
    """A message that a group has not finished. `attempts`: so far."""

    topic: str
    queue_id: int
    message_id: bytes
    attempts: int


def message(topic: str, queue_id: int, **rest: object) -> NewRecord:
    number = next(_ids)
    body, key = b"body %d" % number, b"key %d" % (number % 7)
    delivery = encode(key, body, b"red", {b"colour": b"%d" % number})
    born, flags = 1_700_000_000_000 + number, number % 2
    return NewRecord(topic, queue_id, number.to_bytes(16, "big"), born, delivery, key, b"red", flags, **rest)  # type: ignore[arg-type]


class MoveSide:
    """One side."""

    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        self.backend = backend
        self.clock = clock or SystemClock()

    def make(self, name: str, queues: int = 2, **rest: object) -> TopicInfo:
        info = TopicInfo(name, 0, queues, **rest)  # type: ignore[arg-type]
        return done(self.backend.put_topic(info, self.clock.monotonic() + WAIT_S))

    def queues(self, topic: str) -> list[QueueRef]:
        info = self.backend.topic(topic)
        assert info is not None, topic
        return info.refs()

    def send(self, *records: NewRecord) -> None:
        self.commit(CommitBatch(records=records))

    def commit(self, batch: CommitBatch) -> None:
        done(self.backend.commit(batch, self.clock.monotonic() + WAIT_S))

    def fill(self, seed: int, messages: int = 200) -> None:
        """Topics, retries, dead letters, a level, groups and where they are."""
        chosen = random.Random(seed)
        self.make("orders", 3, delay="none", body_bytes_max=5_000)
        self.make("prices", 2, delay_dialects=("amq",))
        inner = [f"{RETRY_PREFIX}billing", f"{DLQ_PREFIX}billing", SCHEDULE_TOPIC]
        for name in inner:
            self.make(name, 2)
        for name in (*TOPICS, *inner[:2]):
            for queue in self.queues(name):
                count = chosen.randrange(messages)
                while count > 0:  # many commits: where an engine marks their ends, offsets have gaps
                    some = min(count, chosen.randrange(1, 40))
                    self.send(*(message(name, queue.queue_id) for _ in range(some)))
                    count -= some
        due = self.clock.wall_ms() + 3_600_000
        self.send(*(message(SCHEDULE_TOPIC, 1, due_ms=due + each) for each in range(20)))
        settings = {f"{GROUP_PREFIX}{group}": b"{}" for group in GROUPS}
        settings |= {f"{SUBSCRIPTION_PREFIX}{group}/{topic}": b"{}" for group in GROUPS for topic in TOPICS}
        self.commit(CommitBatch(settings=settings))
        for group, topic in list_subscriptions(self):
            for queue in self.queues(topic):
                self._consume(chosen, group, queue)

    def _consume(self, chosen: random.Random, group: str, queue: QueueRef) -> None:
        offsets = [record.offset for record in self.records(queue)]
        if not offsets or chosen.random() < 0.1:
            return  # it has not begun
        below = chosen.choice(offsets)
        finished = [(0, below)] if below else []
        finished += [(at, at + 1) for at in offsets if at >= below and chosen.random() < 0.4]
        over = {at for start, end in finished for at in range(start, end)}
        attempts = [
            (at, chosen.randrange(1, 9)) for at in offsets if at not in over and chosen.random() < 0.2
        ]
        self.commit(CommitBatch(progress=[ProgressDelta(group, queue, 1, 0, finished, attempts)]))

    def records(self, queue: QueueRef):  # type: ignore[no-untyped-def]
        context = MoveContext(self.backend, self.backend, "", self.clock, Scope(), print)
        bounds = done(self.backend.bounds([queue]))[0]
        return (
            [] if bounds is None else list(all_records(context, self.backend, queue, bounds.min, bounds.next))
        )

    def contents(self, topic: str) -> list[list[bytes]]:
        """By queue, in order, the digests of what lies in it."""
        return [[hash_record(record) for record in self.records(queue)] for queue in self.queues(topic)]

    def left(self) -> dict[str, list[Left]]:
        """By group, in order, exactly what comes to it again."""
        left_by_group: dict[str, list[Left]] = {}
        for group, topic in list_subscriptions(self):
            for queue in self.queues(topic):
                view = done(self.backend.progress(group, [queue]))[0]
                for record in self.records(queue):
                    at = record.offset
                    over = at < (view.committed or 0) or any(a <= at < b for a, b in view.finished)
                    if not over:
                        left = Left(topic, queue.queue_id, record.message_id, view.attempts.get(at, 0))
                        left_by_group.setdefault(group, []).append(left)
        return left_by_group


def list_subscriptions(side: MoveSide) -> list[tuple[str, str]]:
    """The groups and what they read."""
    subscriptions = [(group, topic) for group in GROUPS for topic in TOPICS]
    inner = [("billing", f"{RETRY_PREFIX}billing"), (DONE_GROUP, f"{DLQ_PREFIX}billing")]
    return subscriptions + [(group, topic) for group, topic in inner if side.backend.topic(topic) is not None]


def moved(
    source: MoveSide,
    target: MoveSide,
    topics: tuple[str, ...] = (),
    opener: StoreOpener | None = None,
    config: DelayConfig | None = None,
    say: Callable[[str], None] = print,
) -> MoveRun:
    """One run of the command."""
    source_name = source_id(source.backend, source.clock, make=True)
    context = MoveContext(source.backend, target.backend, source_name, source.clock, Scope(topics), say)
    disks = opener or Disks().open
    return MoveRun(context, "source", config or DelayConfig(shards=2), disks, exclusive=False)
