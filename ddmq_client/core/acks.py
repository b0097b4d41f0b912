"""Results on their way to one proxy: collected per (topic, queue), taken in batches, put back on failure.
Pure.

An ack batch is what one call carries. Results are idempotent, so a batch whose call failed is put back and
sent again, however far the call got. Pending acks are bounded in results; past the bound the oldest queue's
results are dropped and counted: the proxy then redelivers those messages after their ack time-out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from ddmq_client.received import Message, Origin

CONTEXTS_MAX = 16  # linked results per call; proxies refuse to follow a list without end
RESULTS_MAX = 5_000  # per call
NO_LEASE = 0
NO_DELAY = -1


class OriginResults:
    """The results to report to a proxy for messages of one origin: successes, failures, returns and
    extensions.

    Leases and delays are lists parallel to the offsets.
    """

    __slots__ = (
        "extend_offsets", "extended", "extends", "fail_delays", "fail_leases", "fail_reasons", "fails",
        "origin", "repeated", "return_leases", "returns", "success_leases", "successes",
    )  # fmt: skip

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.successes: list[int] = []
        self.success_leases: list[int] = []
        self.fails: list[int] = []
        self.fail_leases: list[int] = []
        self.fail_delays: list[int] = []
        self.fail_reasons: list[str] = []
        self.extends: list[int] = []
        self.extend_offsets: list[int] = []
        self.extended: list[Message] = []
        self.returns: list[int] = []
        self.return_leases: list[int] = []
        self.repeated = False  # some of it was sent before, and the proxy may have taken it

    def __len__(self) -> int:
        return len(self.successes) + len(self.fails) + len(self.extends) + len(self.returns)

    @property
    def is_urgent(self) -> bool:
        """Whether there are results that must not be late: extensions and returned messages."""
        return bool(self.extends or self.returns)

    def prepend_earlier(self, earlier: OriginResults) -> None:
        """Insert results that were recorded earlier before these."""
        for name in itertools.chain(*_LISTS):
            setattr(self, name, getattr(earlier, name) + getattr(self, name))
        self.repeated = self.repeated or earlier.repeated

    def drop_settled_extensions(self) -> int:
        """Drop extensions of messages that are settled, as they would be reported as late.

        Returns how many were dropped.
        """
        if not self.extends:
            return 0
        settled = {*self.successes, *self.fails, *self.returns}
        count = len(self.extends)
        unsettled = [at for at, offset in enumerate(self.extend_offsets) if offset not in settled]
        self.extends = [self.extends[at] for at in unsettled]
        self.extend_offsets = [self.extend_offsets[at] for at in unsettled]
        self.extended = [self.extended[at] for at in unsettled]
        return count - len(unsettled)

    def split_off(self, count: int) -> OriginResults:
        """Remove and return at most `count` results, successes first."""
        chunk = OriginResults(self.origin)
        chunk.repeated = self.repeated
        for names in _LISTS:
            capacity = count - len(chunk)
            for name in names:
                values: list[Any] = getattr(self, name)
                setattr(chunk, name, values[:capacity])
                setattr(self, name, values[capacity:])
        return chunk


# Lists that run beside each other: each group is one kind of result.
_LISTS = (
    ("successes", "success_leases"),
    ("fails", "fail_leases", "fail_delays", "fail_reasons"),
    ("extends", "extend_offsets", "extended"),
    ("returns", "return_leases"),
)
AckBatch = list[OriginResults]


class PendingAcks:
    """All results that one proxy has not confirmed yet."""

    def __init__(self, results_max: int) -> None:
        self._results_max = results_max
        self._open: dict[Origin, OriginResults] = {}
        self._count = 0
        self.since: float | None = None  # when the oldest result here was recorded (or put back)
        self.urgent = False  # see OriginResults.is_urgent
        self.dropped = 0

    def __len__(self) -> int:
        return self._count

    def add_success(self, origin: Origin, offset: int, lease: int | None, now: float) -> None:
        """Record that a message was processed."""
        results = self._results_of(origin)
        results.successes.append(offset)
        results.success_leases.append(lease or NO_LEASE)
        self._count_result(now)

    def add_failure(
        self,
        origin: Origin,
        offset: int,
        lease: int | None,
        delay_ms: int | None,
        now: float,
        reason: str = "",
    ) -> None:
        """Record that a message failed; `delay_ms` None means the group's own retry interval."""
        results = self._results_of(origin)
        results.fails.append(offset)
        results.fail_leases.append(lease or NO_LEASE)
        results.fail_delays.append(NO_DELAY if delay_ms is None else delay_ms)
        results.fail_reasons.append(reason)
        self._count_result(now)

    def add_extension(self, message: Message, now: float) -> None:
        """Record a lease extension of a message."""
        assert message.lease_id is not None
        results = self._results_of(message.delivery.origin)
        results.extends.append(message.lease_id)
        results.extend_offsets.append(message.offset)
        results.extended.append(message)
        self.urgent = True
        self._count_result(now)

    def hand_back(self, origin: Origin, offset: int, lease: int, now: float) -> None:
        """Record that an unhandled message returns to the proxy, for other consumers."""
        results = self._results_of(origin)
        results.returns.append(offset)
        results.return_leases.append(lease)
        self.urgent = True
        self._count_result(now)

    def take_batch(self) -> AckBatch | None:
        """Remove and return the results for the next call; None if there are none.

        Call `give_back` if the call fails.
        """
        if not self._count:
            return None
        acks: AckBatch = []
        capacity = RESULTS_MAX
        for origin in list(self._open)[:CONTEXTS_MAX]:
            results = self._open[origin]
            self._count -= results.drop_settled_extensions()
            if len(results) > capacity:
                acks.append(results.split_off(capacity))
                break
            acks.append(self._open.pop(origin))
            capacity -= len(results)
            if not capacity:
                break
        self._count -= sum(map(len, acks))
        self.urgent = self.urgent and any(results.is_urgent for results in self._open.values())
        if not self._count:
            self.since = None
        return acks

    def give_back(self, acks: AckBatch, now: float) -> None:
        """Make the results of a failed call pending again."""
        for results in acks:
            if not len(results):
                continue
            results.repeated = True
            later = self._open.get(results.origin)
            if later is not None:
                later.prepend_earlier(results)
            else:
                self._open[results.origin] = results
            self._count += len(results)
            self.since = now if self.since is None else self.since
        self._drop_excess()

    def _results_of(self, origin: Origin) -> OriginResults:
        results = self._open.get(origin)
        if results is None:
            results = self._open[origin] = OriginResults(origin)
        return results

    def _count_result(self, now: float) -> None:
        self._count += 1
        if self.since is None:
            self.since = now
        if self._count > self._results_max:
            self._drop_excess()

    def _drop_excess(self) -> None:
        while self._count > self._results_max and len(self._open) > 1:
            lost = len(self._open.pop(next(iter(self._open))))
            self._count -= lost
            self.dropped += lost
        if self._count > self._results_max:
            (only,) = self._open.values()
            lost = len(only.split_off(self._count - self._results_max))
            self._count -= lost
            self.dropped += lost


class UnappliedResult(NamedTuple):
    """A result or extension that the proxy did not apply.

    `finished`: whether any consumer has finished the message.
    """

    origin: Origin
    offset: int
    lease: int
    finished: bool


def late_results(
    acks: AckBatch, unapplied: Iterable[UnappliedResult]
) -> tuple[list[UnappliedResult], list[UnappliedResult]]:
    """Return (late results, late extensions) among the results that the proxy did not apply.

    A resent result of a finished message is not late: the first sending may have been applied. The extension
    of a message that was settled meanwhile is not late either: its result may have arrived first, by another
    call. The messages of late extensions are marked as lost.
    """
    by_origin = {results.origin: results for results in acks}
    late: list[UnappliedResult] = []
    lost: list[UnappliedResult] = []
    for each in unapplied:
        results = by_origin.get(each.origin)
        if results is None:
            continue
        for message in results.extended:
            if message.offset == each.offset and message.outcome is None and not message.lost:
                message.lost = True
                lost.append(each)
        settled = each.offset in results.successes or each.offset in results.fails
        if settled and not (each.finished and results.repeated):
            late.append(each)
    return late, lost
