"""Outcomes of delay commands, for callers that wait for them.

A command names a queue of the outcome topic and a number. This proxy holds one of the topic's queues (group
OUTCOME_GROUP) and reads it from its end, so nothing is kept; an outcome without a waiter is counted and
dropped. Numbers differ between proxies and starts, so two proxies may read one queue: before a queue is
granted, and when none is left, the proxy takes any. After a move the old queue is read as long as a caller
waits for an outcome there. A read that fails is repeated a little later; outcomes that retention removed
meanwhile are lost, and their callers are answered "pending".
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
from proxy_producer.core.rejections import SendRejection
from proxy_producer.counts import SendCounts
from proxy_producer.topics import InternalTopic

WAIT_S = 30.0
READ_RETRY_S = 0.2
COUNT_MAX, BYTES_MAX = 1_024, 1 << 20
Later = Callable[[float, Callable[[], None]], object]
log = logging.getLogger("ddmq.producer")


class OutcomeReader:
    """Reads the outcome records of one queue from its end on, by callbacks on the hub, without a greenlet.

    `on_outcome` is called with each outcome. `waiting`: the number of callers that wait, which the owner
    maintains.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        queue: QueueRef,
        on_outcome: Callable[[CommandOutcome], None],
        later: Later,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._on_outcome = on_outcome
        self._later = later
        self._on_open: Callable[[OutcomeReader], None] | None = None
        self._offset = 0
        self._reader = QueueReader(backend, queue, self._on_read, self._on_data)
        self._closed = False
        self.queue = queue
        self.waiting = 0

    def open(self, on_open: Callable[[OutcomeReader], None]) -> None:
        """Find the queue's end, then call `on_open(self)`. All later outcomes will be read."""
        self._on_open = on_open
        self._find_end()

    def close(self) -> None:
        """Stop reading. May be called twice."""
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
            self._later(READ_RETRY_S, self._find_end)
            return
        self._offset = bounds.next
        on_open, self._on_open = self._on_open, None
        if on_open is not None:
            on_open(self)
        self._wait_for_more()

    def _wait_for_more(self) -> None:
        self._reader.wait(self._offset, self._clock.monotonic() + WAIT_S)

    def _on_data(self, arrived: bool, error: Exception | None) -> None:
        if error is not None:
            self._later(READ_RETRY_S, self._wait_for_more)
        elif arrived:
            self._read()
        else:
            self._wait_for_more()

    def _read(self) -> None:
        self._reader.read(self._offset, COUNT_MAX, BYTES_MAX)

    def _on_read(self, read: ReadAnswer) -> None:
        if read.is_unanswered:
            self._later(READ_RETRY_S, self._find_end)
            return
        self._offset = read.next_offset if read.bounds is None else read.bounds.next
        for delivery in () if read.batch is None else read.batch.deliveries:
            self._pass_on(bytes(delivery))
        if read.batch is None or read.at_end:
            self._wait_for_more()
        else:
            self._read()

    def _pass_on(self, delivery: bytes) -> None:
        """Decode an outcome and pass it to `on_outcome`.

        An undecodable one is logged; its caller gets "pending".
        """
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
    """A delay command whose caller waits for its outcome."""

    def on_outcomes_ready(self, rejection: SendRejection | None) -> None:
        """Store the command. None: its outcome will be read; otherwise `rejection` says why it cannot be."""

    def on_outcome(self, outcome: CommandOutcome) -> None:
        """Answer the caller with the outcome."""


class OutcomeWaiters(ClaimOwner):
    """The calls at this proxy that wait for the outcomes of delay commands.

    Reading starts with the first of them.
    """

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
        self._unready: list[OutcomeWaiter] = []
        self._reader: OutcomeReader | None = None
        self._next: OutcomeReader | None = None
        self._claims = QueueClaims(backend, self, clock.monotonic, load=False)
        self._closed = False

    # --- for commands

    def when_ready(self, waiter: OutcomeWaiter) -> None:
        """Call `waiter.on_outcomes_ready` as soon as outcomes can be read, nearly always at once."""
        if self._reader is not None:
            waiter.on_outcomes_ready(None)
            return
        self._unready.append(waiter)
        if len(self._unready) == 1:
            self._topic.when_ready(self._on_topic_ready)

    def expect(self, waiter: OutcomeWaiter) -> tuple[int, int] | None:
        """Register a waiter and return (reply queue, reply id) for its command; None if too many are
        waiting."""
        reader = self._reader
        if reader is None or len(self._waiters) >= self._waiters_max:
            self._counts.count_outcome("waiters_max")
            return None
        self._number += 1
        self._waiters[self._number] = (waiter, reader)
        reader.waiting += 1
        return reader.queue.queue_id, self._number

    def forget(self, reply_id: int) -> None:
        """Remove a waiter whose caller has been answered. An unknown id is ignored."""
        entry = self._waiters.pop(reply_id, None)
        if entry is not None:
            self._leave(entry[1])

    def close(self) -> None:
        """Stop reading, and leave the group. May be called twice."""
        self._closed = True
        self._topic.close()
        for reader in (self._reader, self._next, *(reader for _, reader in self._waiters.values())):
            if reader is not None:
                reader.close()
        self._claims.leave()

    # --- outcomes

    def _take_outcome(self, outcome: CommandOutcome) -> None:
        entry = self._waiters.pop(outcome.reply_id, None)
        if entry is None:
            self._counts.count_outcome("nobody")
            return
        self._counts.count_outcome("heard")
        self._leave(entry[1])
        entry[0].on_outcome(outcome)

    def _leave(self, reader: OutcomeReader) -> None:
        reader.waiting -= 1
        if reader is not self._reader and not reader.waiting:
            reader.close()

    # --- which queue

    def _on_topic_ready(self, rejection: SendRejection | None) -> None:
        if rejection is not None or self._closed:
            self._notify_ready(rejection)
            return
        self._move_to(
            QueueRef(OUTCOME_TOPIC, self._read_incarnation(), self._random.randrange(self._topic.queues))
        )
        self._join()

    def _join(self) -> None:
        if not self._closed:
            self._claims.join(Join(OUTCOME_GROUP, OUTCOME_TOPIC, sharing=Sharing.CONSISTENT_HASH))

    def _read_incarnation(self) -> int:
        info = self._backend.topic(OUTCOME_TOPIC)
        return 0 if info is None else info.incarnation

    def _move_to(self, queue: QueueRef) -> None:
        """Start reading this queue at its end, then use it as the reply queue of new commands."""
        if self._next is not None:
            self._next.close()
        self._next = OutcomeReader(self._backend, self._clock, queue, self._take_outcome, self._later)
        self._next.open(self._on_reader_open)

    def _on_reader_open(self, reader: OutcomeReader) -> None:
        if reader is not self._next or self._closed:
            reader.close()
            return
        before, self._reader, self._next = self._reader, reader, None
        if before is not None and not before.waiting:
            before.close()
        self._notify_ready(None)

    def _notify_ready(self, rejection: SendRejection | None) -> None:
        waiters, self._unready = self._unready, []
        for waiter in waiters:
            waiter.on_outcomes_ready(rejection)

    # --- ClaimOwner

    def assigned(self, assignment: Assignment) -> None:
        self._choose_reader()

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Release the revoked queues at once, because this proxy writes nothing to them."""
        release(queues)
        self._choose_reader()

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._choose_reader()

    def on_failed(self, doing: str, error: Exception) -> None:
        """Handle a failed join: retry it later, and read any queue until then."""
        self._later(RETRY_S, self._join)

    def _choose_reader(self) -> None:
        """Switch to a queue that this proxy owns; without one keep the current queue."""
        reader = self._next or self._reader
        queues = self._claims.owned_queues
        if queues and (reader is None or reader.queue not in queues) and not self._closed:
            self._move_to(min(queues))
