"""OpenCalls: the calls of sends with an identity that are not answered yet: their bounds and deadlines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.completion import Completion
from backend.kafka.errors import to_failed_result
from backend.kafka.sends.calls import IdentifiedCall, Later
from backend.records import AppendResult, AppendStatus, NewRecord
from ddmq_common.clock import NEVER, Clock
from ddmq_common.errors import BoundReachedError
from ddmq_common.hub_timer import HubTimer


class OpenCalls:
    """The open calls of one process. Each is answered at its deadline, if not before.

    `records_max`, `bytes_max`: of all open calls together.
    """

    def __init__(self, clock: Clock, later: Later, records_max: int, bytes_max: int) -> None:
        self._clock = clock
        self._later = later
        self._records_max, self._bytes_max = records_max, bytes_max
        self._calls: dict[IdentifiedCall, tuple[int, int]] = {}  # with their records and bytes
        self._records = self._bytes = 0
        self._next_deadline = NEVER
        self._idle_callbacks: list[Callable[[], None]] = []
        self._timer = HubTimer(ref=False)

    def create_call(
        self,
        completion: Completion[list[AppendResult]],
        size: int,
        deadline: float,
        is_forwarded: bool = False,
    ) -> IdentifiedCall:
        """Create a call of `size` records; it is open once it is added."""
        return IdentifiedCall(completion, size, deadline, self._later, self._on_answered, is_forwarded)

    def check_bounds(self, record: NewRecord) -> AppendResult | None:
        """Return the result of a record that the bounds do not allow now; None if they do."""
        if self._records < self._records_max and self._bytes + len(record.delivery) <= self._bytes_max:
            return None
        error = BoundReachedError(
            f"{self._records_max} records, {self._bytes_max} bytes of sends that are stored once are on their"
            " way to Kafka; that is the bound"
        )
        return to_failed_result(error, AppendStatus.NOT_STORED)

    def add_call(self, call: IdentifiedCall, records: Sequence[NewRecord]) -> None:
        """Count a call until it is answered, and answer it at its deadline."""
        count, size = len(records), sum(len(record.delivery) for record in records)
        self._records += count
        self._bytes += size
        self._calls[call] = count, size
        if call.deadline < self._next_deadline:
            self._next_deadline = call.deadline
            self._timer.once(call.deadline - self._clock.monotonic(), self._expire_calls)

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call `then` once no call is open."""
        if self._calls:
            self._idle_callbacks.append(then)
        else:
            then()

    def close(self, error: Exception) -> None:
        """Answer all open calls with `error`."""
        self._timer.stop()
        for call in list(self._calls):
            call.close(error)

    def _on_answered(self, call: IdentifiedCall) -> None:
        count, size = self._calls.pop(call, (0, 0))
        self._records -= count
        self._bytes -= size
        if not self._calls:
            callbacks, self._idle_callbacks = self._idle_callbacks, []
            for callback in callbacks:
                self._later(callback)

    def _expire_calls(self) -> None:
        now = self._clock.monotonic()
        for call in [call for call in self._calls if call.deadline <= now]:
            call.expire()
        self._next_deadline = min((call.deadline for call in self._calls if not call.is_done), default=NEVER)
        if self._next_deadline < NEVER:
            self._timer.once(self._next_deadline - now, self._expire_calls)
