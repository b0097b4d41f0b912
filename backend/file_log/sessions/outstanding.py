"""A member's requests that are not answered: sent or held, how much of them, and until when.

Rules: bounded by number and bytes; deadlines are kept by one sweep; a request leaves by `forget`, exactly
once, whatever becomes of it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from backend.completion import Completion
from backend.file_log.sessions.pipe import SessionLimits
from backend.file_log.sessions.requests import AppendFrame, SessionCommit, SessionRequest, WaitRequest
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, DrainingError, RemoteError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

SLOT_S = 0.02  # resolution of deadlines


class Outstanding:
    """`sent` by id, `held` in order; `caught_up` is called when nothing is being sent again."""

    def __init__(
        self, loop: Any, clock: Clock, metrics: Registry, limits: SessionLimits, caught_up: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._caught_up = caught_up
        self.held: dict[SessionRequest, None] = {}
        self._in_order = True
        self.sent: dict[int, SessionRequest] = {}
        self.resent: set[SessionRequest] = set()  # commits sent again in this session, not answered
        self.bytes = 0
        self._count_in = 0
        self.closed = False
        self._wheel: Wheel[SessionRequest] = Wheel(SLOT_S)
        self._idle: list[tuple[float, Completion[None]]] = []
        self._timer = HubTimer(loop=loop)
        self._ticking = False

    def __len__(self) -> int:
        return len(self.sent) + len(self.held)

    @property
    def room(self) -> int:
        """Bytes that may still be entered."""
        return self._limits.in_flight_bytes_max - self.bytes

    def enter(self, request: SessionRequest) -> bool:
        """Account for it; False, and it is refused from the hub, at a bound or once closed."""
        error = self._why_not(request)
        if error is not None:
            self._loop.run_callback(request.faulted, error)
            return False
        self._count_in += 1
        request.number = self._count_in
        self.bytes += request.size
        self._wheel.add(request, request.deadline)
        self._start()
        return True

    def _why_not(self, request: SessionRequest) -> Exception | None:
        if self.closed:
            return DrainingError("this process has closed its session; nothing new is taken")
        limits = self._limits
        if request.size <= self.room and len(self) < limits.requests_max:
            return None
        self._metrics.cell(catalogue.SESSION_REFUSED, "in flight").value += 1
        return BoundReachedError(
            f"{len(self)} requests with {self.bytes} bytes wait for the writer; allowed:"
            f" {limits.requests_max} with {limits.in_flight_bytes_max}"
        )

    def forget(self, request: SessionRequest) -> None:
        """It is settled, or goes elsewhere."""
        self._wheel.drop(request)
        if request.sent:
            self.sent.pop(request.ident, None)
        self.held.pop(request, None)
        if request in self.resent:
            self.resent.discard(request)
            if not self.resent:
                self._loop.run_callback(self._caught_up)
        self.bytes -= request.size
        request.size = 0

    def hold_again(self, request: SessionRequest) -> None:
        """The writer is draining and did nothing with it; the next one will be asked, in order."""
        self.sent.pop(request.ident, None)
        request.ident, request.sent = 0, False
        self.held[request] = None
        self._in_order = False

    def sort_held(self) -> None:
        """Bring what is held into the order of the calls, what is sent again before the rest."""
        if not self._in_order:
            self._in_order = True
            self.held = dict.fromkeys(sorted(self.held, key=lambda one: (not one.sent, one.number)))

    def session_lost(self) -> None:
        """What may be repeated is held, before everything else; the rest is settled as unknown."""
        again: dict[SessionRequest, None] = {}
        unknown: list[SessionRequest] = []
        for request in self.sent.values():
            if request.resend and not request.done:
                request.ident = 0
                again[request] = None
            else:
                unknown.append(request)
        self.sent.clear()
        self.resent.clear()
        self.held = {**again, **self.held}
        for request in unknown:
            self._count(request)
            self.forget(request)
            request.unknown()

    def given_up(self) -> list[WaitRequest]:
        """Waits at the writer that nobody wants any more, taken out."""
        found = [one for one in self.sent.values() if isinstance(one, WaitRequest) and one.done]
        for request in found:
            self.forget(request)
        return found

    def surrender(self) -> list[SessionRequest]:
        """Everything held, in order, taken out."""
        self.sort_held()
        held = [request for request in self.held if not request.done]
        for request in list(self.held):
            self.forget(request)
        return held

    # --- deadlines and the end

    def when_idle(self, deadline: float, done: Completion[None]) -> None:
        """Settle `done` once nothing is outstanding, or fail it at the deadline. Waits fail at once."""
        for request in [*self.sent.values(), *self.held]:
            if isinstance(request, WaitRequest):
                self.forget(request)
                if not request.done:
                    self._loop.run_callback(request.fail, DrainingError("this process is draining"))
        self._idle.append((deadline, done))
        self._start()
        self._loop.run_callback(self._see_idle)

    def tick(self) -> None:
        """Settle what is past its deadline; runs by itself while anything is outstanding."""
        now = self._clock.monotonic()
        for request in self._wheel.due(now):
            again = None if request.done else request.expire(now)
            if again is not None:
                self._wheel.add(request, again)
                continue
            if request.sent:
                self._count(request)
            self.forget(request)
        self._see_idle()
        if not self._wheel and not self._idle and self._ticking:
            self._ticking = False
            self._timer.stop()

    def _start(self) -> None:
        if not self._ticking and not self.closed:
            self._ticking = True
            self._timer.every(SLOT_S, self.tick)

    def _see_idle(self) -> None:
        now = self._clock.monotonic()
        waiting, self._idle = self._idle, []
        for deadline, done in waiting:
            if not len(self) or self.closed:
                done.succeed(None)
            elif deadline <= now:
                done.fail(RemoteError(f"{len(self)} requests were not answered by the deadline"))
            else:
                self._idle.append((deadline, done))

    def _count(self, request: SessionRequest) -> None:
        if isinstance(request, (AppendFrame, SessionCommit)):
            self._metrics.cell(catalogue.SESSION_UNANSWERED, request.kind.name.lower()).value += 1

    def close(self) -> None:
        """Everything fails with DrainingError."""
        self.closed = True
        self._timer.stop()
        pending = [*self.sent.values(), *self.held]
        self.sent.clear()
        self.held.clear()
        self.resent.clear()
        self._wheel.clear()
        for request in pending:
            if not request.done:
                request.fail(DrainingError("this process closed its session before the answer came"))
        self._see_idle()


H = TypeVar("H", bound=Hashable)


class Wheel(Generic[H]):
    """Deadlines of many things, looked at in sweeps: no timer and no greenlet per thing. Pure.

    Time is cut into slots of `slot_s` seconds; a thing lies in the first one that starts at or after its
    deadline, so it is handed out at most one slot late and never early. Adding and dropping cost O(1), but
    for a slot's first thing.
    """

    def __init__(self, slot_s: float) -> None:
        self.slot_s = slot_s
        self._slots: dict[int, set[H]] = {}
        self._order: list[int] = []  # heap of the slots that exist
        self._where: dict[H, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def add(self, thing: H, deadline: float) -> None:
        """Hand `thing` out at `deadline` (monotonic seconds); a thing is in at most once."""
        self.drop(thing)
        slot = math.ceil(min(deadline, 1e15) / self.slot_s)
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = set()
            heapq.heappush(self._order, slot)
        members.add(thing)
        self._where[thing] = slot

    def drop(self, thing: H) -> None:
        """Forget it; harmless when it is not in."""
        slot = self._where.pop(thing, None)
        if slot is not None:
            self._slots[slot].discard(thing)

    def due(self, now: float) -> list[H]:
        """Take out everything whose slot has come."""
        found: list[H] = []
        last = math.floor(now / self.slot_s)
        while self._order and self._order[0] <= last:
            members = self._slots.pop(heapq.heappop(self._order))
            for thing in members:
                del self._where[thing]
            found.extend(members)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._slots.clear()
        self._order.clear()
        self._where.clear()
