"""What a subscription reads of its queues, and how it hears that there is more.

A read that the backend answers at once is used at once, another one wakes the group's waiters when it comes.
At a queue's end one wait stands armed for as long as the subscription is in use, so that no append goes
unnoticed. What cannot be read is tried again a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.completion import Completion
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus
from ddmq_common.errors import DrainingError
from ddmq_common.metrics.catalogue import SKIPPED
from proxy_consumer.core.order.scope import EndsRequest
from proxy_consumer.core.ranges import ranges_of
from proxy_consumer.core.steps import Loaded, Purpose, QueueState, ReadRequest
from proxy_consumer.departures.trail import is_of_another_life
from proxy_consumer.runtime import log
from proxy_consumer.subscription.reads import DataWait, QueueRead
from proxy_consumer.subscription.seat import RETRY_S

if TYPE_CHECKING:
    from proxy_consumer.subscription.subscription import Subscription

WAIT_S = 60.0  # how long one wait at a queue's end stands before it is armed again
SOON_S = 0.001  # at the next tick
FLUSH_S = 0.5  # when what is finished without a client is stored


class Reading:
    """All reads and waits of one subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._runtime = subscription.runtime
        self._waits: dict[QueueRef, DataWait] = {}
        self._stalled: list[QueueState] = []  # to be tried again after an error

    def ask_ends(self, request: EndsRequest) -> None:
        """Ask the backend where queues end, for a PullBuffer that reads them merged."""
        asked = self._runtime.backend.bounds([state.queue for state in request.states])
        inline = True

        def answered(found: Completion[list[Bounds | None]]) -> None:
            if found.error is not None:
                request.scope.ends_failed()
                self._stall(request.states[0], found.error)
                return
            request.scope.ends(request, found.value)
            if not inline:
                self.subscription.group.serve()

        asked.then(answered)
        inline = False

    def read(self, request: ReadRequest) -> None:
        """Carry out what a PullBuffer asks for."""
        read = QueueRead(self, request)
        self._runtime.backend.read(
            request.state.queue,
            request.offset,
            request.count_max,
            request.bytes_max,
            into=read,
            tags=request.tags,
        )
        if read.done:
            self.read_done(read)
        else:
            read.inline = False

    def read_done(self, read: QueueRead) -> Loaded:
        """A read came back, at once or later."""
        state, subscription = read.request.state, self.subscription
        if read.error is not None:
            subscription.buffer.read_failed(read.request)
            self._stall(state, read.error)
            return Loaded.TAIL
        if state.retry_queue and read.request.purpose is Purpose.NEW:
            self._pass_over_other_lives(state, read.value)
        agenda, now = self._runtime.agenda, self._runtime.now()
        loaded = subscription.buffer.loaded(read.request, read.value, now)
        if loaded is Loaded.TAIL:
            self._arm(state)
        elif loaded is Loaded.GONE and subscription.holds(state):
            subscription.drop(state.queue)
            agenda.set(subscription, now + SOON_S)  # what waited behind its messages goes on
        if state.jobs.owes:  # finished undelivered: no client will have it stored
            agenda.set(subscription, now + FLUSH_S)
        if state.jobs.burials:
            subscription.settle_up((state,))
        return loaded

    def _pass_over_other_lives(self, state: QueueState, batch: ReadBatch) -> None:
        """What failed before the subscription was deleted, and made anew, is finished undelivered."""
        subscription = self.subscription
        if batch.status is not ReadStatus.DATA or not subscription.created_ms:
            return
        jobs, finished = state.jobs, state.jobs.ack_map.is_finished
        gone = [
            offset
            for index, offset in enumerate(batch.offsets)
            if is_of_another_life(batch.record(index).system, subscription.created_ms)
            and not (finished(offset) or jobs.is_burying(offset))
        ]
        if gone:
            jobs.skip(ranges_of(gone))
            state.feed.finished_until = max(state.feed.finished_until, gone[-1] + 1)
            group, topic = subscription.group.name, subscription.topic
            self._runtime.metrics.cell(SKIPPED, group, topic, "subscription deleted").value += len(gone)

    def _stall(self, state: QueueState, error: Exception) -> None:
        subscription = self.subscription
        if not isinstance(error, DrainingError):
            log.warning(
                "queue not readable",
                extra={
                    "group": subscription.group.name,
                    "topic": subscription.topic,
                    "error": str(error),
                },
            )
        if subscription.holds(state):
            self._stalled.append(state)
            self._runtime.agenda.set(subscription, self._runtime.now() + RETRY_S)

    def go_on(self) -> None:
        """Try again what could not be read."""
        stalled, self._stalled = self._stalled, []
        for state in stalled:
            self.subscription.buffer.data_arrived(state)

    # --- at a queue's end

    def _arm(self, state: QueueState) -> None:
        if state.queue in self._waits or not self.subscription.joined:
            return
        wait = self._waits[state.queue] = DataWait(self, state)
        runtime = self._runtime
        runtime.backend.wait(state.queue, state.feed.cursor, runtime.now() + WAIT_S, into=wait)

    def wait_done(self, wait: DataWait) -> None:
        """There is data, or the wait has stood long enough."""
        state, subscription = wait.state, self.subscription
        self._waits.pop(state.queue, None)
        if not subscription.holds(state):
            return
        if wait.error is not None:
            self._stall(state, wait.error)
        elif wait.value:
            subscription.buffer.data_arrived(state)
            subscription.group.serve()
        else:
            self._arm(state)

    def forget(self, queue: QueueRef) -> None:
        """A queue is not ours any more."""
        wait = self._waits.pop(queue, None)
        if wait is not None:
            wait.cancel()
