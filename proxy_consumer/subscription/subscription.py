"""One group's subscription to one topic: the PullBuffer, and the backend calls it asks for.

It joins its group (membership.py) with the first pull and leaves it after `idle_ms` without one. Queues that
it is given are read on demand (reading.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from backend.ownership.claims import LOST_S, RETRY_S
from backend.port import Sharing
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.errors import FencedError
from ddmq_common.names import retry_qid, retry_topic
from proxy_consumer.answers import Place
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import UpstreamJob
from proxy_consumer.core.order.chains import QueueStream
from proxy_consumer.core.order.scope import EndsRequest
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.steps import BufferedQueue, Delivery, ReadRequest
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.retries.publisher import MoveSettings, RetryPublisher
from proxy_consumer.retries.retry_queues import retry_queue_of
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.held_queue import HeldQueue, ProgressCommit, collect, held_of, store_settings
from proxy_consumer.subscription.membership import Handover, SubscriptionMembership
from proxy_consumer.subscription.order import (
    SubscriptionGroup,
    SubscriptionOrder,
    idle_at,
    same_order,
    sharing_of,
    start_anew,
)
from proxy_consumer.subscription.parked_notes import load_notes, store_notes
from proxy_consumer.subscription.reading import FLUSH_S, SOON_S, Reading, filter_of, same_filter
from proxy_consumer.tracing.messages import SubscriptionTrace
from proxy_consumer.tracing.switching import switch

READS_MAX = 32  # reads answered at once in one `take`; then others have their turn


class Subscription:
    """The shell around one PullBuffer. Also a task of the timer queue."""

    def __init__(
        self, runtime: Runtime, group: SubscriptionGroup, topic: str, config: SubscriptionDefaults
    ) -> None:
        self.runtime = runtime
        self.group = group
        self.topic = topic
        self._set_config(config)
        self.wake_at = NEVER
        self.creating = False
        self.created_ms = 0  # epoch milliseconds as the settings have it; 0: not known yet
        self.removed = False  # deleted, here or elsewhere: it never joins again
        self.halted = 0  # how often it is about to start anew, and takes nothing until then
        self.last_used = runtime.now()
        self.order = SubscriptionOrder(runtime, group.shared, config)
        self.buffer = PullBuffer(
            config, runtime.config.answer_bytes_max, runtime.read_ahead, runtime.lease_ids,
            runtime.tally(group.name, topic), runtime.held, filter_of(config), group.name,
        )  # fmt: skip
        self.trace: SubscriptionTrace | None = None
        self.handed = runtime.delivery_cells(group.name, topic, self.buffer.tally)
        self.retries = RetryPublisher(runtime, group.name, topic, self)
        self.handover = Handover(runtime, group.name, config)
        self.membership = SubscriptionMembership(runtime, self, topic, self.handover, retry=False)
        self.retry_membership = SubscriptionMembership(
            runtime, self, retry_topic(group.name), self.handover, retry=True
        )
        self.reading = Reading(runtime, self, self.buffer)
        self.check_topic()
        switch(runtime, self)

    def check_topic(self) -> None:
        """The topic may have been made readable, or not."""
        info = self.runtime.backend.topic(self.topic)
        self.readable = info is None or info.readable

    @property
    def group_name(self) -> str:
        return self.group.name

    @property
    def topic_exists(self) -> bool:
        return self.runtime.backend.topic(self.topic) is not None

    def _set_config(self, config: SubscriptionDefaults) -> None:
        self.config = config
        self.pushed = config.pushed  # both are asked for with every pull
        self.group_wide = config.scope == "group"

    def configure(self, config: SubscriptionDefaults) -> None:
        """New settings. Limits hold at once; another filter judges anew what is not delivered.

        Another order key starts the queues anew, and those of all topics that share its chains.
        """
        before = self.config
        self._set_config(config)
        self.order.config = self.handover.config = config
        self.buffer.configure(config)
        if not same_filter(before, config):
            self.buffer.filter_by(filter_of(config))
        if switch(self.runtime, self) or not same_order(before, config):
            self.start_anew()
            self.come_along()
        self.group.serve()

    def start_anew(self) -> None:
        together = self.group.members() if self.group_wide else [self]
        start_anew(together, self.runtime.now(), self.group.hand_over)

    # --- use and membership

    @property
    def joined(self) -> bool:
        return self.membership.claims.joined

    def use(self, now: float) -> None:
        """A client pulls."""
        self.last_used = now
        if not self.joined and not self.creating:
            self.join()
        if self.group_wide and self.group.shared.used_at != now:
            self.group.shared.used_at = now
            for other in self.group.members():
                other.last_used = now
                if not other.joined and not other.creating:
                    other.join_alone()

    def come_along(self) -> None:
        """Take part at once where topics that share its chains deliver already."""
        members = self.group.members()
        if self in members and not self.creating and any(each.joined for each in members):
            if not self.joined:
                self.join()
            self.update_order()

    def join(self) -> None:
        if self.removed:
            return
        self.join_alone()
        self.wake(self.runtime.now() + self.runtime.config.idle_ms / 1000)

    def join_alone(self) -> None:
        """Become a member; the others of its chains do so themselves."""
        if self.removed:
            return
        self.membership.join(sharing_of(self.config))
        self.check_retry_queue()

    def check_retry_queue(self) -> None:
        """The group's retry topic may have a queue for this topic now.

        Also where the subscription has an order key by now: what is on its way was sent without.
        """
        if not self.joined or self.retry_membership.claims.joined:
            return
        queue = retry_queue_of(self.runtime, self.group.name, self.topic)
        if queue is not None:
            self.retry_membership.join(Sharing.AVERAGELY, frozenset({queue.queue_id}))

    def give_up(self) -> None:
        for state in self.buffer.queues.values():
            self.handover.remember(state)
        self.leave()

    def remove(self) -> None:
        """The subscription is deleted: give up every queue, for good."""
        self.removed = self.handover.closed = True
        self.leave()
        self.wake(self.runtime.now() + SOON_S)

    def leave(self) -> None:
        """Give up every queue; what is leased comes again, here or elsewhere."""
        self.flush()
        store_settings(self.runtime, self.handover.notes(self.buffer.queues.values()))
        for queue in list(self.buffer.queues):
            self.drop(queue)
        self.membership.leave()
        self.retry_membership.leave()
        self.order.forget()

    def holds(self, state: BufferedQueue) -> bool:
        """Whether `state` is still what we hold of its queue."""
        return self.buffer.queues.get(state.queue) is state

    def update_order(self) -> None:
        """Open the scopes that are complete; at `order.open_at` the timer queue calls again."""
        if self.group_wide:
            self.group.open_shared()
        elif not self.halted and self.order.open_scopes(self.buffer.scopes(), ready=self.ready):
            start_anew([self], self.runtime.now(), self.group.hand_over)

    @property
    def ready(self) -> bool:
        """Whether every queue that takes part is here and may deliver."""
        loaded = self.membership.claims.complete
        return not self.topic_exists or (loaded and self.runtime.now() >= self.order.open_at)

    def streams(self) -> Iterator[tuple[BufferedQueue, QueueStream]]:
        """The queues that are in an ordered scope."""
        for state in self.buffer.queues.values():
            if state.stream is not None:
                yield state, state.stream

    # --- queues

    def end_pushes(self, queues: Sequence[QueueRef], until: float, then: Callable[[], None]) -> None:
        self.group.hand_over({self.topic: queues}, until, then)

    def install(
        self, queue: QueueRef, view: ProgressView, bounds: Bounds, epoch: int, *, retry: bool
    ) -> None:
        """A queue is ours and its progress known."""
        known = self.handover.take(queue)
        if view.committed is not None and known is None and epoch > 1 and self.config.scope:
            wait_s = self.config.handover_wait_ms / 1000
            self.order.open_at = max(self.order.open_at, self.runtime.now() + wait_s)
        order = None if retry else self.order.of(queue)
        state = self.buffer.assign(queue, view, bounds, order, retry_queue=retry)
        state.jobs.epoch = epoch
        load_notes(self.runtime, self.group.name, state)
        self.reading.note_end(queue, bounds.next)
        self.reading.tell_gone(queue, view.committed, bounds.min)
        runtime = self.runtime
        name = retry_qid(runtime.backend.cluster, queue.queue_id) if retry else runtime.qid(queue)
        held = state.label = HeldQueue(Place(self.group.name, self.topic, name), self, state)
        state.jobs.delivered_until = self.handover.delivered_until(queue, view.generation)
        if known is not None and known.generation == view.generation:
            state.adopt_leases(known.runs, known.acked, runtime.now())
            self.buffer.heard(state)
            if state.jobs.uncommitted:
                self.wake(runtime.now() + FLUSH_S)
        runtime.lost.pop((self.group.name.encode(), *held.key), None)
        self.group.remember(held)

    def told(self, key: str) -> None:
        """The setting `key` tells what clients have of a queue: we may be waiting for it, or it is late."""
        if self.handover.told(key, self.buffer.queues.values()) and self.joined:
            self.wake(self.runtime.now() + SOON_S)

    def installed(self) -> None:
        """All queues of a grant are there."""
        self.update_order()
        self.wake(max(self.order.open_at, self.runtime.now()))
        self.after_results(self.buffer.queues.values())
        self.group.serve()

    def drop(self, queue: QueueRef) -> None:
        """A queue is not ours any more."""
        state = self.buffer.revoke(queue)
        if state is not None:
            self.group.forget(held_of(state))
        self.reading.forget(queue)

    def let_go(self, queue: QueueRef) -> None:
        """A queue leaves and may come back: what shares its chains waits until that is known."""
        state, now = self.buffer.queues.get(queue), self.runtime.now()
        scope = None if state is None else self.buffer.scope_of(state)
        if scope is not None:
            if self.handover.lives(queue):
                scope.invalidate()
                self.order.torn_until = now + LOST_S
            self.wake(max(now + SOON_S, self.order.torn_until))
        self.drop(queue)

    def refence(self, state: BufferedQueue, then: Callable[[], None]) -> None:
        (self.retry_membership if state.retry_queue else self.membership).refence(state, then)

    def refence_all(self) -> None:
        """Offsets may have been reset."""
        for state in list(self.buffer.queues.values()):
            self.refence(state, lambda: None)

    # --- delivery

    def take(self, now: float, count: int) -> Delivery | None:
        """Messages for one client, if there are any now."""
        buffer = self.buffer
        if self.halted or not (self.readable and buffer.may_have):
            return None
        for _ in range(READS_MAX):
            step = buffer.take(now, count)
            if isinstance(step, Delivery):
                self.wake(step.lease.deadline)
                self.handed.note(step, self.runtime.clock.wall_ms())
                return step
            if step is None:
                soon = now + SOON_S
                self.wake(soon if buffer.short else max(soon, buffer.next_event()))
                return None
            if isinstance(step, EndsRequest):
                self.reading.ask_ends(step)
                continue
            held_of(step.state).subscription.read(step)
        self.wake(now + SOON_S)
        return None

    def read(self, request: ReadRequest) -> None:
        """Carry out what a PullBuffer asks for: of several that share a scope, not always ours."""
        self.reading.read(request)

    def next_offset(self, state: BufferedQueue, now: float) -> int:
        """The queue's next offset as known lately, for our own clients."""
        return max(self.reading.next_offset(state.queue, now), state.feed.cursor)

    # --- results

    def after_results(self, states: Iterable[BufferedQueue]) -> None:
        """After results or a sweep: dead letters on their way, and the next wake-up."""
        for state in states:
            jobs = state.jobs
            if jobs.table.spent:
                self.retries.take(state)
            if jobs.table.exhausted:
                store_notes(self.runtime, self.group.name, state)
            self.wake(jobs.next_event())

    def store_later(self) -> None:
        """Something could not be stored: try again soon."""
        self.wake(self.runtime.now() + RETRY_S)

    def flush(self) -> None:
        """Store progress that nobody waits for."""
        parts = collect(self, self.buffer.queues.values())
        if parts:
            ProgressCommit(self.runtime, parts).start()

    def serve(self) -> None:
        """There may be something for those who wait."""
        self.group.serve()

    # --- what the retry publisher tells

    @property
    def move_settings(self) -> MoveSettings:
        return MoveSettings(self.config, self.created_ms)

    def moved(self, state: BufferedQueue, job: UpstreamJob, *, gone: bool) -> None:
        """A spent message stands elsewhere, or was not there any more: then its finish is still to store."""
        if gone:
            state.jobs.skip([(job.offset, job.offset + 1)])
            self.buffer.tally.expired.value += 1
            self.store_later()
        if self.holds(state):
            state.jobs.published(job.offset)
            self.buffer.heard(state)
            self.group.serve()

    def not_moved(self, state: BufferedQueue, error: Exception, again_at: float) -> None:
        """A spent message could not be moved; the publisher tries again."""
        self.wake(again_at)
        if isinstance(error, FencedError) and self.holds(state):
            self.refence(state, lambda: None)

    # --- time

    def wake(self, moment: float) -> None:
        """`due` is to be called at `moment` (monotonic seconds), or before."""
        self.runtime.timers.set(self, moment)

    def due(self, now: float) -> None:
        """The timer queue's call: leases, retries, progress, what stalled, and idleness."""
        if self.removed:
            self.retries.go_on(now)  # nothing is moved any more: whoever waits for it is told
            return
        self.buffer.sweep(now)
        self.flush()
        self.reading.go_on()
        self.membership.load()
        self.retry_membership.load()
        self.retry_membership.join_again()
        self.update_order()
        self.retries.go_on(now)
        self.wake(self.retries.next_event())
        self.after_results(self.buffer.queues.values())
        for moment in (self.order.open_at, self.order.torn_until):
            if moment > now:
                self.wake(moment)
        if not self._leave_when_idle(now):
            self.group.serve()

    def _leave_when_idle(self, now: float) -> bool:
        together = self.group.members() if self.group_wide else (self,)
        waited_for = any(self.group.waiting.waiting_for(each.topic) for each in together)
        if not self.joined:
            if waited_for and not self.creating:
                self.join()
            return False
        until = idle_at(together, self.runtime.config.idle_ms / 1000, now)
        if waited_for or now < until:
            self.wake(max(until, now + 1.0))
            return False
        for each in together:
            each.leave()
        return True
