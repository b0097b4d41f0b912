"""One consumer group at this proxy, and its subscriptions: one module, because they refer to each other.

A subscription joins its group (membership.py) with the first pull and leaves it after `idle_ms` without one.
Its queues are read on demand (reading.py) into its PullBuffer. Subscriptions whose chains cover the group
share one ordered scope. All of them are joined as soon as one is pulled from. When one reloads its queues,
all do, because their waiting messages depend on its messages too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from backend.ownership.claims import LOST_S
from backend.port import Sharing
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.errors import FencedError
from ddmq_common.metrics.catalogue import PAUSED
from ddmq_common.names import retry_qid, retry_topic
from ddmq_common.trace.sampling import OFF
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.held_pulls import HeldPull, HeldPulls, Pusher
from proxy_consumer.core.jobs import UpstreamJob
from proxy_consumer.core.order.chains import QueueStream
from proxy_consumer.core.order.scope import EndsRequest
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.queue_name import QueueName
from proxy_consumer.core.steps import Delivery
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.retries.publisher import RetryPublisher
from proxy_consumer.retries.retry_queues import retry_queue_of
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.commits import (
    ProgressCommit,
    SubscriptionBase,
    collect_progress,
    store_settings,
)
from proxy_consumer.subscription.membership import SubscriptionMembership, handover_settings
from proxy_consumer.subscription.order import SharedOrder, SubscriptionOrder, same_order, set_open, sharing_of
from proxy_consumer.subscription.parked_heads import load_parked_heads, store_parked_heads
from proxy_consumer.subscription.reading import FLUSH_S, SOON_S, Reading, filter_of, same_filter
from proxy_consumer.subscription.wait_reason import find_wait_reason
from proxy_consumer.tracing.messages import SubscriptionTrace, trace_limit

READS_MAX = 32  # reads completed at once within one `take_batch`; then other work gets a turn
PUSHES_S = 1.5  # longest time for which pushes in progress delay a reload of queues
BROADCASTING = "broadcasting"
NEVER_USED = float("-inf")  # no client has pulled here


class Subscription(SubscriptionBase):
    """One group's subscription to one topic: connects its PullBuffer with the backend and the group."""

    def __init__(self, runtime: Runtime, group: Group, topic: str, config: SubscriptionDefaults) -> None:
        buffer = PullBuffer(
            config, runtime.config.answer_bytes_max, runtime.read_ahead, runtime.lease_ids,
            runtime.build_tally(group.name, topic), runtime.read_bytes, filter_of(config), group.name,
        )  # fmt: skip
        super().__init__(runtime, group.name, topic, config, buffer)
        self.group = group
        self._set_config(config)
        self.creating = False
        self.halted = 0  # number of pending reloads; while there are any, nothing is delivered
        self.paused_ms = 0  # since when an operator has paused it, in epoch milliseconds; 0: it is not paused
        self.last_used = NEVER_USED  # by a pull here, in monotonic seconds
        self.order = SubscriptionOrder(runtime, group.shared, config)
        self.handed = runtime.build_delivery_metrics(group.name, topic, buffer.tally)
        self.retries = RetryPublisher(runtime, self)
        self.membership = SubscriptionMembership(runtime, self, topic)
        self.retry_membership = SubscriptionMembership(runtime, self, retry_topic(group.name))
        self.reading = Reading(runtime, self)
        self.check_topic()
        self.switch_trace()

    def check_topic(self) -> None:
        """Read again whether the topic is readable."""
        info = self.runtime.backend.topic(self.topic)
        self.readable = info is None or info.readable

    def _set_config(self, config: SubscriptionDefaults) -> None:
        self.config = config
        self.pushed = config.pushed  # both are read at every pull
        self.group_wide = config.scope == "group"

    def apply_config(self, config: SubscriptionDefaults) -> None:
        """Apply new settings. Limits apply at once; a new filter is applied to all undelivered messages.

        A new order key reloads the queues, and those of all topics that share its chains.
        """
        before = self.config
        self._set_config(config)
        self.order.config = config
        self.buffer.apply_config(config)
        if not same_filter(before, config):
            self.buffer.filter_by(filter_of(config))
        if self.switch_trace() or not same_order(before, config):
            self.reload_queues()
            self.join_with_members()
        self.group.serve()

    def set_paused(self, paused_ms: int) -> None:
        """Deliver nothing from now on, paused since `paused_ms`; with 0, deliver again.

        Clients keep their messages and may finish them. Membership, reading and progress stay as they are.
        """
        if paused_ms == self.paused_ms:
            return
        self.paused_ms = paused_ms
        self.buffer.set_paused(bool(paused_ms))
        self.runtime.metrics.cell(PAUSED, self.group_name, self.topic).value = int(bool(paused_ms))
        if paused_ms:
            for pusher in self.group.pushers.get(self.topic, ()):
                pusher.return_waiting()
        else:
            self.group.serve()

    def reload_queues(self) -> None:
        """Reload its queues, and those sharing its chains, under a new epoch; clients keep leases."""
        self.group.reload_queues(self.group.sharing_members() if self.group_wide else [self])

    # --- use and membership

    @property
    def joined(self) -> bool:
        return self.membership.claims.joined

    def on_use(self, now: float) -> None:
        """Join the group if needed, because a client pulls."""
        self.last_used = now
        if not self.joined and not self.creating:
            self.join()
        if self.group_wide and self.group.shared.used_at != now:
            self.group.shared.used_at = now
            for other in self.group.sharing_members():
                other.last_used = now
                if not other.joined and not other.creating:
                    other.join_alone()

    def join_with_members(self) -> None:
        """Join at once if topics that share its chains deliver already."""
        members = self.group.sharing_members()
        if self in members and not self.creating and any(each.joined for each in members):
            if not self.joined:
                self.join()
            self.update_order()

    def join(self) -> None:
        """Join the group until no client pulls any more."""
        if self.removed:
            return
        self.join_alone()
        self.wake(self.runtime.now() + self.runtime.config.idle_ms / 1000)

    def join_alone(self) -> None:
        """Join the group, without the subscriptions that share its chains."""
        if self.removed:
            return
        self.membership.join(sharing_of(self.config))
        self.check_retry_queue()

    def check_retry_queue(self) -> None:
        """Join the group's retry topic if it has a queue for this topic.

        This holds with an order key, too: messages may still be on the retry path from before it was set.
        """
        if not self.joined or self.retry_membership.claims.joined:
            return
        ref = retry_queue_of(self.runtime, self.group_name, self.topic)
        if ref is not None:
            self.retry_membership.join(Sharing.AVERAGELY, frozenset({ref.queue_id}))

    def give_up(self) -> None:
        """Leave the group in order to join again at once; the leases are remembered."""
        for queue in self.buffer.queues.values():
            self.membership_of(queue.ref).remember_lost(queue)
        self.leave()

    def remove(self) -> None:
        """Release every queue for good, because the subscription was deleted."""
        self.removed = True
        self.set_paused(0)
        self.leave()
        self.wake(self.runtime.now() + SOON_S)

    def leave(self) -> None:
        """Release every queue; leased messages are delivered again, here or by another proxy."""
        self.flush()
        store_settings(self.runtime, handover_settings(self, self.buffer.queues.values()))
        for ref in list(self.buffer.queues):
            self.drop(ref)
        self.membership.leave()
        self.retry_membership.leave()
        self.order.drop_scope()

    def update_order(self) -> None:
        """Open the scopes that are complete; the timer queue calls again at `order.open_at`."""
        if self.group_wide:
            self.group.open_shared()
        elif not self.halted and self.order.open_scopes(self.buffer.ordered_scopes(), ready=self.is_ready):
            self.group.reload_queues([self])

    @property
    def is_ready(self) -> bool:
        """Whether all its queues are loaded and may deliver."""
        loaded = self.membership.claims.complete
        topic_exists = self.runtime.backend.topic(self.topic) is not None
        return not topic_exists or (loaded and self.runtime.now() >= self.order.open_at)

    def ordered_streams(self) -> Iterator[tuple[SubscribedQueue, QueueStream]]:
        """Iterate over the queues in an ordered scope, with their streams."""
        for queue in self.buffer.queues.values():
            if queue.stream is not None:
                yield queue, queue.stream

    # --- queues

    def membership_of(self, ref: QueueRef) -> SubscriptionMembership:
        """Return the membership of a queue: that of the topic, or of the group's retry topic."""
        return self.membership if ref.topic == self.topic else self.retry_membership

    def end_pushes(self, refs: Sequence[QueueRef], until: float, then: Callable[[], None]) -> None:
        self.group.hand_over({self.topic: refs}, until, then)

    def install(self, ref: QueueRef, view: ProgressView, bounds: Bounds, epoch: int) -> None:
        """Add a queue that this proxy acquired and whose progress is loaded."""
        runtime, membership = self.runtime, self.membership_of(ref)
        retry = membership is self.retry_membership
        inherited = membership.take_inherited(ref)
        if view.committed is not None and inherited is None and epoch > 1 and self.config.scope:
            wait_s = self.config.handover_wait_ms / 1000
            self.order.open_at = max(self.order.open_at, runtime.now() + wait_s)
        order = None if retry else self.order.scope_of(ref)
        observer = None if self.trace is None else self.trace.follow_queue(ref)
        queue = self.buffer.assign_queue(ref, view, bounds, order, retry_queue=retry, observer=observer)
        if observer is not None:
            observer.queue = queue
        queue.epoch = epoch
        load_parked_heads(runtime, self.group_name, queue)
        self.reading.record_end(ref, bounds.next)
        self.reading.warn_expired(ref, view.committed, bounds.min)
        qid = retry_qid(runtime.backend.cluster, ref.queue_id) if retry else runtime.qid(ref)
        queue.name = QueueName(self.group_name, self.topic, qid)
        queue.delivered_until = membership.delivered_until(ref, view.generation)
        if inherited is not None and inherited.generation == view.generation:
            queue.adopt_leases(inherited.runs, inherited.acked, runtime.now())
            self.buffer.on_news(queue)
            if queue.uncommitted:
                self.wake(runtime.now() + (FLUSH_S if queue.stream is None else SOON_S))
        runtime.lost.pop((self.group_name.encode(), *queue.name.key), None)
        self.group.queues[queue.name.key] = queue

    def on_lease_setting(self, setting: str) -> None:
        """Handle a changed setting with client leases: load a queue that waited for it, or ignore it."""
        if self.membership.is_expected(setting, self.buffer.queues.values()) and self.joined:
            self.wake(self.runtime.now() + SOON_S)

    def on_installed(self) -> None:
        """Open the scopes and serve the waiting pulls, after all queues of an assignment were installed."""
        self.update_order()
        self.wake(max(self.order.open_at, self.runtime.now()))
        self.after_results(self.buffer.queues.values())
        self.group.serve()

    def drop(self, ref: QueueRef) -> None:
        """Forget a queue that this proxy lost."""
        queue = self.buffer.revoke_queue(ref)
        if queue is not None and self.group.queues.get(queue.name.key) is queue:
            del self.group.queues[queue.name.key]
        self.reading.drop_queue(ref)

    def suspend(self, ref: QueueRef) -> None:
        """Drop a queue that may come back; queues that share its chains wait until that is known."""
        queue, now = self.buffer.queues.get(ref), self.runtime.now()
        scope = None if queue is None else self.buffer.scope_of(queue)
        if scope is not None:
            if self.runtime.topic_lives(ref):
                scope.mark_invalid()
                self.order.lost_until = now + LOST_S
            self.wake(max(now + SOON_S, self.order.lost_until))
        self.drop(ref)

    def refence(self, queue: SubscribedQueue, then: Callable[[], None]) -> None:
        self.membership_of(queue.ref).claims.reread((queue.ref,), then)

    def refence_all(self) -> None:
        """Read the progress of all queues again, because offsets may have been reset."""
        for queue in list(self.buffer.queues.values()):
            self.refence(queue, lambda: None)

    # --- delivery

    def take_batch(self, now: float, count: int) -> Delivery | None:
        """Return messages for a pull of `count`, or None if there are none now."""
        buffer = self.buffer
        if self.halted or not (self.readable and buffer.can_deliver):
            return None
        for _ in range(READS_MAX):
            step = buffer.next_step(now, count)
            if isinstance(step, Delivery):
                self.wake(step.lease.deadline)
                self.handed.record_delivery(step, self.runtime.clock.wall_ms())
                if self.trace is not None:
                    self.trace.on_handed_out(step)
                return step
            if step is None:
                soon = now + SOON_S
                self.wake(soon if buffer.stopped_early else max(soon, buffer.next_event()))
                return None
            if isinstance(step, EndsRequest):
                self.reading.request_ends(step)
                continue
            owner = self if buffer.holds_queue(step.queue) else self.group.subscription_of(step.queue)
            owner.reading.read(step)
        self.wake(now + SOON_S)
        return None

    def next_offset(self, queue: SubscribedQueue, now: float) -> int:
        """Return the recently known end of the queue, for ddmq_client."""
        return max(self.reading.next_offset(queue.ref, now), queue.feed.cursor)

    def serve(self) -> None:
        self.group.serve()

    # --- results

    def after_results(self, queues: Iterable[SubscribedQueue]) -> None:
        """Move spent messages of these queues, record parked ones, and set the next wake-up."""
        for queue in queues:
            if queue.table.spent:
                self.retries.take_spent(queue)
            if queue.table.exhausted:
                store_parked_heads(self.runtime, self.group_name, queue)
            self.wake(queue.next_event())

    def flush(self) -> None:
        """Store progress for which no call waits."""
        shares = collect_progress(self, self.buffer.queues.values())
        if shares:
            ProgressCommit(self.runtime, shares).start()

    def on_moved(self, queue: SubscribedQueue, job: UpstreamJob, *, expired: bool) -> None:
        if expired:
            queue.skip([(job.offset, job.offset + 1)])
            self.buffer.tally.expired.value += 1
            self.wake(self.runtime.now() + SOON_S)
        if self.buffer.holds_queue(queue):
            queue.on_published(job.offset)
            self.buffer.on_news(queue)
            self.group.serve()

    def on_not_moved(self, queue: SubscribedQueue, error: Exception, retry_at: float) -> None:
        self.wake(retry_at)
        if isinstance(error, FencedError) and self.buffer.holds_queue(queue):
            self.refence(queue, lambda: None)

    # --- tracing

    def switch_trace(self) -> bool:
        """Start or stop tracing by the settings; return True if the queues must be reloaded for it."""
        runtime, before = self.runtime, self.trace
        if runtime.traces is None:
            return False
        limit = trace_limit(runtime, self.topic, self.config)
        if before is not None and limit != OFF:
            before.limit = limit
        if (before is None) == (limit == OFF):
            return False
        if limit == OFF:
            self.trace = None
            runtime.traced.pop(self, None)
        else:
            self.trace = SubscriptionTrace(runtime, self.topic, self.buffer, runtime.traces, limit)
            runtime.traced[self] = None
            runtime.heartbeat.wake_up()
        return True

    def run_tick(self) -> None:
        """Record what holds up deliveries now; called at each tick while the subscription is traced."""
        if self.removed:
            self.runtime.traced.pop(self, None)
        elif self.trace is not None:
            self.trace.record_wait(find_wait_reason(self, self.group.waiting.waiting_for(self.topic)))

    # --- time

    def due(self, now: float) -> None:
        """Handle leases, retries, progress, failed reads and idleness; called by the timer queue."""
        if self.removed:
            self.retries.start_moves(now)  # moves nothing any more; notifies callers that wait for a move
            return
        self.buffer.expire_due(now)
        self.flush()
        self.reading.retry_stalled()
        self.membership.load()
        self.retry_membership.load()
        self.retry_membership.rejoin_group()
        self.update_order()
        self.retries.start_moves(now)
        self.wake(self.retries.next_event())
        self.after_results(self.buffer.queues.values())
        for moment in (self.order.open_at, self.order.lost_until):
            if moment > now:
                self.wake(moment)
        if not self._leave_when_idle(now):
            self.group.serve()

    def _leave_when_idle(self, now: float) -> bool:
        together = self.group.sharing_members() if self.group_wide else (self,)
        waited_for = any(self.group.waiting.waiting_for(each.topic) for each in together)
        if not self.joined:
            if waited_for and not self.creating:
                self.join()
            return False
        until = max(each.last_used for each in together) + self.runtime.config.idle_ms / 1000
        until = max(until, *(each.order.held_until for each in together))  # by an operator
        is_leased = any(each.buffer.budget.leased for each in together)
        if waited_for or is_leased or now < until:
            self.wake(max(until, now + 1.0))
            return False
        for each in together:
            each.leave()
        return True


class Group:
    """One consumer group at this proxy. `queues`: the queues that it owns, by (topic, qid)."""

    def __init__(self, runtime: Runtime, name: str, source: str) -> None:
        self.runtime = runtime
        self.name = name
        self.waiting = HeldPulls()
        self.subscriptions: dict[bytes, Subscription] = {}
        self.queues: dict[tuple[bytes, bytes], SubscribedQueue] = {}
        self.pushers: dict[str, list[Pusher]] = {}  # by topic: the current one last, before it ending ones
        self.unknown_queue = runtime.ignored_cell(name, "unknown queue")
        self.source = source
        self.created_ms = 0
        self.shared = SharedOrder()
        self._rotation: deque[Subscription] = deque()

    # --- subscriptions

    def add(self, topic: str, config: SubscriptionDefaults) -> Subscription:
        """Create a subscription, not joined yet."""
        subscription = Subscription(self.runtime, self, topic, config)
        self.subscriptions[topic.encode()] = subscription
        self._rotation.append(subscription)
        return subscription

    def remove(self, topic: str) -> None:
        """Remove a subscription and release its queues."""
        subscription = self.subscriptions.pop(topic.encode(), None)
        if subscription is not None:
            self._rotation.remove(subscription)
            subscription.remove()
            self.serve()  # what waited behind its messages goes on

    def subscription_of(self, queue: SubscribedQueue) -> Subscription:
        """Return the subscription that owns a queue."""
        return self.subscriptions[queue.name.key[0]]

    @property
    def is_broadcasting(self) -> bool:
        """Whether any of its subscriptions is broadcasting."""
        return any(each.config.model == BROADCASTING for each in self.subscriptions.values())

    # --- push runners

    def pusher_of(self, topic: str) -> Pusher | None:
        """Return the push runner of a topic, or None."""
        pushers = self.pushers.get(topic)
        return pushers[-1] if pushers else None

    def remove_pusher(self, pusher: Pusher, topic: str) -> None:
        """Remove a stopped push runner once its messages in flight are done."""
        self.pushers[topic].remove(pusher)
        if not self.pushers[topic]:
            del self.pushers[topic]

    def hand_over(
        self, refs: Mapping[str, Collection[QueueRef]], until: float, then: Callable[[], None]
    ) -> None:
        """Call `then` when no message of these queues (by their subscription's topic) is being pushed any
        more, at `until` (monotonic seconds) at the latest."""
        busy = [(pusher, refs[topic]) for topic in refs for pusher in self.pushers.get(topic, ())]
        unfinished = 1 + len(busy)

        def on_handed_over() -> None:
            nonlocal unfinished
            unfinished -= 1
            if unfinished == 0:
                then()

        for pusher, of in busy:
            pusher.hand_over(of, until, on_handed_over)
        on_handed_over()

    # --- chains that cover the group

    def sharing_members(self) -> list[Subscription]:
        """Return the subscriptions that share one scope (order.py)."""
        return [each for each in self.subscriptions.values() if each.group_wide]

    def open_shared(self) -> None:
        """Open the shared scope if all its queues are loaded, and close it otherwise."""
        scope, members = self.shared.scope, self.sharing_members()
        if any(each.halted for each in members):
            return
        if scope is None or not scope.queues:
            self.shared.scope = None
        elif all(each.order.must_reload(scope) for each in members):
            self.reload_queues(members)
        else:
            set_open(scope, all(each.is_ready for each in members))

    def reload_queues(self, subscriptions: Sequence[Subscription]) -> None:
        """Reload all queues of these subscriptions; their clients keep their leases.

        Pushes in progress end first, for at most PUSHES_S, because their outcome would otherwise be unknown.
        Until then nothing is delivered.
        """
        joined = [each for each in subscriptions if each.joined]
        for each in joined:
            each.halted += 1

        def on_pushes_done() -> None:
            for each in joined:
                each.halted -= 1
            still = [each for each in joined if each.joined]
            for each in still:
                each.give_up()
            for each in still:
                each.join()

        if joined:
            refs = {each.topic: list(each.buffer.queues) for each in joined}
            self.hand_over(refs, self.runtime.now() + PUSHES_S, on_pushes_done)

    # --- delivery

    def take_batch(self, now: float, count: int) -> Delivery | None:
        """Return messages of the next subscription that has some, or None."""
        rotation = self._rotation
        for _ in range(len(rotation)):
            candidate = rotation[0]
            rotation.rotate(-1)
            delivery = None if candidate.pushed else candidate.take_batch(now, count)
            if delivery is not None:
                return delivery
        return None

    def serve(self) -> None:
        """Deliver available messages to the waiting pulls, the oldest first.

        The loop ends: after a round without a delivery there is at most one more, because a read for one
        topic may have made messages of another ready.
        """
        waiting = self.waiting
        waiting.notify_observers()
        if not waiting.count:
            return
        now, served, brought = self.runtime.now(), True, True
        while waiting.count and (served or brought):
            last_chance = not served
            served = False
            for subscription in list(self._rotation):
                if subscription.buffer.can_deliver and self._serve_one(subscription, now):
                    served = True
                    self._rotation.remove(subscription)  # the other subscriptions come first next time
                    self._rotation.append(subscription)
            brought = not last_chance and any(map(self._can_serve, self._rotation))

    def answer_empty(self) -> None:
        """Answer all waiting pulls empty."""
        for waiter in self.waiting:
            waiter.give_up()

    def _can_serve(self, subscription: Subscription) -> bool:
        """Whether the subscription has ready messages that a waiting pull accepts."""
        return subscription.buffer.has_ready and self._find_waiter(subscription) is not None

    def _find_waiter(self, subscription: Subscription) -> HeldPull | None:
        """Return the pull or push runner that gets the next messages of a subscription, or None."""
        if subscription.pushed:
            pusher = self.pusher_of(subscription.topic)
            return pusher if pusher is not None and pusher.count else None
        return self.waiting.oldest_pull(subscription.topic)

    def _serve_one(self, subscription: Subscription, now: float) -> bool:
        waiter = self._find_waiter(subscription)
        delivery = None if waiter is None else subscription.take_batch(now, waiter.count)
        if waiter is None or delivery is None:
            return False
        waiter.deliver(delivery)
        return True
