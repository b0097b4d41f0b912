# Generated from ddmq_client/aio/coordinator.py by tools/unasync.py: change that one.
"""Connects all components of a consumer: the prefetch buffer behind one lock, and its conditions.

Pullers wait for free space, workers and `pull` callers for messages, and each proxy's flusher for results
that must be submitted separately. An acknowledgement with messages goes through `replies`. No code here uses
a socket. Messages call `settle`, `extend` and `reply` from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddmq_client.core.acks import AckBatch, UnappliedResult, late_results
from ddmq_client.core.handler_messages import HandlerMessages, keep_at
from ddmq_client.core.instance_offsets import InstanceOffsets, Offsets
from ddmq_client.core.prefetch_buffer import (
    ConsumerCounts,
    PrefetchBuffer,
    ProxyConnection,
    Source,
    wait_until,
)
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.net.due_results import IDLE_WAKE_S, DueResults
from ddmq_client.net.replying import ReplyCalls
from ddmq_client.net.sync import INLINE, Condition, Lock, current_worker, get_clock
from ddmq_client.notifications import ConsumerNotifications, FirstAnswer
from ddmq_client.received import FetchedQueue, Message, Outcome
from ddmq_client.wire.consuming import Pulled

RIDE_S = 0.002  # a puller waits this long for results to ride on its next pull


class Coordinator:
    """The shared state of one consumer.

    Safe for many threads, because messages are settled from any thread.
    """

    inline = INLINE

    def __init__(
        self, settings: ConsumerSettings, handlers: bool, notifications: ConsumerNotifications | None = None
    ) -> None:
        self.settings = settings
        self.notifications = notifications or ConsumerNotifications()
        self._clock = get_clock()
        self._buffer = PrefetchBuffer(
            settings.prefetch,
            math.inf if settings.broadcasting else settings.lease_ms / 1000,
            settings.ack_flush_ms / 1000,
            settings.results_max,
            self._clock,
        )
        self._buffer.demand = None if handlers else 0
        self.instance_offsets = InstanceOffsets() if settings.broadcasting else None
        self._buffer.instance_offsets = self.instance_offsets
        self._in_handlers = HandlerMessages(settings.extend_for_ms / 1000 if settings.keeps_leases else 0.0)
        self._demand_until = 0.0
        self.lock = self._lock = Lock()
        self._space_freed = Condition(self._lock)
        self._arrived = Condition(self._lock)
        self._keeping = Condition(self._lock)
        self._keep_at = 0.0  # when leases are checked next
        self._keeping_stopped = False
        self._due = DueResults(self._lock, self._buffer, lambda: self.pulling_stopped and self._parked > 0)
        self._busy = 0  # messages that workers are processing
        self.pulling_stopped = False
        self._handing_stopped = False
        self._parked = 0  # pulls in progress
        self.replies = ReplyCalls(settings, self._lock, self._buffer, self._space_freed)
        self.reply = self.replies.acknowledge
        self.first = FirstAnswer()
        self.rejection: PullError | None = None
        self.last_error: str | None = None

    def get_proxy(self, name: str) -> ProxyConnection:
        """Return the state of the proxy with this name."""
        with self._lock:
            proxy = self._buffer.get_proxy(name)
            self._due.add(proxy)
            return proxy

    def counts(self) -> ConsumerCounts:
        """Return a copy of the counters."""
        with self._lock:
            return self._buffer.counts.copy()

    def set_paused(self, paused: bool) -> None:
        """Stop pulling and return the waiting messages to their proxies, or resume."""
        with self._lock:
            self._buffer.paused = paused
            if paused:
                self._return_waiting()
            self._space_freed.notify_all()

    # Pullers.

    def wait_capacity(self, source: Source) -> tuple[int, int, AckBatch | None] | None:
        """Wait for free space; return (batch, linger in ms, results to carry) for the next pull.

        Returns None when the puller must end.
        """
        with self._lock:
            while not (self.pulling_stopped or source.closing):
                if self._buffer.count_pullable(source, self.settings.max_batch):
                    self._let_results_ride(source)
                    batch = self._buffer.count_pullable(source, self.settings.max_batch)
                    if batch and not (self.pulling_stopped or source.closing):
                        self._parked += 1
                        return batch, self._linger_ms(), self._buffer.begin_pull(source)
                else:
                    self._space_freed.wait()
            return None

    def add_pulled(self, source: Source, answer: Pulled) -> None:
        """Add the messages of an answered pull."""
        with self._lock:
            self._count_answer()
            self._buffer.add_pulled(source, answer.origin, answer.messages, self, answer.lease_ms)
            if self.pulling_stopped or self._buffer.paused:
                self._return_waiting()
            if answer.messages:
                self._arrived.notify(len(answer.messages))
                if wait_until(answer.messages[0]) < self._keep_at:
                    self._keeping.notify()

    def add_fetched(self, source: Source, group: str, queues: Sequence[FetchedQueue]) -> int:
        """Add the messages of a broadcast fetch; return their number."""
        with self._lock:
            self._count_answer()
            count = self._buffer.add_fetched(source, group, queues, self)
            if count:
                self._arrived.notify(count)
            return count

    def safe_offsets(self) -> Offsets:
        """Return the offset of each queue from which a broadcasting instance can resume after a restart."""
        with self._lock:
            return {} if self.instance_offsets is None else self.instance_offsets.safe_offsets()

    def fetch_from(self) -> Offsets:
        """Return the offsets from which the next broadcast fetch reads."""
        with self._lock:
            return {} if self.instance_offsets is None else self.instance_offsets.next_offsets()

    def pull_failed(self, source: Source, acks: AckBatch | None, error: BaseException) -> None:
        """Make the results of a failed pull pending again."""
        with self._lock:
            self._parked -= 1
            self._buffer.pull_failed(source, acks)
            self.last_error = str(error) or repr(error)
            self.rejection = error if isinstance(error, PullError) else None
            self.first.failed(error)
            self._due.wake_flusher(source.proxy.resolve_failover())

    def pause_puller(self, source: Source, seconds: float) -> None:
        """Wait before the next pull; returns early when the puller must end."""
        until = self._clock() + seconds
        with self._lock:
            while not (self.pulling_stopped or source.closing) and self._clock() < until:
                self._space_freed.wait(until - self._clock())

    # Workers and callers of pull.

    def next_messages(self, count: int) -> list[Message]:
        """Return the next messages for a worker; an empty list when it must end.

        Call `finish_messages` afterwards.
        """
        with self._lock:
            while True:
                messages = [] if self._handing_stopped else self._take_messages(count)
                if messages or self._handing_stopped:
                    self._busy += len(messages)
                    self._in_handlers.add(messages, self._clock(), current_worker())
                    if messages and keep_at(messages[0]) < self._keep_at:
                        self._keeping.notify()
                    return messages
                self._buffer.idle += count
                if self._buffer.widen_windows():
                    self._space_freed.notify_all()
                try:
                    self._arrived.wait()
                finally:
                    self._buffer.idle -= count

    def finish_messages(self, messages: Sequence[Message], errors: int = 0) -> None:
        """Record that a worker has finished these messages, with `errors` exceptions of the handler."""
        with self._lock:
            self._busy -= len(messages)
            self._in_handlers.remove(messages)
            self._buffer.counts.handler_errors += errors
            if self._handing_stopped or self.pulling_stopped:
                self._arrived.notify_all()

    def keep_leases(self) -> bool:
        """Wait until leases need attention, and process them once; return False after `stop_keeping`.

        Messages that have waited here too long go back to their proxies; leases of messages in handlers are
        extended, up to `extend_for_ms` in all.
        """
        with self._lock:
            if not self._keeping_stopped:
                self._keeping.wait(max(0.0, self._keep_at - self._clock()))
            now = self._clock()
            self._return_waiting(now)
            for message in self._in_handlers.due_messages(now):
                self._extend(message)
            next_due = min(self._buffer.next_overdue(), self._in_handlers.next_due(now))
            self._keep_at = min(next_due, now + IDLE_WAKE_S)
            return not self._keeping_stopped

    def stop_keeping(self) -> None:
        """End `keep_leases`, because no message is handled or waiting any more."""
        with self._lock:
            self._keeping_stopped = True
            self._keeping.notify_all()

    def request_messages(self, count: int, deadline: float, one: bool = False) -> list[Message]:
        """Return messages for a caller that waits until the deadline (monotonic seconds).

        With `one` the caller takes one message at a time; further messages of the pull wait in the buffer for
        a while.
        """
        with self._lock:
            if one:
                count = self._buffer.loop_batch(count)
            self._buffer.add_demand(count)
            self._demand_until = max(self._demand_until, deadline)
            self._space_freed.notify_all()
            try:
                return self._wait_messages(1 if one else count, deadline)
            finally:
                self._buffer.remove_demand(count)

    def leave_loop(self) -> None:
        """Return the messages buffered for a caller that stopped iterating to their proxies."""
        with self._lock:
            if not self._buffer.waiting_callers:
                self._return_waiting()

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str = "") -> bool:
        """Record the outcome of a message."""
        with self._lock:
            if not self._buffer.settle(message, outcome, delay_ms, reason):
                return False
            source: Source = message.delivery.source
            if not source.open:
                self._space_freed.notify_all()
            self._due.wake_flusher(source.proxy.resolve_failover())
            return not self._buffer.is_over(message)

    def hand_back(self, message: Message) -> bool:
        """Return a message to its proxy, for other consumers."""
        with self._lock:
            if not self._buffer.hand_back(message):
                return False
            self._space_freed.notify_all()
            self._due.wake_flusher(message.delivery.source.proxy.resolve_failover())
            return not self._buffer.is_over(message)

    def extend(self, message: Message) -> bool:
        """Extend the lease of a message; return False if it has none."""
        with self._lock:
            return self._extend(message)

    # Flushers.

    def wait_due(self, proxy: ProxyConnection) -> AckBatch | None:
        """Wait for results that must be submitted now.

        Return None when flushing stops or the proxy was removed.
        """
        with self._lock:
            return self._due.wait(proxy)

    def take_rest(self, proxy: ProxyConnection) -> AckBatch | None:
        """Remove and return results pending for the proxy, as many as one call can carry."""
        with self._lock:
            return self._buffer.take_results(proxy)

    def on_submitted(self, proxy: ProxyConnection, acks: AckBatch, error: BaseException | None) -> None:
        """Record the outcome of a submit; after an error its results are pending again."""
        with self._lock:
            self._buffer.counts.submits += 1
            if error is not None:
                self._buffer.counts.submit_errors += 1
                self.last_error = str(error) or repr(error)
                self._buffer.give_back(proxy, acks)
                self._due.wake_flusher(proxy.resolve_failover())

    def pause_flusher(self, proxy: ProxyConnection, seconds: float) -> None:
        """Wait before the next submit after an error; returns early when flushing stops."""
        with self._lock:
            self._due.pause_flusher(proxy, seconds)

    def fail_over(self, removed: ProxyConnection, failover: ProxyConnection) -> None:
        """Move the results of a removed proxy to another proxy, and end the removed one's flusher."""
        with self._lock:
            self._buffer.fail_over(removed, failover)
            self._due.remove(removed)
            self._due.wake_flusher(failover)

    # Stopping, in this order.

    def stop_pulling(self) -> None:
        """End all pullers after their pulls in progress."""
        with self._lock:
            self.pulling_stopped = True
            self._space_freed.notify_all()
            self._return_waiting()
            self._due.wake_all()

    def end(self, source: Source) -> None:
        """End the puller of this source after its pull in progress."""
        with self._lock:
            source.closing = True
            self._space_freed.notify_all()

    def wait_handled(self, deadline: float, alone: bool = False) -> bool:
        """Wait until workers have handled every waiting message; return False if the deadline came first.

        A worker that calls this does not wait for its own messages. `alone`: it is the only worker, so that
        waiting messages are not handled.
        """
        with self._lock:
            mine = self._in_handlers.list_messages(current_worker())
            while self._buffer.demand is None and (
                (len(self._buffer) and not alone) or self._busy > len(mine)
            ):
                if not self._arrived.wait(deadline - self._clock()):
                    return False
            return not (alone and len(self._buffer)) and all(message.outcome for message in mine)

    def stop_handing(self) -> None:
        """End the workers after their current messages; `pull` raises ClosedError from then on."""
        with self._lock:
            self._handing_stopped = True
            self._arrived.notify_all()

    def stop_flushing(self) -> None:
        """Let the flushers submit the remaining results and end."""
        with self._lock:
            self._due.stop()

    def abandon_results(self) -> int:
        """Drop the results that no proxy has accepted; return their number."""
        with self._lock:
            return self._buffer.abandon_results()

    def _take_messages(self, count: int) -> list[Message]:
        waiting = len(self._buffer)
        messages = self._buffer.take_messages(count)
        if len(self._buffer) < waiting:  # also when the leases of all of them had expired
            self._space_freed.notify_all()
        return messages

    def _wait_messages(self, count: int, deadline: float) -> list[Message]:
        while True:
            if self._handing_stopped:
                raise ClosedError("the consumer has been stopped")
            in_time = self._clock() < deadline
            messages = self._take_messages(count)
            if messages:
                return messages
            if not in_time:
                if self.rejection is not None:
                    raise self.rejection
                self.first.check(trying=self._parked > 0)
                return []
            self._arrived.wait(deadline - self._clock())

    def _count_answer(self) -> None:
        self.rejection = None
        self.first.came = True
        self._parked -= 1

    def _return_waiting(self, now: float | None = None) -> None:
        proxies = self._buffer.return_waiting(now)
        for proxy in proxies:
            self._due.wake_flusher(proxy)
        if proxies:
            self._arrived.notify_all()
            self._space_freed.notify_all()

    def report_unapplied(self, acks: AckBatch | None, unapplied: Sequence[UnappliedResult]) -> None:
        """Report the results of a call that the proxy did not apply."""
        if not unapplied or acks is None:
            return
        with self._lock:
            late, lost = late_results(acks, unapplied)
            self._buffer.counts.late += len(late)
        self.notifications.report_late(late, lost)

    def _extend(self, message: Message) -> bool:
        if not self._buffer.extend(message):
            return False
        self._due.wake_flusher(message.delivery.source.proxy.resolve_failover())
        return True

    def _let_results_ride(self, source: Source) -> None:
        """Wait briefly for further results, so that the next pull carries them too."""
        until = self._clock() + RIDE_S
        while source.open and not source.waiting and not self.pulling_stopped:
            if not self._space_freed.wait(until - self._clock()):
                return

    def _linger_ms(self) -> int:
        linger_ms = self.settings.linger_ms
        if self._buffer.demand is None:
            return linger_ms
        return max(1, min(linger_ms, int((self._demand_until - self._clock()) * 1000)))
