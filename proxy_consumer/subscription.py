"""One group's subscription to one topic: the PullBuffer, and the backend calls it asks for.

It joins the group's membership with the first pull and leaves after `idle_ms` without one. Queues that
are assigned are loaded (progress and bounds) and then read on demand: a read that the backend answers
at once is used at once, another one wakes the group's waiters when it comes. At a queue's end one wait
stands armed for as long as the subscription is in use, so that no append goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from backend.completion import Completion
from backend.port import Assignment, Membership
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.errors import DdmqError, DrainingError
from proxy_consumer.answers import Place
from proxy_consumer.commits import Part, ProgressCommit, collect
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.agenda import NEVER
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.steps import Delivery, Loaded, QueueState, ReadRequest
from proxy_consumer.departures.undertaker import Undertaker
from proxy_consumer.reads import DataWait, Held, QueueRead
from proxy_consumer.runtime import Runtime, log

if TYPE_CHECKING:
    from proxy_consumer.groups import Group

WAIT_S = 60.0  # how long one wait at a queue's end stands before it is armed again
RETRY_S = 0.5  # pause after the backend refused or failed a call
NEXT_OFFSET_AGE_S = 0.1
LOST_S = 3.0  # a queue that was lost is mostly ours again by then: a writer is replaced in 3 s


class Subscription:
    """The shell around one PullBuffer. Also the listener of its membership and a task of the agenda."""

    def __init__(self, runtime: Runtime, group: Group, topic: str, config: SubscriptionDefaults) -> None:
        self.runtime = runtime
        self.group = group
        self.topic = topic
        self.config = config
        self.wake_at = NEVER
        self.creating = False
        self.last_used = runtime.now()
        self.buffer = PullBuffer(
            config,
            runtime.config.answer_bytes_max,
            runtime.read_ahead,
            runtime.lease_ids,
            runtime.tally(group.name, topic),
            runtime.held,
        )
        self.undertaker = Undertaker(self)
        self._membership: Membership | None = None
        self._term = 0  # counts joins and leaves; answers of an earlier term are not for us
        self._waits: dict[QueueRef, DataWait] = {}
        self._stalled: list[QueueState] = []  # to be tried again after an error
        self._unloaded: set[QueueRef] = set()
        self._handed_out: dict[QueueRef, tuple[int, int]] = {}  # of lost queues: generation, delivered until
        self._next_offsets: dict[QueueRef, int] = {}
        self._next_offsets_at = 0.0
        self._epoch = 0
        self._join_after = 0.0
        self.readable = True
        self.check_topic()

    def check_topic(self) -> None:
        """The topic may have been made readable, or not."""
        info = self.runtime.backend.topic(self.topic)
        self.readable = info is None or info.readable

    def configure(self, config: SubscriptionDefaults) -> None:
        """New settings; consumption goes on."""
        self.config = config
        self.buffer.configure(config)

    # --- use and membership

    @property
    def joined(self) -> bool:
        return self._membership is not None

    def use(self, now: float) -> None:
        """A client pulls."""
        self.last_used = now
        if self._membership is None and not self.creating and now >= self._join_after:
            self._join()

    def _join(self) -> None:
        runtime = self.runtime
        self._term += 1
        try:
            self._membership = runtime.backend.join(self.group.name, self.topic, self)
        except DdmqError as error:
            log.warning("cannot join", extra={"group": self.group.name, "error": str(error)})
            self._join_after = runtime.now() + RETRY_S
            runtime.agenda.set(self, self._join_after)
            return
        runtime.agenda.set(self, runtime.now() + runtime.config.idle_ms / 1000)

    def leave(self) -> None:
        """Give up every queue; what is leased comes again, here or elsewhere."""
        self._term += 1
        self.flush()
        for queue in list(self.buffer.queues):
            self._drop(queue)
        self._unloaded.clear()
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.leave()

    def holds(self, state: QueueState) -> bool:
        """Whether `state` is still what we hold of its queue."""
        return self.buffer.queues.get(state.queue) is state

    def assigned(self, assignment: Assignment) -> None:
        """Queues are ours under this epoch."""
        self._epoch = assignment.epoch
        for queue in assignment.queues:
            held = self.buffer.queues.get(queue)
            if held is None:
                self._unloaded.add(queue)
            else:
                held.jobs.epoch = assignment.epoch
        self._load()

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        """Make what is finished durable, then let the queues go."""
        states = [self.buffer.queues[queue] for queue in queues if queue in self.buffer.queues]
        membership = self._membership

        def release(_: Exception | None) -> None:
            if membership is not None:
                membership.release(queues)

        parts = collect(self, states)
        for queue in queues:
            self._drop(queue)
        if parts:
            ProgressCommit(self.runtime, parts, release).start()
        else:
            release(None)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """They are not ours: the writer died, or our session, or someone else has them already.

        In the first two cases they mostly come back. Clients know nothing of this, so what they hold can
        still be acknowledged then; results that come in between are refused, and sent again.
        """
        for queue in queues:
            state = self.buffer.queues.get(queue)
            self._drop(queue)
            if state is not None:
                self._remember_lost(state)

    def _remember_lost(self, state: QueueState) -> None:
        held: Held = state.label
        held.lost = True
        until = max(state.jobs.handed_out, state.feed.next_offset())
        self._handed_out[state.queue] = (state.jobs.generation, until)
        self.runtime.lost[self.group.name.encode(), *held.key] = self.runtime.now() + LOST_S

    def _drop(self, queue: QueueRef) -> None:
        self._unloaded.discard(queue)
        state = self.buffer.revoke(queue)
        if state is not None:
            self.group.forget(state.label)
        wait = self._waits.pop(queue, None)
        if wait is not None:
            wait.cancel()

    # --- loading progress

    def _load(self) -> None:
        queues = sorted(self._unloaded)
        if not queues:
            return
        backend, term = self.runtime.backend, self._term
        progress = backend.progress(self.group.name, queues)
        bounds = backend.bounds(queues)

        def both(_: object) -> None:
            if progress.done and bounds.done and term == self._term:
                self._loaded(queues, progress, bounds)

        progress.then(both)
        if not bounds.done or not progress.done:
            bounds.then(both)

    def _loaded(
        self,
        queues: list[QueueRef],
        progress: Completion[list[ProgressView]],
        bounds: Completion[list[Bounds | None]],
    ) -> None:
        error = progress.error or bounds.error
        if error is not None:
            log.warning("progress not read", extra={"group": self.group.name, "error": str(error)})
            self.runtime.agenda.set(self, self.runtime.now() + RETRY_S)
            return
        for queue, view, limits in zip(queues, progress.value, bounds.value, strict=True):
            if queue in self._unloaded:
                self._unloaded.discard(queue)
                if limits is not None:
                    self._install(queue, view, limits)
        self.settle_up(self.buffer.queues.values())
        self.group.serve()

    def _install(self, queue: QueueRef, view: ProgressView, bounds: Bounds) -> None:
        state = self.buffer.assign(queue, view, bounds)
        state.jobs.epoch = max(self._epoch, view.epoch)
        self._next_offsets[queue] = bounds.next
        held = state.label = Held(Place(self.group.name, self.topic, self.runtime.qid(queue)), self, state)
        generation, until = self._handed_out.pop(queue, (view.generation, 0))
        if generation == view.generation:
            state.jobs.handed_out = until
        self.runtime.lost.pop((self.group.name.encode(), *held.key), None)
        self.group.remember(held)

    def refence(self, state: QueueState, then: Callable[[], None]) -> None:
        """A commit was fenced: see whether the queue was reset or lost; `then` runs in any case."""
        term = self._term
        view = self.runtime.backend.progress(self.group.name, (state.queue,))

        def checked(_: object) -> None:
            if term == self._term and self.holds(state) and view.error is None:
                now = view.value[0]
                if now.epoch > state.jobs.epoch:
                    self._drop(state.queue)
                elif now.generation != state.jobs.generation:
                    self._drop(state.queue)
                    self._unloaded.add(state.queue)
                    self._load()
            then()

        view.then(checked)

    def refence_all(self) -> None:
        """Offsets may have been reset."""
        for state in list(self.buffer.queues.values()):
            self.refence(state, lambda: None)

    # --- delivery

    def take(self, now: float, count: int) -> Delivery | None:
        """Messages for one client, if there are any now."""
        buffer = self.buffer
        if not self.readable:
            return None
        while True:
            step = buffer.take(now, count)
            if isinstance(step, Delivery):
                self.runtime.agenda.set(self, step.deadline)
                return step
            if step is None:
                return None
            self._read(step)

    def next_offset(self, state: QueueState, now: float) -> int:
        """The queue's next offset as known lately, for our own clients."""
        if now - self._next_offsets_at > NEXT_OFFSET_AGE_S:
            self._next_offsets_at = now
            queues = list(self.buffer.queues)
            self.runtime.backend.bounds(queues).then(lambda found: self._note_bounds(queues, found))
        return max(self._next_offsets.get(state.queue, 0), state.feed.cursor)

    def _note_bounds(self, queues: list[QueueRef], found: Completion[list[Bounds | None]]) -> None:
        if found.error is None:
            for queue, bounds in zip(queues, found.value, strict=True):
                if bounds is not None:
                    self._next_offsets[queue] = bounds.next

    def _read(self, request: ReadRequest) -> None:
        read = QueueRead(self, request)
        self.runtime.backend.read(
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
        state = read.request.state
        if read.error is not None:
            self.buffer.read_failed(read.request)
            self._stall(state, read.error)
            return Loaded.TAIL
        loaded = self.buffer.loaded(read.request, read.value, self.runtime.now())
        if loaded is Loaded.TAIL:
            self._arm(state)
        elif loaded is Loaded.GONE and self.holds(state):
            self._drop(state.queue)
        return loaded

    def _stall(self, state: QueueState, error: Exception) -> None:
        if not isinstance(error, DrainingError):
            log.warning(
                "queue not readable",
                extra={"group": self.group.name, "topic": self.topic, "error": str(error)},
            )
        if self.holds(state):
            self._stalled.append(state)
            self.runtime.agenda.set(self, self.runtime.now() + RETRY_S)

    def _arm(self, state: QueueState) -> None:
        if state.queue in self._waits or not self.joined:
            return
        wait = self._waits[state.queue] = DataWait(self, state)
        runtime = self.runtime
        runtime.backend.wait(state.queue, state.feed.cursor, runtime.now() + WAIT_S, into=wait)

    def wait_done(self, wait: DataWait) -> None:
        """There is data, or the wait has stood long enough."""
        state = wait.state
        self._waits.pop(state.queue, None)
        if not self.holds(state):
            return
        if wait.error is not None:
            self._stall(state, wait.error)
        elif wait.value:
            self.buffer.data_arrived(state)
            self.group.serve()
        else:
            self._arm(state)

    # --- results and time

    def settle_up(self, states: Iterable[QueueState]) -> None:
        """After results or a sweep: dead letters on their way, and the next wake-up."""
        agenda = self.runtime.agenda
        for state in states:
            jobs = state.jobs
            if jobs.burials:
                self.undertaker.take(state)
            agenda.set(self, jobs.next_event())

    def owe(self) -> None:
        """Something could not be stored: try again soon."""
        self.runtime.agenda.set(self, self.runtime.now() + RETRY_S)

    def flush(self) -> None:
        """Store what is owed and nobody waits for."""
        parts: list[Part] = collect(self, self.buffer.queues.values())
        if parts:
            ProgressCommit(self.runtime, parts).start()

    def due(self, now: float) -> None:
        """The agenda's call: leases, retries, what is owed, what stalled, and idleness."""
        self.buffer.sweep(now)
        self.flush()
        stalled, self._stalled = self._stalled, []
        for state in stalled:
            self.buffer.data_arrived(state)
        self._load()
        self.undertaker.go_on(now)
        self.settle_up(self.buffer.queues.values())
        if self._leave_when_idle(now):
            return
        self.group.serve()

    def _leave_when_idle(self, now: float) -> bool:
        if not self.joined:
            if self.group.room.waiting_for(self.topic) and not self.creating:
                self._join()
            return False
        until = self.last_used + self.runtime.config.idle_ms / 1000
        if self.group.room.waiting_for(self.topic) or self.buffer.budget.leased or now < until:
            self.runtime.agenda.set(self, max(until, now + 1.0))
            return False
        self.leave()
        return True
