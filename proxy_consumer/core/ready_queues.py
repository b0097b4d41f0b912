"""Which queues of a subscription may have something to do, now or later, and what may go out a second."""

from __future__ import annotations

from collections import deque

from proxy_consumer.core.order.scope import OrderScope
from proxy_consumer.core.queue_feed import FeedState
from proxy_consumer.core.steps import BufferedQueue
from proxy_consumer.core.timer_queue import NEVER


class Rate:
    """A token bucket of one second; `per_s` 0 = no limit. Time is monotonic seconds."""

    __slots__ = ("_kept_back", "_per_s", "_tokens", "_when")

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._tokens = float(per_s)
        self._when = 0.0
        self._kept_back = False  # somebody was told to wait

    def change(self, per_s: int) -> None:
        """Another limit, from now on."""
        self._per_s = per_s
        self._tokens = min(self._tokens, float(per_s))
        self._kept_back = self._kept_back and per_s > 0

    def room(self, count: int, now: float) -> int:
        """How many of `count` may go now."""
        if not self._per_s:
            return count
        self._tokens = min(float(self._per_s), self._tokens + max(0.0, now - self._when) * self._per_s)
        self._when = now
        self._kept_back = self._tokens < 1
        return min(count, int(self._tokens))

    def spend(self, count: int) -> None:
        """So many went, of those that `room` allowed."""
        if self._per_s:
            self._tokens -= count

    def next_time(self) -> float:
        """When there is room again for who was kept back; NEVER when nobody was."""
        if not self._kept_back:
            return NEVER
        return self._when + (1 - self._tokens) / self._per_s + 1e-6


class ReadyQueues:
    """`ready`: served in turn. `scopes`: of the queues that are in an ordered scope."""

    __slots__ = ("_short", "_timed", "ready", "scopes")

    def __init__(self) -> None:
        self.ready: deque[BufferedQueue] = deque()
        self.scopes: dict[BufferedQueue, OrderScope] = {}
        self._timed: dict[BufferedQueue, None] = {}  # those with a lease or a retry, and some that had one
        self._short: dict[OrderScope, None] = {}  # scopes that stopped to let others go on

    def heard(self, state: BufferedQueue) -> None:
        """Something was heard of a queue: what follows from it is done, and it is looked at again."""
        self._timed[state] = None
        if state.jobs.overtaken:
            state.drop_overtaken()
        if state.stream is not None and state.feed.state is not FeedState.GONE:
            scope, ledger = self.scopes[state], state.stream.ledger
            if ledger.let_out or ledger.made_room:
                scope.go_on()
            scope.hear(state.stream)
        state.wake()

    def heard_of_all(self, state: BufferedQueue) -> None:
        """The same, and its ordered scope, which may have waited for it, reads on."""
        self.heard(state)
        if state in self.scopes:
            self.scopes[state].wake()

    def leased(self, state: BufferedQueue) -> None:
        """Messages of it were handed out."""
        self._timed[state] = None
        if state.stream is not None and (scope := self.scopes[state]).full:
            scope.made_room()

    def stand_back(self, state: BufferedQueue, *, with_more: bool) -> None:
        """Take a queue out of those that are ready; `with_more`: it has some, and its scope wakes it."""
        self.ready.remove(state)
        state.in_ready = False
        if with_more and state.stream is not None:
            self.scopes[state].waiting_streams.append(state.stream)

    def forget(self, state: BufferedQueue) -> None:
        """The queue is not ours any more; its chains go on without it."""
        self._timed.pop(state, None)
        scope = self.scopes.pop(state, None)
        if scope is not None and state.stream is not None:
            scope.drop(state.stream)
        if state.in_ready:
            self.stand_back(state, with_more=False)

    # --- time

    def stopped_short(self, scope: OrderScope) -> None:
        """The scope has more to do at once; `sweep` lets it."""
        self._short[scope] = None

    @property
    def short(self) -> bool:
        """Whether some scope stopped to let others go on, and should be asked again soon."""
        return any(scope.short for scope in self._short)

    def sweep(self, now: float) -> int:
        """Leases that ran out, retries that are due; returns how many messages timed out."""
        expired = 0
        for state in list(self._timed):
            if state.jobs.next_event() <= now:
                expired += state.jobs.expire(now)
                state.jobs.table.move_due(now)
                self.heard(state)
        short, self._short = self._short, {}
        for scope in short:
            scope.short = False
            scope.wake()
        return expired

    def next_event(self) -> float:
        """When `sweep` has something to do; may be early, never late. NEVER: nothing."""
        soonest = NEVER
        for state in list(self._timed):
            event = state.jobs.next_event()
            if event == NEVER:
                del self._timed[state]
            soonest = min(soonest, event)
        return soonest
