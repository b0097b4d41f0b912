"""One fetch from its request to its reply: plan, read, and if all queues are empty wait and begin again.

The queues are read one after the other, until all were read or the reply is full. A queue contributes at most
`count` messages; all of them together at most `bytes_max` (the first message always fits). Refused pressure
messages, dead letters that were resent to another group, and messages that the filter rejects are skipped. If
the client itself stated an offset that is out of range, it gets no message and the nearest valid offset; any
other start continues at the valid offset at once. A queue of a paused subscription is not read, and the reply
states where the client is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from backend.completion import Completion
from backend.port import Backend, Wait
from backend.records import FLAG_PRESSURE, Bounds, QueueRef, ReadBatch, ReadStatus, is_for_group
from ddmq_common.errors import DdmqError
from ddmq_common.metrics.catalogue import FETCHED
from ddmq_rpc.api import Call
from proxy_consumer.core.held_pulls import FETCH_BYTES_MAX, Lingering, LingerWheel
from proxy_consumer.fetches.answers import Target, answer_fetch
from proxy_consumer.runtime import Runtime, log

ROUNDS_MAX = 8  # reads of one queue that returned only skipped messages
MESSAGE_BYTES = 32  # size of a message in a reply besides its delivery bytes
WAIT_SLACK_S = 5.0  # waits last a little longer than the fetch that started them


class _TargetRead(Completion[ReadBatch]):
    __slots__ = ("gathering", "inline")

    def __init__(self, gathering: FetchGathering) -> None:
        super().__init__()
        self.gathering = gathering
        self.inline = True

    def settled(self) -> None:
        if not self.inline:
            self.gathering.on_read_done(self)


class FetchGathering:
    """Reads messages into `targets`, in their order; `done()` is called once, perhaps before `start`
    returns."""

    def __init__(
        self,
        backend: Backend,
        targets: Sequence[Target],
        bytes_max: int,
        done: Callable[[], None],
        one_queue: bool = False,
    ) -> None:
        self._backend = backend
        self._targets = targets
        self._left = bytes_max
        self._has_messages = False
        self._done = done
        self._one_queue = one_queue
        self._at = 0

    def start(self) -> None:
        """Read the queues until a read does not complete at once."""
        while self._at < len(self._targets) and self._left > 0:
            target, read = self._targets[self._at], _TargetRead(self)
            if target.paused:
                self._at += 1
                continue
            tags = None if target.message_filter is None else target.message_filter.tags
            self._backend.read(
                target.queue, target.next_offset, target.count, self._left, into=read, tags=tags
            )
            if not read.done:
                read.inline = False
                return
            self._take_read(read)
        self._done()

    def on_read_done(self, read: _TargetRead) -> None:
        """Accept a read that completed later, and continue with the next."""
        self._take_read(read)
        self.start()

    def _take_read(self, read: _TargetRead) -> None:
        target = self._targets[self._at]
        target.rounds += 1
        if read.error is not None:
            log.warning("queue not readable", extra={"topic": target.queue.topic, "error": str(read.error)})
            reread, target.failed = False, True
        else:
            reread = self._take_batch(target, read.value)
        if target.deliveries and self._one_queue:
            self._at = len(self._targets)
        elif not reread or target.rounds >= ROUNDS_MAX:
            self._at += 1

    def _take_batch(self, target: Target, batch: ReadBatch) -> bool:
        """Take the messages of a read into the target; return whether its queue must be read again."""
        if batch.status is ReadStatus.DATA:
            self._take_messages(target, batch)
            return not target.deliveries and self._left > 0
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            target.next_offset = nearest_valid(target.next_offset, batch.bounds)
            return not target.stated
        if batch.status is ReadStatus.NONE:
            target.next_offset = max(target.next_offset, batch.next_offset)  # past excluded messages
        target.deleted = batch.status is ReadStatus.UNKNOWN_QUEUE
        return False

    def _take_messages(self, target: Target, batch: ReadBatch) -> None:
        for index, delivery in enumerate(batch.deliveries):
            if batch.flags[index] & FLAG_PRESSURE and not target.pressure:
                continue
            if not is_for_group(batch, index, target.group):
                continue
            if (
                target.message_filter is not None
                and target.message_filter.find_rejection(delivery) is not None
            ):
                continue
            size = len(delivery) + MESSAGE_BYTES
            if size > self._left and self._has_messages:
                self._left = 0
                target.next_offset = batch.offsets[index]
                return
            self._has_messages = True
            self._left -= size
            target.deliveries.append(delivery)
            target.offsets.append(batch.offsets[index])
            target.records.append(partial(batch.record, index))
        target.next_offset = batch.next_offset


def nearest_valid(offset: int, bounds: Bounds) -> int:
    """Return the valid offset that is nearest to `offset`."""
    return min(max(offset, bounds.min), bounds.next)


class FetchPlan(Protocol):
    """Plans a fetch: returns the targets it may read now, and the queues whose end offset it needs first."""

    def __call__(self, fetch: Fetch, newest: dict[QueueRef, int]) -> tuple[list[Target], list[QueueRef]]: ...


class _Wake(Wait):
    __slots__ = ("fetch",)

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self.fetch = fetch

    def settled(self) -> None:
        if not self.cancelled:
            self.fetch.on_woken()


class Fetch(Lingering):
    """One waiting fetch, on the linger wheel until it is answered; `give_up` ends its waiting.

    `one_queue`: reading stops at the first queue with messages.
    """

    one_queue = False
    __slots__ = (
        "_done",
        "_late",
        "_newest",
        "_parked",
        "_plan",
        "_replan",
        "_runtime",
        "_targets",
        "_waits",
        "_wheel",
        "call",
        "closed",
        "consumer",
        "deadline",
        "extended_client",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        call: Call,
        consumer: bytes,
        plan: FetchPlan,
        wheel: LingerWheel,
        done: Callable[[Fetch, Sequence[Target]], None],
    ) -> None:
        """Create the fetch of a client's call.

        `done` is called once: with the targets of the reply, or with none if the client disconnected.
        """
        super().__init__()
        self._runtime = runtime
        self.call = call
        self.consumer = consumer
        self.extended_client = call.args.request.clientId is not None
        self._wheel = wheel
        self.deadline = runtime.now() + runtime.linger_s(call.args.request.maxLingerTime)
        self._plan = plan
        self._done = done
        self._targets: list[Target] = []
        self._waits: list[_Wake] = []
        self._newest: dict[QueueRef, int] = {}
        self._parked = False
        self._replan = False  # the queues to read have changed during a read
        self._late = call.frame_bytes > FETCH_BYTES_MAX  # it does not wait, or no longer
        self.closed = False

    def start(self) -> None:
        """Begin to read, and wait for messages until the deadline or until the client disconnects."""
        if self.call.caller is not None:
            self.usage = self.call.caller.usage
        self._wheel.add(self, self.deadline)
        self.call.on_abandoned = lambda _: self.on_abandoned()
        self.begin()

    def begin(self) -> None:
        """Read the planned queues for messages."""
        self._replan = False
        targets, wanting = self._plan(self, self._newest)
        if wanting:
            self._runtime.backend.bounds(wanting).then(lambda read: self._know_newest(wanting, read))
            return
        self._targets = targets
        first = int(self._runtime.now() * 1000) % len(targets) if targets else 0
        order = targets[first:] + targets[:first]  # a full reply does not always omit the same queue
        bytes_max = self._runtime.config.answer_bytes_max
        FetchGathering(self._runtime.backend, order, bytes_max, self._on_gathered, self.one_queue).start()

    def _know_newest(self, queues: list[QueueRef], read: Completion[list[Bounds | None]]) -> None:
        if self.closed:
            return
        if read.error is not None:
            self._finish_fetch([])
            return
        for queue, bounds in zip(queues, read.value, strict=True):
            self._newest[queue] = -1 if bounds is None else bounds.next  # -1: the queue does not exist
        self.begin()

    def _on_gathered(self) -> None:
        if self.closed:
            return
        if any(target.has_moved for target in self._targets):
            self._finish_fetch(self._targets)
        else:
            self._wait_or_end()

    def _wait_or_end(self) -> None:
        if self._late:
            self._finish_fetch(self._targets)
        elif self._replan:
            self.begin()
        else:
            self._park()

    def _park(self) -> None:
        self._parked = True
        runtime, until = self._runtime, self.deadline + WAIT_SLACK_S
        try:
            for target in self._targets:
                if not self._parked:
                    return
                if target.failed or target.paused:
                    continue  # failed: waiting would end at once, over and over; the next fetch tries again
                wake = _Wake(self)
                self._waits.append(wake)
                runtime.backend.wait(target.queue, target.next_offset, until, into=wake)
        except DdmqError:  # the backend accepts no more waits: the client fetches again
            self.give_up()

    def on_woken(self) -> None:
        """Plan and read again, because a queue has new messages or the queues to read have changed."""
        if self._parked:
            self._end_waits()
            self.begin()
        else:
            self._replan = True

    def give_up(self) -> None:
        """Reply with the current state, because the deadline has passed or the proxy is draining."""
        if self.closed:
            return
        self._late = True
        if self._parked:
            self._finish_fetch(self._targets)

    def on_abandoned(self) -> None:
        """Close the fetch, because its client disconnected."""
        if not self.closed:
            self._close([])

    def _end_waits(self) -> None:
        self._parked = False
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.cancel()

    def _finish_fetch(self, targets: Sequence[Target]) -> None:
        existing = [target for target in targets if not target.deleted]
        if not self.extended_client or not any(target.deliveries for target in existing):
            self._give_answer(existing, {} if self.extended_client else None)
            return
        queues = [target.queue for target in existing]

        def on_next_offsets(read: Completion[list[Bounds | None]]) -> None:
            values = [] if read.error is not None else read.value
            pairs = zip(queues, values, strict=False)
            self._give_answer(existing, {queue: bounds.next for queue, bounds in pairs if bounds is not None})

        self._runtime.backend.bounds(queues).then(on_next_offsets)

    def _give_answer(self, shown: Sequence[Target], next_offsets: dict[QueueRef, int] | None) -> None:
        if not self.closed:
            self._close(shown)
            self._reply(shown, next_offsets)

    def _reply(self, shown: Sequence[Target], next_offsets: dict[QueueRef, int] | None) -> None:
        answer_fetch(self.call, shown, next_offsets)

    def _close(self, shown: Sequence[Target]) -> None:
        self.closed = True
        self._end_waits()
        self._wheel.remove(self)
        self.call.on_abandoned = None
        self._done(self, shown)


def count_fetched(runtime: Runtime, group: str, targets: Iterable[Target]) -> int:
    """Count the messages returned to a group, by topic; return how many they are in all."""
    count = 0
    for target in targets:
        if target.deliveries:
            count += len(target.deliveries)
            runtime.metrics.cell(FETCHED, group, target.queue.topic).value += len(target.deliveries)
    return count
