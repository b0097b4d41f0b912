"""What waits in the memory engine: writes in line, readers for data.

Writes are done in the order in which they were taken, later, from the hub. One that is held past its deadline
is answered "unknown" and still takes effect when it is let go, as with an engine whose answer was lost.
Whoever waits for data and is taken out is settled, unless its caller cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from backend.completion import Completion
from backend.port import Wait
from backend.records import AppendStatus, QueueRef
from ddmq_common.errors import BoundReachedError, DdmqError, RemoteError

Refuse = Callable[[Exception, AppendStatus], None]


class Write(NamedTuple):
    """A write that was taken. `refuse` settles it with an error, in the shape that its caller expects."""

    completion: Completion[Any]
    deadline: float  # monotonic seconds
    act: Callable[[], Any]
    refuse: Refuse
    may_fail: bool  # the failures that a test asked for are for this one


class _Failure(NamedTuple):
    error: DdmqError
    status: AppendStatus
    stored: bool


class WriteLine:
    """Writes on their way. `run_callback` is the loop's."""

    def __init__(self, run_callback: Callable[..., Any]) -> None:
        self._run_callback = run_callback
        self._writes: deque[Write] = deque()
        self._failures: deque[_Failure] = deque()
        self._scheduled = False
        self.held = False

    def __len__(self) -> int:
        return len(self._writes)

    def take(self, write: Write) -> None:
        """Do it after everything taken before, from the hub."""
        self._writes.append(write)
        self._schedule()

    def let_go(self) -> None:
        """End a hold."""
        self.held = False
        self._schedule()

    def fail_next(self, error: DdmqError, status: AppendStatus, times: int, stored: bool) -> None:
        """Fail the next `times` writes that may fail."""
        self._failures.extend([_Failure(error, status, stored)] * times)

    def sweep(self, now: float) -> None:
        """Answer those past their deadline; they stay in the line."""
        for write in list(self._writes):
            if write.deadline <= now and not write.completion.done:
                error = RemoteError("no answer by the deadline; what was sent may be stored or not")
                write.refuse(error, AppendStatus.UNKNOWN)

    def close(self, error: Exception) -> None:
        """Fail everything that is still in the line."""
        while self._writes:
            write = self._writes.popleft()
            if not write.completion.done:
                write.completion.fail(error)

    def _schedule(self) -> None:
        if not self._scheduled and not self.held and self._writes:
            self._scheduled = True
            self._run_callback(self._run)

    def _run(self) -> None:
        """Do what was taken up to now; what its callbacks add waits for the next turn."""
        self._scheduled = False
        try:
            for _ in range(len(self._writes)):
                if self.held or not self._writes:
                    break
                self._do(self._writes.popleft())
        finally:
            self._schedule()

    def _do(self, write: Write) -> None:
        failure = self._failures.popleft() if self._failures and write.may_fail else None
        value = None
        if failure is None or failure.stored:
            try:
                value = write.act()
            except DdmqError as error:
                if not write.completion.done:
                    write.completion.fail(error)
                return
        if write.completion.done:  # its deadline passed while it was held
            return
        if failure is None:
            write.completion.succeed(value)
        else:
            write.refuse(failure.error, failure.status)


class _Parked(NamedTuple):
    offset: int
    deadline: float
    wait: Wait


_Test = Callable[[_Parked], bool]


class WaitTable:
    """Parked waits, at most `waits_max`; cancelled ones are dropped at the next sweep.

    `later` runs a function from the hub: each is settled by itself, so that what one does hurts no other.
    """

    def __init__(self, waits_max: int, later: Callable[..., object]) -> None:
        self._waits_max = waits_max
        self._later = later
        self._parked: dict[QueueRef, list[_Parked]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def park(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        """Keep `wait` until there is data or the deadline. Raises BoundReachedError when full."""
        if self._count >= self._waits_max:
            raise BoundReachedError(f"{self._waits_max} waits are parked; that is the bound")
        self._parked.setdefault(queue, []).append(_Parked(offset, deadline, wait))
        self._count += 1

    def wake(self, queue: QueueRef, next_offset: int) -> None:
        """Settle whoever waits for an offset below `next_offset`."""
        for parked in self._take(queue, lambda parked: parked.offset < next_offset):
            self._later(_settle, parked.wait, True)

    def sweep(self, now: float) -> None:
        """Settle whoever is past the deadline, at `now` on the monotonic clock; drop the cancelled."""
        for queue in list(self._parked):
            for parked in self._take(queue, lambda parked: parked.deadline <= now):
                self._later(_settle, parked.wait, False)

    def fail(self, queue: QueueRef, error: Exception) -> None:
        """Fail everyone who waits on one queue."""
        for parked in self._take(queue, lambda _: True):
            self._later(_settle, parked.wait, error)

    def queues(self) -> list[QueueRef]:
        """Where someone waits."""
        return list(self._parked)

    def _take(self, queue: QueueRef, due: _Test) -> list[_Parked]:
        """Take out those that are due and still wanted, and forget the cancelled."""
        here = self._parked.get(queue)
        if here is None:
            return []
        wanted = [parked for parked in here if not parked.wait.cancelled and not parked.wait.done]
        taken = [parked for parked in wanted if due(parked)]
        kept = [parked for parked in wanted if not due(parked)]
        self._count -= len(here) - len(kept)
        if kept:
            self._parked[queue] = kept
        else:
            del self._parked[queue]
        return taken


def _settle(wait: Wait, outcome: bool | Exception) -> None:
    if wait.cancelled or wait.done:
        return
    if isinstance(outcome, Exception):
        wait.fail(outcome)
    else:
        wait.succeed(outcome)
