"""One fetch from its request to its answer: plan, read, and when all is empty wait and begin again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backend.completion import Completion
from backend.port import Wait
from backend.records import Bounds, QueueRef
from ddmq_common.errors import DdmqError
from ddmq_rpc.api import Call
from proxy_consumer.core.held_pulls import HeldPull
from proxy_consumer.fetches.answers import answer
from proxy_consumer.fetches.gathering import FetchGathering, Target
from proxy_consumer.runtime import Runtime

WAIT_SLACK_S = 5.0  # waits stand a little longer than the fetch that armed them


class FetchPlan(Protocol):
    """What a fetch may read now; `wanting` are queues whose newest offset it needs first."""

    def __call__(self, fetch: Fetch, newest: dict[QueueRef, int]) -> tuple[list[Target], list[QueueRef]]: ...


class _Wake(Wait):
    __slots__ = ("fetch",)

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self.fetch = fetch

    def settled(self) -> None:
        if not self.cancelled:
            self.fetch.woken()


class Fetch(HeldPull):
    """It is on the linger wheel from the start; `over` ends its waiting.

    `one_queue`: reading stops at the first queue that has something.
    """

    one_queue = False
    __slots__ = (
        "_again", "_done", "_late", "_newest", "_parked", "_plan", "_runtime", "_targets", "_waits", "call",
        "closed", "consumer", "deadline", "ours",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        call: Call,
        consumer: bytes,
        plan: FetchPlan,
        deadline: float,
        done: Callable[[Fetch, Sequence[Target]], None],
    ) -> None:
        """`done` runs once, when it is answered (with what) or its client has gone (with nothing)."""
        super().__init__(None)
        self._runtime = runtime
        self.call = call
        self.consumer = consumer
        self.ours = call.args.request.clientId is not None
        self.deadline = deadline
        self._plan = plan
        self._done = done
        self._targets: list[Target] = []
        self._waits: list[_Wake] = []
        self._newest: dict[QueueRef, int] = {}
        self._parked = False
        self._again = False  # what may be read has changed while it was reading
        self._late = False
        self.closed = False

    def begin(self) -> None:
        """Look for messages."""
        self._again = False
        targets, wanting = self._plan(self, self._newest)
        if wanting:
            self._runtime.backend.bounds(wanting).then(lambda found: self._know_newest(wanting, found))
            return
        self._targets = targets
        first = int(self._runtime.now() * 1000) % len(targets) if targets else 0
        order = targets[first:] + targets[:first]  # where the answer is full, not always the same queue
        bytes_max = self._runtime.config.answer_bytes_max
        FetchGathering(self._runtime.backend, order, bytes_max, self._gathered, self.one_queue).start()

    def _know_newest(self, queues: list[QueueRef], found: Completion[list[Bounds | None]]) -> None:
        if self.closed:
            return
        if found.error is not None:
            self._finish([])
            return
        for queue, bounds in zip(queues, found.value, strict=True):
            self._newest[queue] = -1 if bounds is None else bounds.next  # -1: it is gone
        self.begin()

    def _gathered(self) -> None:
        if self.closed:
            return
        if any(target.moved for target in self._targets):
            self._finish(self._targets)
        else:
            self._wait_or_end()

    def _wait_or_end(self) -> None:
        if self._late:
            self._finish(self._targets)
        elif self._again:
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
                wake = _Wake(self)
                self._waits.append(wake)
                runtime.backend.wait(target.queue, target.next_offset, until, into=wake)
        except DdmqError:  # no more waits there: the client asks again
            self.over()

    def woken(self) -> None:
        """There may be something else to read."""
        if self._parked:
            self._unpark()
            self.begin()
        else:
            self._again = True

    def over(self) -> None:
        """The linger has ended, or the proxy is draining: answer with what is known."""
        if self.closed:
            return
        self._late = True
        if self._parked:
            self._finish(self._targets)

    def abandoned(self) -> None:
        """The client has gone."""
        if not self.closed:
            self._close([])

    def _unpark(self) -> None:
        self._parked = False
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.cancel()

    def _finish(self, targets: Sequence[Target]) -> None:
        shown = [target for target in targets if not target.gone]
        if not self.ours or not any(target.deliveries for target in shown):
            self._answer(shown, {} if self.ours else None)
            return
        queues = [target.queue for target in shown]

        def known(found: Completion[list[Bounds | None]]) -> None:
            values = [] if found.error is not None else found.value
            pairs = zip(queues, values, strict=False)
            self._answer(shown, {queue: bounds.next for queue, bounds in pairs if bounds is not None})

        self._runtime.backend.bounds(queues).then(known)

    def _answer(self, shown: Sequence[Target], next_offsets: dict[QueueRef, int] | None) -> None:
        if not self.closed:
            self._close(shown)
            self._reply(shown, next_offsets)

    def _reply(self, shown: Sequence[Target], next_offsets: dict[QueueRef, int] | None) -> None:
        answer(self.call, shown, next_offsets)

    def _close(self, shown: Sequence[Target]) -> None:
        self.closed = True
        self._unpark()
        self.call.on_abandoned = None
        self._done(self, shown)
