"""The outcomes of delay commands, for callers that wait for them.

A command names a queue of the outcome topic and a number. This proxy holds one of the topic's queues (group
OUTCOME_GROUP) and reads it from its end, so nothing is kept; what finds nobody waiting is counted and
forgotten. Numbers differ between proxies and starts, so it does no harm when two proxies read one queue:
before a queue is granted, or when none is left, any will do. After a move the old queue is read as long as
somebody waits for an outcome there. What cannot be read is tried again a little later; outcomes that
retention took meanwhile are lost, and their callers are told "pending".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from backend.completion import Completion
from backend.ownership.claims import RETRY_S, ClaimOwner, QueueClaims, Release
from backend.ownership.reader import QueueReader, ReadAnswer
from backend.port import Assignment, Backend, Join, Sharing
from backend.records import Bounds, QueueRef
from ddmq_common.clock import Clock
from ddmq_common.delays.command import CommandOutcome, decode_outcome
from ddmq_common.delivery import decode
from ddmq_common.errors import DamagedError, DdmqError
from ddmq_common.names import OUTCOME_GROUP, OUTCOME_TOPIC
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.counts import SendCounts
from proxy_producer.topics import InternalTopic

WAIT_S = 30.0
AGAIN_S = 0.2
COUNT_MAX, BYTES_MAX = 1_024, 1 << 20
Later = Callable[[float, Callable[[], None]], object]
log = logging.getLogger("ddmq.producer")


class OutcomeReader:
    """Reads one queue from its end on, as records come, without a greenlet: a wait, a read, and again.

    `hear` is called with each outcome. `waiting`: how many wait for one here; kept by the owner."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        queue: QueueRef,
        hear: Callable[[CommandOutcome], None],
        later: Later,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._on_outcome = hear
        self._later = later
        self._opened: Callable[[OutcomeReader], None] | None = None
        self._offset = 0
        self._reader = QueueReader(backend, queue, self._on_read, self._on_data)
        self._closed = False
        self.queue = queue
        self.waiting = 0

    def open(self, opened: Callable[[OutcomeReader], None]) -> None:
        """Find the queue's end; `opened(self)` follows when everything after it will be heard."""
        self._opened = opened
        self._find_end()

    def close(self) -> None:
        """Hear nothing more. May be called twice."""
        self._closed = True
        self._reader.stop()

    def _find_end(self) -> None:
        if not self._closed:
            self._backend.bounds((self.queue,)).then(self._on_bounds)

    def _on_bounds(self, answer: Completion[list[Bounds | None]]) -> None:
        if self._closed:
            return
        bounds = None if answer.error is not None else answer.value[0]
        if bounds is None:
            self._later(AGAIN_S, self._find_end)
            return
        self._offset = bounds.next
        opened, self._opened = self._opened, None
        if opened is not None:
            opened(self)
        self._wait()

    def _wait(self) -> None:
        self._reader.wait(self._offset, self._clock.monotonic() + WAIT_S)

    def _on_data(self, arrived: bool, error: Exception | None) -> None:
        if error is not None:
            self._later(AGAIN_S, self._wait)
        elif arrived:
            self._read()
        else:
            self._wait()

    def _read(self) -> None:
        self._reader.read(self._offset, COUNT_MAX, BYTES_MAX)

    def _on_read(self, read: ReadAnswer) -> None:
        if read.is_unanswered:
            self._later(AGAIN_S, self._find_end)
            return
        self._offset = read.next_offset if read.bounds is None else read.bounds.next
        for delivery in () if read.batch is None else read.batch.deliveries:
            self._tell(bytes(delivery))
        if read.batch is None or read.at_end:
            self._wait()
        else:
            self._read()

    def _tell(self, delivery: bytes) -> None:
        """One that cannot be read has nobody to be told to; its caller hears "pending"."""
        try:
            outcome = decode_outcome(decode(delivery).value)
        except DdmqError as error:
            kind = "damaged" if isinstance(error, DamagedError) else type(error).__name__
            log.warning(
                "outcome of a delay command cannot be read", extra={"kind": kind, "error": str(error)}
            )
            return
        self._on_outcome(outcome)


class OutcomeWaiter(Protocol):
    """A delay command whose caller waits."""

    def outcomes_ready(self, fault: SendRefusal | None) -> None:
        """Outcomes can be heard from now on (None), or not."""

    def decided(self, outcome: CommandOutcome) -> None:
        """Take the outcome of the command."""


class OutcomeWaiters(ClaimOwner):
    """Delivers outcomes to the commands that wait, `waiters_max` at most."""

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
        self._starting: list[OutcomeWaiter] = []
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
        self._starting.append(waiter)
        if len(self._starting) == 1:
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
        entry = self._waiters.pop(reply_id, None)
        if entry is not None:
            self._leave(entry[1])

    def close(self) -> None:
        """Hear nothing more. May be called twice."""
        self._closed = True
        self._topic.close()
        for reader in (self._reader, self._next, *(reader for _, reader in self._waiters.values())):
            if reader is not None:
                reader.close()
        self._claims.leave()

    # --- what is heard

    def _on_outcome(self, outcome: CommandOutcome) -> None:
        entry = self._waiters.pop(outcome.reply_id, None)
        if entry is None:
            self._counts.outcome("nobody")
            return
        self._counts.outcome("heard")
        self._leave(entry[1])
        entry[0].decided(outcome)

    def _leave(self, reader: OutcomeReader) -> None:
        reader.waiting -= 1
        if reader is not self._reader and not reader.waiting:
            reader.close()

    # --- which queue

    def _topic_ready(self, fault: SendRefusal | None) -> None:
        if fault is not None or self._closed:
            self._tell(fault)
            return
        self._move_to(
            QueueRef(OUTCOME_TOPIC, self._topic_incarnation(), self._random.randrange(self._topic.queues))
        )
        self._join()

    def _join(self) -> None:
        if not self._closed:
            self._claims.join(Join(OUTCOME_GROUP, OUTCOME_TOPIC, sharing=Sharing.CONSISTENT_HASH))

    def _topic_incarnation(self) -> int:
        info = self._backend.topic(OUTCOME_TOPIC)
        return 0 if info is None else info.incarnation

    def _move_to(self, queue: QueueRef) -> None:
        """Hear this queue from its present end on, then ask for answers there."""
        if self._next is not None:
            self._next.close()
        self._next = OutcomeReader(self._backend, self._clock, queue, self._on_outcome, self._later)
        self._next.open(self._on_reader_opened)

    def _on_reader_opened(self, reader: OutcomeReader) -> None:
        if reader is not self._next or self._closed:
            reader.close()
            return
        before, self._reader, self._next = self._reader, reader, None
        if before is not None and not before.waiting:
            before.close()
        self._tell(None)

    def _tell(self, fault: SendRefusal | None) -> None:
        begun, self._starting = self._starting, []
        for waiter in begun:
            waiter.outcomes_ready(fault)

    # --- ClaimOwner

    def assigned(self, assignment: Assignment) -> None:
        self._choose_queue()

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Release the queues at once: a reader writes nothing that would have to be finished."""
        release(queues)
        self._choose_queue()

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._choose_queue()

    def trouble(self, doing: str, error: Exception) -> None:
        """Retry to join later; until then any queue will do."""
        self._later(RETRY_S, self._join)

    def _choose_queue(self) -> None:
        """Stay where we are if that is ours; with nothing of our own any queue will do."""
        current = self._next or self._reader
        owned = self._claims.held
        if owned and (current is None or current.queue not in owned) and not self._closed:
            self._move_to(min(owned))
