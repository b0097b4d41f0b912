"""One group's subscription to one topic: the PullBuffer, and the backend calls it asks for.

It takes its seats (seat.py) with the first pull and leaves them after `idle_ms` without one. Queues that
it is given are read on demand (reading.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from backend.port import Sharing
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.names import retry_qid, retry_topic
from proxy_consumer.answers import Place
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.agenda import NEVER
from proxy_consumer.core.order.queue_stream import QueueStream
from proxy_consumer.core.order.scope import EndsRequest
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.steps import Delivery, QueueState
from proxy_consumer.departures.retry_queues import retry_queue_of
from proxy_consumer.departures.undertaker import Undertaker
from proxy_consumer.groups.ordering import SubscriptionOrder, same_order, sharing_of, start_anew
from proxy_consumer.results.commits import Part, ProgressCommit, collect, store_settings
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.gates import gate_of, same_gate
from proxy_consumer.subscription.handover import (
    Carried,
    carried_of,
    epoch_of,
    leases_key,
    newest,
    note_of,
    read_note,
)
from proxy_consumer.subscription.next_offsets import NextOffsets
from proxy_consumer.subscription.reading import FLUSH_S, SOON_S, Reading
from proxy_consumer.subscription.reads import Held, held_of
from proxy_consumer.subscription.seat import RETRY_S, Seat

if TYPE_CHECKING:
    from proxy_consumer.groups.group import Group

LOST_S = 3.0  # a queue that was lost is mostly ours again by then: a writer is replaced in 3 s
READS_MAX = 32  # reads answered at once in one `take`; then others have their turn


class Subscription:
    """The shell around one PullBuffer. Also a task of the agenda."""

    def __init__(self, runtime: Runtime, group: Group, topic: str, config: SubscriptionDefaults) -> None:
        self.runtime = runtime
        self.group = group
        self.topic = topic
        self.config = config
        self.wake_at = NEVER
        self.creating = False
        self.created_ms = 0  # epoch milliseconds as the settings have it; 0: not known yet
        self.removed = False  # deleted, here or elsewhere: it never joins again
        self.halted = 0  # how often it is about to start anew, and takes nothing until then
        self.last_used = runtime.now()
        self.order = SubscriptionOrder(runtime, group, self)
        self.buffer = PullBuffer(
            config,
            runtime.config.answer_bytes_max,
            runtime.read_ahead,
            runtime.lease_ids,
            runtime.tally(group.name, topic),
            runtime.held,
            gate_of(config),
        )
        self._handed = runtime.handed_out(group.name, topic, self.buffer.tally)
        self.undertaker = Undertaker(self)
        self._seat = Seat(self, topic, retry=False)
        self._retry_seat = Seat(self, retry_topic(group.name), retry=True)
        self.reading = Reading(self)
        self._handed_out: dict[QueueRef, tuple[int, int]] = {}  # of lost queues: generation, delivered until
        self._carried: dict[QueueRef, Carried] = {}  # of lost queues
        self._next_offsets = NextOffsets(runtime)
        self.readable = True
        self.check_topic()

    def check_topic(self) -> None:
        """The topic may have been made readable, or not."""
        info = self.runtime.backend.topic(self.topic)
        self.readable = info is None or info.readable

    @property
    def topic_exists(self) -> bool:
        return self.runtime.backend.topic(self.topic) is not None

    def configure(self, config: SubscriptionDefaults) -> None:
        """New settings. Limits hold at once; another filter judges anew what is not delivered.

        Another order key starts the queues anew, and those of all topics that share its chains.
        """
        before, self.config = self.config, config
        self.buffer.configure(config)
        if not same_gate(before, config):
            self.buffer.filter_by(gate_of(config))
        if not same_order(before, config):
            start_anew([self] if config.scope != "group" else self.group.ordering.members())
            self.come_along()
        self.group.serve()

    # --- use and seats

    @property
    def joined(self) -> bool:
        return self._seat.joined

    @property
    def complete(self) -> bool:
        """Whether our queues of the topic are known and loaded."""
        return self._seat.complete

    def use(self, now: float) -> None:
        """A client pulls."""
        self.last_used = now
        if not self._seat.joined and not self.creating:
            self.join()
        if self.config.scope == "group" and self.group.ordering.used_at != now:
            self.group.ordering.used_at = now
            for other in self.group.ordering.members():
                other.last_used = now
                if not other.joined and not other.creating:
                    other.join_alone()

    def take_up(self) -> bool:
        """Results came of queues that nobody holds: take ours, as for a pull; False where nobody pulls."""
        if self.creating or self.config.pushed or self.runtime.pull_fault(self.group) is not None:
            return False
        self.use(self.runtime.now())
        return True

    def come_along(self) -> None:
        """Take part at once where topics that share its chains deliver already."""
        members = self.group.ordering.members()
        if self in members and not self.creating and any(each.joined for each in members):
            if not self.joined:
                self.join()
            self.order.update()

    def join(self) -> None:
        """Take the seats, until nobody pulls any more."""
        if self.removed:
            return
        self.join_alone()
        self.runtime.agenda.set(self, self.runtime.now() + self.runtime.config.idle_ms / 1000)

    def join_alone(self) -> None:
        """Take the seats."""
        if self.removed:
            return
        self._seat.join(sharing_of(self.config))
        self.check_retry_queue()

    def check_retry_queue(self) -> None:
        """The group's retry topic may have a queue for this topic now.

        Also where the subscription has an order key by now: what is on its way was sent without.
        """
        if not self._seat.joined or self._retry_seat.joined:
            return
        queue = retry_queue_of(self.runtime, self.group.name, self.topic)
        if queue is not None:
            self._retry_seat.join(Sharing.AVERAGELY, frozenset({queue.queue_id}))

    def give_up(self) -> None:
        """Leave, to join again at once."""
        for state in self.buffer.queues.values():
            self.remember_lost(state)
        self.leave()

    def remove(self) -> None:
        """The subscription is deleted: give up every queue, for good."""
        self.removed = True
        self.leave()
        self.runtime.agenda.set(self, self.runtime.now() + SOON_S)

    def leave(self) -> None:
        """Give up every queue; what is leased comes again, here or elsewhere."""
        self.flush()
        store_settings(self.runtime, self.notes(self.buffer.queues.values()))
        for queue in list(self.buffer.queues):
            self.drop(queue)
        self._seat.leave()
        self._retry_seat.leave()
        self.order.forget()

    def holds(self, state: QueueState) -> bool:
        """Whether `state` is still what we hold of its queue."""
        return self.buffer.queues.get(state.queue) is state

    def streams(self) -> Iterator[tuple[QueueState, QueueStream]]:
        """The queues that are in an ordered scope."""
        for state in self.buffer.queues.values():
            if state.stream is not None:
                yield state, state.stream

    # --- queues

    def install(self, seat: Seat, queue: QueueRef, view: ProgressView, bounds: Bounds, epoch: int) -> None:
        """A queue is ours and its progress known."""
        before = self._handed_out.pop(queue, None)
        known = self._known_of(queue)
        if view.committed is not None and known is None and epoch > 1 and self.config.scope:
            wait_s = self.config.handover_wait_ms / 1000
            self.order.open_at = max(self.order.open_at, self.runtime.now() + wait_s)
        order = None if seat.retry else self.order.of(queue)
        state = self.buffer.assign(queue, view, bounds, order, retry_queue=seat.retry)
        state.jobs.epoch = epoch
        self._next_offsets.note(queue, bounds.next)
        runtime = self.runtime
        name = retry_qid(runtime.backend.cluster, queue.queue_id) if seat.retry else runtime.qid(queue)
        held = state.label = Held(Place(self.group.name, self.topic, name), self, state)
        if before is not None and before[0] == view.generation:
            state.jobs.handed_out = before[1]
        if known is not None and known.generation == view.generation:
            self.buffer.adopt(state, known.runs, known.acked, runtime.now())
            if state.jobs.owes:
                runtime.agenda.set(self, runtime.now() + FLUSH_S)
        runtime.lost.pop((self.group.name.encode(), *held.key), None)
        self.group.remember(held)

    def _known_of(self, queue: QueueRef) -> Carried | None:
        """What its former holder knew of a queue; it is told once."""
        runtime, key = self.runtime, leases_key(self.group.name, queue)
        carried, value = self._carried.pop(queue, None), runtime.backend.setting(key)
        if value is None:
            return carried
        store_settings(runtime, {key: None})
        return newest(carried, read_note(value, queue, runtime.now(), runtime.clock.wall_ms()))

    def knows(self, queue: QueueRef) -> bool:
        """Whether there is word of its former holder."""
        key = leases_key(self.group.name, queue)
        return queue in self._carried or self.runtime.backend.setting(key) is not None

    def told(self, key: str) -> None:
        """The setting `key` tells what clients have of a queue: we may be waiting for it, or it is late."""
        for queue, state in self.buffer.queues.items():
            if leases_key(self.group.name, queue) == key:
                if epoch_of(self.runtime.backend.setting(key)) < state.jobs.epoch:
                    store_settings(self.runtime, {key: None})
                return
        if self.joined:
            self.runtime.agenda.set(self, self.runtime.now() + SOON_S)

    def notes(self, states: Iterable[QueueState]) -> dict[str, bytes | None]:
        """What the next holders of these queues have to know of what clients have; {}: nothing."""
        if self.removed:
            return {}
        pushed = self.config.pushed
        always = bool(self.config.scope and self.config.handover_wait_ms and not pushed)
        now, wall_ms = self.runtime.now(), self.runtime.clock.wall_ms()
        return {
            leases_key(self.group.name, state.queue): note_of(state, now, wall_ms, pushed=pushed)
            for state in states
            if self.lives(state.queue) and (always or state.jobs.holds_more(leases=not pushed))
        }

    def installed(self) -> None:
        """All queues of a grant are there."""
        self.order.update()
        self.runtime.agenda.set(self, max(self.order.open_at, self.runtime.now()))
        self.settle_up(self.buffer.queues.values())
        self.group.serve()

    def drop(self, queue: QueueRef) -> None:
        """A queue is not ours any more."""
        self._next_offsets.forget(queue)
        state = self.buffer.revoke(queue)
        if state is not None:
            self.group.forget(held_of(state))
        self.reading.forget(queue)

    def lives(self, queue: QueueRef) -> bool:
        """Whether its topic is still there."""
        info = self.runtime.backend.topic(queue.topic)
        return info is not None and info.incarnation == queue.incarnation

    def let_go(self, queue: QueueRef) -> None:
        """A queue leaves and may come back: what shares its chains waits until that is known."""
        state, now = self.buffer.queues.get(queue), self.runtime.now()
        scope = None if state is None else self.buffer.scope_of(state)
        if scope is not None:
            if self.lives(queue):
                scope.invalidate()
                self.order.torn_until = now + LOST_S
            self.runtime.agenda.set(self, max(now + SOON_S, self.order.torn_until))
        self.drop(queue)

    def remember_lost(self, state: QueueState) -> None:
        """What clients hold of a queue that goes may still be acknowledged when it comes back."""
        held = held_of(state)
        held.lost = True
        until = max(state.jobs.handed_out, state.feed.next_offset())
        self._handed_out[state.queue] = (state.jobs.generation, until)
        self._carried[state.queue] = carried_of(state, pushed=self.config.pushed)
        self.runtime.lost[self.group.name.encode(), *held.key] = self.runtime.now() + LOST_S

    def refence(self, state: QueueState, then: Callable[[], None]) -> None:
        """A commit was fenced: see whether the queue was reset or lost; `then` runs in any case."""
        (self._retry_seat if state.retry_queue else self._seat).refence(state, then)

    def refence_all(self) -> None:
        """Offsets may have been reset."""
        for state in list(self.buffer.queues.values()):
            self.refence(state, lambda: None)

    # --- delivery

    def take(self, now: float, count: int) -> Delivery | None:
        """Messages for one client, if there are any now."""
        buffer = self.buffer
        if self.halted or not self.readable:
            return None
        for _ in range(READS_MAX):
            step = buffer.take(now, count)
            if isinstance(step, Delivery):
                self.runtime.agenda.set(self, step.deadline)
                self._handed.note(step, self.runtime.clock.wall_ms())
                return step
            if step is None:
                soon = now + SOON_S
                self.runtime.agenda.set(self, soon if buffer.short else max(soon, buffer.next_event()))
                return None
            if isinstance(step, EndsRequest):
                self.reading.ask_ends(step)
                continue
            held_of(step.state).subscription.reading.read(step)
        self.runtime.agenda.set(self, now + SOON_S)
        return None

    def next_offset(self, state: QueueState, now: float) -> int:
        """The queue's next offset as known lately, for our own clients."""
        return max(self._next_offsets.of(state.queue, now), state.feed.cursor)

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
        if self.removed:
            self.undertaker.go_on(now)  # nothing is moved any more: whoever waits for it is told
            return
        self.buffer.sweep(now)
        self.flush()
        self.reading.go_on()
        for seat in (self._seat, self._retry_seat):
            seat.load()
        self.order.update()
        self.undertaker.go_on(now)
        self.runtime.agenda.set(self, self.undertaker.next_event())
        self.settle_up(self.buffer.queues.values())
        for moment in (self.order.open_at, self.order.torn_until):
            if moment > now:
                self.runtime.agenda.set(self, moment)
        if self._leave_when_idle(now):
            return
        self.group.serve()

    def _leave_when_idle(self, now: float) -> bool:
        together = self.group.ordering.members() if self.config.scope == "group" else [self]
        waited_for = any(self.group.room.waiting_for(each.topic) for each in together)
        if not self.joined:
            if waited_for and not self.creating:
                self.join()
            return False
        until = max(each.last_used for each in together) + self.runtime.config.idle_ms / 1000
        if waited_for or any(each.buffer.budget.leased for each in together) or now < until:
            self.runtime.agenda.set(self, max(until, now + 1.0))
            return False
        for each in together:
            each.leave()
        return True
