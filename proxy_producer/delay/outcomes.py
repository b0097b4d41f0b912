"""What the delay service says became of a command, for callers that wait to hear it.

A command names a queue of the outcome topic and a number. This proxy holds one of the topic's queues (group
OUTCOME_GROUP) and reads it from its end, so nothing is kept; what finds nobody waiting is counted and
forgotten. Numbers differ between proxies and starts, so it does no harm when two proxies read one queue:
before a queue is granted, or when none is left, any will do. After a move the old queue is read as long as
somebody waits for an outcome there.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from backend.claims import RETRY_S, ClaimOwner, QueueClaims, Release
from backend.port import Assignment, Backend, Join, Sharing
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.delays.command import CommandOutcome
from ddmq_common.names import OUTCOME_GROUP, OUTCOME_TOPIC
from proxy_producer.core.refusal import SendRefusal
from proxy_producer.counts import SendCounts
from proxy_producer.delay.outcome_reader import Later, OutcomeReader
from proxy_producer.internal_topic import InternalTopic


class OutcomeWaiter(Protocol):
    """A delay command whose caller waits."""

    def outcomes_ready(self, fault: SendRefusal | None) -> None:
        """Outcomes can be heard from now on (None), or not."""

    def decided(self, outcome: CommandOutcome) -> None:
        """Here it is."""


class OutcomeWaiters(ClaimOwner):
    """It begins to listen with the first command that asks. `waiters_max`: so many may wait at once."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        random: Random,
        counts: SendCounts,
        topic: InternalTopic,
        waiters_max: int,
        later: Later,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._random = random
        self._counts = counts
        self._topic = topic
        self._waiters_max = waiters_max
        self._later = later
        self._number = random.randrange(1 << 62)
        self._waiters: dict[int, tuple[OutcomeWaiter, OutcomeReader]] = {}
        self._begun: list[OutcomeWaiter] = []
        self._reader: OutcomeReader | None = None
        self._next: OutcomeReader | None = None
        self._claims = QueueClaims(backend, self, clock.monotonic, load=False)
        self._closed = False

    # --- for commands

    def when_ready(self, waiter: OutcomeWaiter) -> None:
        """`waiter.outcomes_ready` follows, nearly always at once."""
        if self._reader is not None:
            waiter.outcomes_ready(None)
            return
        self._begun.append(waiter)
        if len(self._begun) == 1:
            self._topic.when_ready(self._topic_ready)

    def expect(self, waiter: OutcomeWaiter) -> tuple[int, int] | None:
        """(reply queue, reply id) for a command about to be sent; None when too many wait already."""
        reader = self._reader
        if reader is None or len(self._waiters) >= self._waiters_max:
            self._counts.outcome("waiters_max")
            return None
        self._number += 1
        self._waiters[self._number] = (waiter, reader)
        reader.waiting += 1
        return reader.queue.queue_id, self._number

    def forget(self, reply_id: int) -> None:
        """The caller has been answered otherwise. Harmless when unknown."""
        found = self._waiters.pop(reply_id, None)
        if found is not None:
            self._leave(found[1])

    def close(self) -> None:
        """Hear nothing more. May be called twice."""
        self._closed = True
        self._topic.close()
        for reader in (self._reader, self._next, *(reader for _, reader in self._waiters.values())):
            if reader is not None:
                reader.close()
        self._claims.leave()

    # --- what is heard

    def _hear(self, outcome: CommandOutcome) -> None:
        found = self._waiters.pop(outcome.reply_id, None)
        if found is None:
            self._counts.outcome("nobody")
            return
        self._counts.outcome("heard")
        self._leave(found[1])
        found[0].decided(outcome)

    def _leave(self, reader: OutcomeReader) -> None:
        reader.waiting -= 1
        if reader is not self._reader and not reader.waiting:
            reader.close()

    # --- which queue

    def _topic_ready(self, fault: SendRefusal | None) -> None:
        if fault is not None or self._closed:
            self._tell(fault)
            return
        self._move(QueueRef(OUTCOME_TOPIC, self._incarnation(), self._random.randrange(self._topic.queues)))
        self._join()

    def _join(self) -> None:
        if not self._closed:
            self._claims.join(Join(OUTCOME_GROUP, OUTCOME_TOPIC, sharing=Sharing.CONSISTENT_HASH))

    def _incarnation(self) -> int:
        info = self._backend.topic(OUTCOME_TOPIC)
        return 0 if info is None else info.incarnation

    def _move(self, queue: QueueRef) -> None:
        """Hear this queue from its present end on, then ask for answers there."""
        if self._next is not None:
            self._next.close()
        self._next = OutcomeReader(self._backend, self._clock, queue, self._hear, self._later)
        self._next.open(self._moved)

    def _moved(self, reader: OutcomeReader) -> None:
        if reader is not self._next or self._closed:
            reader.close()
            return
        before, self._reader, self._next = self._reader, reader, None
        if before is not None and not before.waiting:
            before.close()
        self._tell(None)

    def _tell(self, fault: SendRefusal | None) -> None:
        begun, self._begun = self._begun, []
        for waiter in begun:
            waiter.outcomes_ready(fault)

    # --- ClaimOwner

    def assigned(self, assignment: Assignment) -> None:
        self._settle()

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Nothing is written here, so there is nothing to finish."""
        release(queues)
        self._settle()

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._settle()

    def trouble(self, doing: str, error: Exception) -> None:
        """Until we are a member any queue will do."""
        self._later(RETRY_S, self._join)

    def _settle(self) -> None:
        """Stay where we are if that is ours; with nothing of our own any queue will do."""
        going = self._next or self._reader
        held = self._claims.held
        if held and (going is None or going.queue not in held) and not self._closed:
            self._move(min(held))
