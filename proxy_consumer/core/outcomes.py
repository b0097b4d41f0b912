"""What clients say of their messages: finished, failed, more time, given back; each under its lease.

Offsets and what belongs to them come as lists side by side, as the wire has them. What a lease allows is
decided by the queue's jobs (jobs/queue_jobs.py); the queue is woken then.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy_consumer.core.leases import by_lease
from proxy_consumer.core.ready_queues import Rate, ReadyQueues
from proxy_consumer.core.steps import QueueState


class Outcomes:
    """Of all queues of one PullBuffer; `rate` gets back what nobody looked at."""

    def __init__(self, queues: ReadyQueues, rate: Rate) -> None:
        self._queues = queues
        self._rate = rate

    def finish(
        self, state: QueueState, offsets: Sequence[int], lease_ids: Sequence[int] | None, now: float
    ) -> int:
        """Acknowledge `offsets`, each under the lease id at the same place (absent or 0: without one)."""
        done = 0
        for lease_id, group in by_lease(offsets, lease_ids):
            done += state.jobs.finish(group, lease_id, now)
        if done and state.jobs.handed_out > state.feed.next_offset():
            state.drop_overtaken()
        self._queues.heard(state)
        return done

    def fail(
        self,
        state: QueueState,
        offsets: Sequence[int],
        lease_ids: Sequence[int] | None,
        delays_ms: Sequence[int] | None,
        now: float,
        reasons: Sequence[str] | None = None,
    ) -> int:
        """Fail `offsets`; a delay of 0 or more replaces the retry interval, a negative or absent one not."""
        failed = 0
        for index, offset in enumerate(offsets):
            lease_id = lease_ids[index] if lease_ids and index < len(lease_ids) else 0
            delay = delays_ms[index] if delays_ms and index < len(delays_ms) else -1
            reason = reasons[index] if reasons and index < len(reasons) else ""
            failed += state.jobs.fail(offset, lease_id or None, delay if delay >= 0 else None, now, reason)
        self._queues.heard(state)
        return failed

    def give_up(self, state: QueueState, offset: int, lease_id: int, reason: str, error: str = "") -> bool:
        """Fail one message for good: dead letter without further retry; `reason` one word, `error` free."""
        given_up = state.jobs.give_up(offset, lease_id or None, reason, error)
        self._queues.heard(state)
        return given_up

    def extend(self, state: QueueState, lease_ids: Sequence[int], now: float) -> int:
        """Start the leases' time anew."""
        return state.jobs.extend(lease_ids, now)

    def extend_parts(
        self, state: QueueState, offsets: Sequence[int], lease_ids: Sequence[int], now: float
    ) -> list[int]:
        """Start the time of single messages anew; returns the offsets whose lease was over."""
        late: list[int] = []
        for lease_id, group in by_lease(offsets, lease_ids):
            late += state.jobs.extend_part(group, lease_id or 0, now)
        return late

    def take_back(self, state: QueueState, offsets: Sequence[int], lease_ids: Sequence[int]) -> int:
        """Messages that nobody looked at, the last first: others may have them at once."""
        back = 0
        for offset, lease_id in sorted(zip(offsets, lease_ids, strict=False), reverse=True):
            back += state.jobs.take_back(offset, lease_id)
        self._rate.spend(-back)
        self._queues.heard(state)
        return back
