"""What the contract tests share: what an engine under test is, a clock, records, and ways to wait."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from backend.port import Assignment, Backend, Join
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    ProgressView,
    QueueRef,
    ReadBatch,
    ReadStatus,
    StoredRecord,
    TopicInfo,
)
from backend.testing.waits import done, soon
from ddmq_common.delivery import encode


class KitClock:
    """A clock for tests: monotonic time is real, so that engines' own timers agree; wall time moves only on
    request."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return self.now_ms


class Engine(ABC):
    """One engine under test. `persists`: what it stored is there again after `reopen`.

    `fills_batches`: a batch ends only where the caller's limits or the queue do. The port does not promise
    that: who reads files that another process writes answers with what they hold, and then goes on.
    `stamps`: the store's clock is the one given. `gapless`: offsets are counted, which is no promise.
    `skipped_tests`: tests of promises that it does not make, say for lack of a capability, with the reasons.
    """

    persists: ClassVar[bool]
    fills_batches: ClassVar[bool] = True
    stamps: ClassVar[bool] = True
    gapless: ClassVar[bool] = True
    skipped_tests: ClassVar[Mapping[str, str]] = {}
    backend: Backend

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = KitClock()
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Set `backend`, ready to take appends."""

    def reopen(self) -> None:
        """Close without draining and open again."""
        self.backend.close()
        self.open()

    def close(self) -> None:
        self.backend.close()


class Kit:
    """An engine with short ways to say what tests say often. Everything here waits for the answer."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.clock = engine.clock
        self._ids = itertools.count(1)

    @property
    def backend(self) -> Backend:
        return self.engine.backend

    @property
    def soon(self) -> float:
        """A deadline that is not meant to pass."""
        return soon()

    def make(self, name: str, queues: int = 1, **rest: object) -> TopicInfo:
        info = TopicInfo(name, 0, queues, **rest)  # type: ignore[arg-type]
        return done(self.backend.put_topic(info, self.soon))

    def make_queue(self, name: str, queues: int = 1, **rest: object) -> QueueRef:
        """The first queue of a topic that is made."""
        self.make(name, queues, **rest)
        return self.queue(name)

    def queues(self, name: str) -> list[QueueRef]:
        info = self.backend.topic(name)
        assert info is not None
        return [QueueRef(name, info.incarnation, index) for index in range(info.queues)]

    def queue(self, name: str, index: int = 0) -> QueueRef:
        return self.queues(name)[index]

    def new(
        self,
        topic: str,
        queue_id: int = 0,
        body: bytes = b"body",
        key: bytes = b"",
        tags: bytes = b"",
        **rest: object,
    ) -> NewRecord:
        message_id = next(self._ids).to_bytes(16, "big")
        born_ms = self.clock.wall_ms() - 5
        delivery = encode(key, body, tags, None)
        return NewRecord(topic, queue_id, message_id, born_ms, delivery, key, tags, **rest)  # type: ignore[arg-type]

    def append(self, *records: NewRecord) -> list[AppendResult]:
        return done(self.backend.append(records, self.soon))

    def send(self, topic: str, *bodies: bytes, queue_id: int = 0) -> list[int]:
        """Append and give the offsets; all must be stored."""
        results = self.append(*(self.new(topic, queue_id, body) for body in bodies))
        assert [result.status for result in results] == [AppendStatus.STORED] * len(bodies)
        return [result.offset for result in results]

    def commit(
        self,
        records: Sequence[NewRecord] = (),
        progress: Sequence[ProgressDelta] = (),
        settings: dict[str, bytes | None] | None = None,
    ) -> list[AppendResult]:
        return done(self.backend.commit(CommitBatch(records, progress, settings or {}), self.soon))

    def read(
        self, queue: QueueRef, offset: int = 0, count_max: int = 1000, bytes_max: int = 1 << 24
    ) -> ReadBatch:
        return done(self.backend.read(queue, offset, count_max, bytes_max))

    def batches(self, queue: QueueRef, offset: int = 0, count_max: int = 1000) -> list[ReadBatch]:
        """Read up to `count_max` records from `offset` on, and return the batches.

        One read is enough on an engine that fills batches; on others, further reads follow.
        """
        batches: list[ReadBatch] = []
        while count_max > 0 and (batch := self.read(queue, offset, count_max)).status is ReadStatus.DATA:
            batches.append(batch)
            offset, count_max = batch.next_offset, count_max - len(batch.offsets)
            if self.engine.fills_batches:
                break
        return batches

    def stored(self, queue: QueueRef, offset: int = 0) -> list[StoredRecord]:
        """All records from `offset` on: a batch may end before the queue does."""
        records: list[StoredRecord] = []
        while (batch := self.read(queue, offset)).status is ReadStatus.DATA:
            records += [batch.record(index) for index in range(len(batch.offsets))]
            offset = batch.next_offset
        return records

    def is_now(self, stored_ms: int) -> bool:
        """Return whether `stored_ms` is the present time: exactly if the engine uses the test's clock, else
        within a minute."""
        now_ms = self.clock.wall_ms()
        return stored_ms == now_ms if self.engine.stamps else abs(stored_ms - now_ms) < 60_000

    def progress(self, group: str, queue: QueueRef) -> ProgressView:
        return done(self.backend.progress(group, [queue]))[0]


class Member:
    """A listener that records its calls; it releases revoked queues at once, unless `lazy`."""

    def __init__(self, kit: Kit, group: str, topic: str, lazy: bool = False, **terms: Any) -> None:
        """Join `group` for `topic`. `terms`: further fields of the Join."""
        self.owned: dict[QueueRef, int] = {}
        self.granted: list[Assignment] = []
        self.revoked_queues: list[QueueRef] = []  # so far
        self.lost_queues: list[QueueRef] = []  # so far
        self._lazy = lazy
        self.membership = kit.backend.join(Join(group, topic, **terms), self)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the owned queues."""
        return sorted(queue.queue_id for queue in self.owned)

    def assigned(self, assignment: Assignment) -> None:
        self.granted.append(assignment)
        self.owned.update(dict.fromkeys(assignment.queues, assignment.epoch))

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self.revoked_queues += queues
        if not self._lazy:
            self._drop(queues)
            self.membership.release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self.lost_queues += queues
        self._drop(queues)

    def leave(self) -> None:
        self.owned.clear()
        self.membership.leave()

    def _drop(self, queues: Sequence[QueueRef]) -> None:
        for queue in queues:
            self.owned.pop(queue, None)
