"""The queue of the memory engine's writes.

Writes take effect in the order in which they were queued, later, from the hub. A write that is held past its
deadline is answered "unknown" and still takes effect when the hold ends, like a write whose answer was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from backend.completion import Completion
from backend.records import AppendStatus
from ddmq_common.errors import DdmqError, RemoteError

Refuse = Callable[[Exception, AppendStatus], None]


class Write(NamedTuple):
    """A queued write. `refuse` settles it with an error, in the form that its caller expects."""

    completion: Completion[Any]
    deadline: float  # monotonic seconds
    act: Callable[[], Any]
    refuse: Refuse
    may_fail: bool  # whether it may get the failures that a test requested


class _Failure(NamedTuple):
    error: DdmqError
    status: AppendStatus
    stored: bool


class WriteQueue:
    """The queued writes. `run_callback` is that of the event loop."""

    def __init__(self, run_callback: Callable[..., Any]) -> None:
        self._run_callback = run_callback
        self._writes: deque[Write] = deque()
        self._failures: deque[_Failure] = deque()
        self._scheduled = False
        self.held = False

    def __len__(self) -> int:
        return len(self._writes)

    def enqueue(self, write: Write) -> None:
        """Queue a write; it takes effect from the hub, after all earlier ones."""
        self._writes.append(write)
        self._schedule()

    def end_hold(self) -> None:
        """End the hold, and perform the queued writes."""
        self.held = False
        self._schedule()

    def fail_next(self, error: DdmqError, status: AppendStatus, times: int, stored: bool) -> None:
        """Fail the next `times` writes that may fail."""
        self._failures.extend([_Failure(error, status, stored)] * times)

    def sweep(self, now: float) -> None:
        """Answer the writes past their deadline; they stay queued."""
        for write in list(self._writes):
            if write.deadline <= now and not write.completion.done:
                error = RemoteError("no answer by the deadline; what was sent may be stored or not")
                write.refuse(error, AppendStatus.UNKNOWN)

    def close(self, error: Exception) -> None:
        """Fail all queued writes."""
        while self._writes:
            write = self._writes.popleft()
            if not write.completion.done:
                write.completion.fail(error)

    def _schedule(self) -> None:
        if not self._scheduled and not self.held and self._writes:
            self._scheduled = True
            self._run_callback(self._run)

    def _run(self) -> None:
        """Perform the writes queued until now; those that callbacks add wait for the next call."""
        self._scheduled = False
        try:
            for _ in range(len(self._writes)):
                if self.held or not self._writes:
                    break
                self._perform_write(self._writes.popleft())
        finally:
            self._schedule()

    def _perform_write(self, write: Write) -> None:
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
