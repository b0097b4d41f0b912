"""Commits that wait for their turn, or for their answer, and the deadlines of both. Belongs to the hub."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import gevent

from backend.completion import Completion
from backend.kafka.commit.plan import CommitPlan
from backend.records import NewRecord
from ddmq_common.errors import RemoteError, TryLaterError
from ddmq_common.hub_timer import HubTimer

FOREVER = float("inf")
Queue = tuple[str, int]  # topic, queue_id


def queues_of(records: Iterable[NewRecord]) -> list[Queue]:
    """Of each record its queue."""
    return [(record.topic, record.queue_id) for record in records]


class WaitingCommit:
    """One call. `take` puts it into a plan, or raises; `answer` makes what it succeeds with of the offsets of
    its records. `act`: what is done in its turn instead of planning it. `once`: it goes under the name of the
    namespace. `alone`: nothing else goes with it."""

    __slots__ = ("act", "alone", "answer", "completion", "deadline", "once", "queues", "take")

    def __init__(
        self,
        deadline: float,
        take: Callable[[CommitPlan], None],
        answer: Callable[[list[int]], Any] = lambda offsets: None,
        into: Completion[Any] | None = None,
    ) -> None:
        self.completion: Completion[Any] = Completion() if into is None else into
        self.deadline = deadline
        self.take = take
        self.answer = answer
        self.once = self.alone = False
        self.queues: list[Queue] = []
        self.act: Callable[[], None] | None = None

    def succeed(self, offsets: list[int]) -> None:
        """Unless it is settled; what a callback does wrong costs nobody else the answer."""
        if not self.completion.done:
            self._settle(self.completion.succeed, self.answer(offsets))

    def fail(self, error: Exception) -> None:
        """The same with an error."""
        if not self.completion.done:
            self._settle(self.completion.fail, error)

    def _settle(self, how: Callable[[Any], None], value: Any) -> None:
        try:
            how(value)
        except Exception as error:
            hub: Any = gevent.get_hub()
            hub.handle_error(how, type(error), error, error.__traceback__)


def waiting_act(act: Callable[[], None]) -> WaitingCommit:
    """Something to be done in its turn."""
    waiting = WaitingCommit(FOREVER, lambda plan: None)
    waiting.act = act
    return waiting


class WaitingLine:
    """Calls in their order, and those `under_way`. What is past its deadline is answered, come what may.

    `sent`: what is under way was handed to Kafka. `reason`: why something may wait.
    """

    def __init__(self, now: Callable[[], float], reason: Callable[[], str]) -> None:
        self._now = now
        self._reason = reason
        self.calls: deque[WaitingCommit] = deque()
        self.under_way: list[WaitingCommit] = []
        self.sent = False
        self._touched: Counter[Queue] = Counter()
        self._timer = HubTimer(ref=False)
        self._wake_at = FOREVER

    def __len__(self) -> int:
        return len(self.calls)

    def append(self, waiting: WaitingCommit) -> None:
        """At the end."""
        self.calls.append(waiting)
        self._touched.update(waiting.queues)
        if waiting.deadline < self._wake_at:
            self._arm(waiting.deadline)

    def touches(self, records: Iterable[NewRecord]) -> bool:
        """Whether something that is not answered yet writes to one of these queues."""
        return bool(self._touched) and any(queue in self._touched for queue in queues_of(records))

    def left(self, waiting: WaitingCommit) -> WaitingCommit:
        """It is answered, or about to be."""
        for queue in waiting.queues:
            self._touched[queue] -= 1
            if self._touched[queue] <= 0:
                del self._touched[queue]
        waiting.queues = []
        return waiting

    def expire(self) -> None:
        """Answer what is past its deadline; who waits, that it is not stored."""
        now = self._now()
        late = [one for one in self.calls if one.deadline <= now]
        if late:
            self.calls = deque(one for one in self.calls if one.deadline > now)
        unknown = [one for one in self.under_way if one.deadline <= now]
        if not self.sent:
            self.under_way = [one for one in self.under_way if one.deadline > now]
            late, unknown = late + unknown, []
        for one in late:
            reason = self._reason() or "what was called before is not answered yet"
            self.left(one).fail(TryLaterError(f"not written by the deadline: {reason}"))
        for one in unknown:
            one.fail(RemoteError("no answer by the deadline; it may be stored or not"))

    def close(self, error: Exception) -> None:
        """Fail everything."""
        self._timer.stop()
        waiting = [*self.under_way, *self.calls]
        self.under_way = []
        self.calls.clear()
        for one in waiting:
            one.fail(error)

    def _arm(self, deadline: float) -> None:
        self._wake_at = deadline
        self._timer.once(max(0.0, deadline - self._now()), self._rung)

    def _rung(self) -> None:
        self._wake_at = FOREVER
        self.expire()
        left = [one.deadline for one in (*self.calls, *self.under_way) if not one.completion.done]
        first = min(left, default=FOREVER)
        if first < FOREVER:
            self._arm(first)
