"""Pulls under a group name `G%INSTANCE`: DDMQ clients of a broadcasting group G.

Each instance has its own cursors in this proxy's memory. It starts at the ends of the queues that exist at
its first pull; queues that appear later are read from their first message. The cursors are dropped 60 s after
its last pull. A proxy has a bounded number of instances, and an instance that moves to another proxy starts
there at the newest message.

Results are accepted and counted; no message is delivered twice: a message that fails, or is not acknowledged
in time, is counted and dropped. Unacknowledged deliveries count against a bound, at which nothing more is
delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from backend.records import QueueRef
from ddmq_client.idl.codes import Code
from ddmq_common.metrics.catalogue import ACKED, BROADCAST_DROPPED, FAILED, FETCHED, INSTANCES
from ddmq_common.names import find_group_name_error
from ddmq_rpc.access import record_over
from ddmq_rpc.api import Call
from proxy_consumer import answers
from proxy_consumer.core.held_pulls import LingerWheel
from proxy_consumer.fetches.answers import Target, answer_instance_pull
from proxy_consumer.fetches.fetch import Fetch, FetchPlan
from proxy_consumer.fetches.group import broadcast_queues, may_read
from proxy_consumer.filters.message_filters import filter_for
from proxy_consumer.groups.directory import Directory
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Group

QueueKey = tuple[bytes, bytes]  # topic, qid
INSTANCES_MAX = 1_000
IDLE_S = 60.0
SWEEP_S = 0.25


class _Batch:
    __slots__ = ("deadline", "left")

    def __init__(self, deadline: float, offsets: Iterable[int]) -> None:
        self.deadline = deadline
        self.left = set(offsets)


class Instance:
    """The cursors and unacknowledged deliveries of one instance. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.active_at = now
        self.placed = False  # the cursors of the queues at the first pull are set
        self.cursors: dict[QueueRef, int] = {}
        self.outstanding = 0
        self._batches: dict[QueueKey, deque[_Batch]] = {}

    def set_ends(self, newest: dict[QueueRef, int]) -> None:
        """Start at the ends that the queues had at the first pull."""
        for queue, offset in newest.items():
            self.cursors.setdefault(queue, offset)
        self.placed = True

    def next_offset(self, queue: QueueRef) -> int:
        """Return the offset at which this instance's next delivery from `queue` starts."""
        return self.cursors.setdefault(queue, 0)

    def claim_range(self, queue: QueueRef, first: int, after: int) -> bool:
        """Move the cursor over `[first, after)` for one reply; False if another pull has moved it already."""
        if self.cursors.get(queue) != first:
            return False
        self.cursors[queue] = after
        return True

    def on_delivered(self, queue_key: QueueKey, offsets: Iterable[int], deadline: float) -> None:
        """Record a delivery that should be acknowledged by `deadline`."""
        batch = _Batch(deadline, offsets)
        self._batches.setdefault(queue_key, deque()).append(batch)
        self.outstanding += len(batch.left)

    def settle_results(self, queue_key: QueueKey, offsets: Iterable[int]) -> int:
        """Apply acknowledged or failed offsets; return how many of them were outstanding."""
        batches = self._batches.get(queue_key)
        if not batches:
            return 0
        settled = 0
        for offset in offsets:
            for batch in batches:
                if offset in batch.left:
                    batch.left.discard(offset)
                    settled += 1
                    break
        self._trim_batches(queue_key, batches)
        self.outstanding -= settled
        return settled

    def expire_deliveries(self, now: float) -> int:
        """Drop the deliveries not acknowledged in time; return how many messages they were."""
        lost = 0
        for queue_key, batches in list(self._batches.items()):
            for batch in batches:
                if batch.deadline <= now:
                    lost += len(batch.left)
                    batch.left.clear()
            self._trim_batches(queue_key, batches)
        self.outstanding -= lost
        return lost

    def _trim_batches(self, queue_key: QueueKey, batches: deque[_Batch]) -> None:
        remaining = deque(batch for batch in batches if batch.left)
        if remaining:
            self._batches[queue_key] = remaining
        else:
            self._batches.pop(queue_key, None)


class InstancePull(Fetch):
    """One pull of one instance. It returns messages of one queue, or waits for some."""

    __slots__ = ("instance", "requested_topic")
    one_queue = True

    def __init__(
        self,
        runtime: Runtime,
        call: Call,
        plan: FetchPlan,
        wheel: LingerWheel,
        done: Callable[[Fetch, Sequence[Target]], None],
        instance: Instance,
    ) -> None:
        super().__init__(runtime, call, call.args.request.groupId, plan, wheel, done)
        self.instance = instance
        self.requested_topic: bytes | None = call.args.request.topic or None

    def _on_gathered(self) -> None:
        if self.closed:
            return
        first = next((target for target in self._targets if target.deliveries), None)
        if first is not None:
            if self.instance.claim_range(first.queue, first.offset, first.next_offset):
                self._finish_fetch([first])
            else:
                self.begin()  # another pull of this instance was quicker
            return
        for target in self._targets:
            self.instance.claim_range(target.queue, target.offset, target.next_offset)
        self._wait_or_end()

    def _reply(self, shown: Sequence[Target], next_offsets: dict[QueueRef, int] | None) -> None:
        if shown and shown[0].deliveries:
            answer_instance_pull(self.call, self.consumer, shown[0], next_offsets)
        else:
            self.call.reply_encoded(answers.EMPTY[self.call.wire])


class Served:
    """One instance with its group and its open pulls."""

    __slots__ = ("group", "instance", "pulls")

    def __init__(self, group: Group, now: float) -> None:
        self.group = group
        self.instance = Instance(now)
        self.pulls: set[Fetch] = set()

    def on_change(self) -> None:
        """Wake the waiting pulls: there is capacity again, or the queues have changed."""
        for pull in list(self.pulls):
            pull.on_woken()


class Instances:
    """All instances that pull at one proxy."""

    def __init__(self, runtime: Runtime, directory: Directory, wheel: LingerWheel) -> None:
        self._runtime = runtime
        self._directory = directory
        self._wheel = wheel
        self._served: dict[bytes, Served] = {}
        self._sweep_at = 0.0
        self._gauge = runtime.metrics.cell(INSTANCES)

    # --- pulls

    def find_group(self, name: bytes) -> Group | None:
        """Return the broadcasting group of which `name` is an instance, or None."""
        return self._directory.instance_of(name) if b"%" in name else None

    def pull(self, call: Call) -> bool:
        """Handle the pull if it is one of an instance; return whether it was."""
        request = call.args.request
        group = self._directory.instance_of(request.groupId)
        if group is None:
            return False
        over = None if call.caller is None else call.caller.usage.check_waiting()
        if over is not None:
            record_over(call, over)
            answers.throw_pull_error(call, Code.BUSY, over)
            return True
        now = self._runtime.now()
        served = self._served.get(request.groupId)
        if served is None or served.group is not group:
            error = find_group_name_error(request.groupId.decode("utf-8", "replace"))
            if error is not None:
                answers.throw_pull_error(call, Code.ILLEGAL_MESSAGE, error)
                return True
            if len(self._served) >= INSTANCES_MAX:
                text = f"{INSTANCES_MAX} instances of broadcasting groups pull here; that is the bound"
                answers.throw_pull_error(call, Code.BUSY, text)
                return True
            served = self._served[request.groupId] = Served(group, now)
        served.instance.active_at = now
        self._run(call, served)
        return True

    def _run(self, call: Call, served: Served) -> None:
        def plan_targets(fetch: Fetch, newest: dict[QueueRef, int]) -> tuple[list[Target], list[QueueRef]]:
            return self._plan_targets(served, pull, newest)

        def on_done(fetch: Fetch, targets: Sequence[Target]) -> None:
            self._on_pull_done(served, fetch, targets)

        pull = InstancePull(self._runtime, call, plan_targets, self._wheel, on_done, served.instance)
        served.pulls.add(pull)
        pull.start()

    def _plan_targets(
        self, served: Served, pull: InstancePull, newest: dict[QueueRef, int]
    ) -> tuple[list[Target], list[QueueRef]]:
        queues, instance = broadcast_queues(self._runtime, served.group, None), served.instance
        if not instance.placed:
            wanting = [queue for queue in queues if queue not in newest]
            if wanting:
                return [], wanting
            instance.set_ends({queue: offset for queue, offset in newest.items() if offset >= 0})
        targets: list[Target] = []
        count_max = pull.call.args.request.maxBatchSize or (1 << 31)
        for queue in queues:
            subscription = served.group.subscriptions[queue.topic.encode()]
            config = subscription.config
            if subscription.paused_ms or not may_read(pull.call, queue.topic):
                continue
            count = min(count_max, config.batch_max, config.concurrency - instance.outstanding)
            if count > 0 and pull.requested_topic in (None, queue.topic.encode()):
                qid, cursor = self._runtime.qid(queue), instance.next_offset(queue)
                message_filter = filter_for(config.tags, config.sql)
                pressure, group = config.pressure_traffic, served.group.name
                targets.append(Target(queue, qid, cursor, False, count, pressure, message_filter, group))
        return targets, []

    def _on_pull_done(self, served: Served, pull: Fetch, targets: Sequence[Target]) -> None:
        served.pulls.discard(pull)
        now = served.instance.active_at = self._runtime.now()
        for target in targets:
            subscription = served.group.subscriptions.get(target.queue.topic.encode())
            if target.deliveries and subscription is not None:
                queue_key = (target.queue.topic.encode(), target.qid.encode())
                until = now + subscription.config.ack_timeout_ms / 1000
                served.instance.on_delivered(queue_key, target.offsets, until)
                cell = self._runtime.metrics.cell(FETCHED, served.group.name, target.queue.topic)
                cell.value += len(target.deliveries)

    # --- results and time

    def take_result(self, result: Any) -> bool:
        """Apply one element of a ConsumeResult; False if it names no instance of this proxy."""
        served = self._served.get(result.context.groupId)
        if served is None:
            return False
        cell, name = self._runtime.metrics.cell, served.group.name
        queue_key = (result.context.topic, result.context.qid)
        topic = (result.context.topic or b"").decode("utf-8", "replace")
        acked = served.instance.settle_results(queue_key, result.successOffsets or ())
        failed = served.instance.settle_results(queue_key, result.failOffsets or ())
        if acked:
            cell(ACKED, name, topic).value += acked
        if failed:
            cell(FAILED, name, topic).value += failed
            cell(BROADCAST_DROPPED, name, "failed").value += failed
        if acked or failed:
            served.on_change()
        return True

    def expire_due(self, now: float) -> None:
        """Drop deliveries not acknowledged in time, and instances that no longer pull."""
        if now < self._sweep_at or not self._served:
            return
        self._sweep_at = now + SWEEP_S
        for name, served in list(self._served.items()):
            lost = served.instance.expire_deliveries(now)
            if lost:
                cell = self._runtime.metrics.cell(BROADCAST_DROPPED, served.group.name, "timed out")
                cell.value += lost
                served.on_change()
            if not served.pulls and served.instance.active_at + IDLE_S <= now:
                del self._served[name]
            elif self._directory.groups.get(served.group.name.encode()) is not served.group:
                self._drop_instance(name, served)
        self._gauge.value = len(self._served)

    def wake_pulls(self, group: str | None = None) -> None:
        """Wake the waiting pulls, or those of `group`, because queues may have been added, or the group
        resumed."""
        for served in self._served.values():
            if group in (None, served.group.name):
                served.on_change()

    def drain(self) -> None:
        """Answer the waiting pulls and drop all instances."""
        for name, served in list(self._served.items()):
            self._drop_instance(name, served)

    def _drop_instance(self, name: bytes, served: Served) -> None:
        del self._served[name]
        for pull in list(served.pulls):
            pull.give_up()
