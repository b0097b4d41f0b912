"""Leases of one queue as runs of offsets.

One delivery is one Lease: an id and a deadline, shared by the runs of consecutive offsets in the reply (one
run, unless the queue had gaps). Finishing some offsets of a run splits it, and so does extending some: they
then have their own deadline under the same id. No other state is kept per message. Runs are disjoint and
sorted by offset, so that a result with an offset and no lease id finds its lease by bisection.

A message whose acknowledgement is being committed together with other records (replying.py) is *reserved*:
it still counts as leased, but no other result can finish it, and its lease does not expire.

The byte count of a run is divided in proportion when the run is split: sums stay exact, single ranges are
estimates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from mypy_extensions import mypyc_attr

from ddmq_common.security.quotas import Usage
from proxy_consumer.core.progress import ranges_of
from proxy_consumer.core.tally import Budget
from proxy_consumer.core.timer_queue import NEVER

LeasedRange = tuple[int, int, int]  # start, end, bytes
EXTENSION_MIN_S = 0.001  # a smaller difference of two deadlines is rounding


@mypyc_attr(allow_interpreted_subclasses=True)
class Recipient:
    """The client that receives deliveries, with its count of messages in flight.

    `name`: the name that the client sent, unchanged; if empty, `address` alone identifies the client.
    """

    __slots__ = ("address", "in_flight", "name")

    def __init__(self, name: bytes = b"") -> None:
        self.in_flight = 0
        self.name = name
        self.address = ""


class Lease:
    """A client's right to finish the messages of one delivery until a deadline. `left`: how many are
    unfinished.

    `since`: monotonic seconds of the delivery; an extension does not change it. `length_s`: the duration of
    the lease and of each extension.
    """

    __slots__ = ("deadline", "id", "left", "length_s", "recipient", "since", "usage")

    def __init__(self, lease_id: int, deadline: float, since: float = 0.0) -> None:
        self.id = lease_id
        self.deadline = deadline
        self.since = since
        self.length_s = deadline - since
        self.left = 0
        self.recipient: Recipient | None = None
        self.usage: Usage | None = None  # of the identity that received the delivery

    def charge_to(self, usage: Usage) -> None:
        """Count the messages of this lease as in flight at an identity."""
        self.usage = usage
        usage.in_flight += self.left

    def assign_to(self, recipient: Recipient) -> None:
        """Count the messages of this lease as in flight at `recipient`."""
        self.recipient = recipient
        recipient.in_flight += self.left

    def copy(self) -> Lease:
        """Return a lease with the same id, deadline and delivery time that counts no messages yet."""
        lease = Lease(self.id, self.deadline, self.since)
        lease.length_s = self.length_s
        return lease

    def renewed_copy(self, now: float) -> Lease:
        """Return a lease with the same id, delivery time (`since`) and recipient that expires one full length
        after `now`. It counts no messages yet."""
        renewed = Lease(self.id, now + self.length_s, self.since)
        renewed.length_s = self.length_s
        renewed.recipient = self.recipient
        renewed.usage = self.usage
        return renewed

    @property
    def is_extended(self) -> bool:
        """Whether the deadline is later than the one set at the delivery, one length after `since`."""
        return self.deadline > self.since + self.length_s + EXTENSION_MIN_S


class LeaseRun:
    """A range of consecutive offsets `[start, end)` under one lease."""

    __slots__ = ("end", "lease", "size", "start")

    def __init__(self, start: int, end: int, size: int, lease: Lease) -> None:
        self.start = start
        self.end = end
        self.size = size
        self.lease = lease


class ReservedMessage:
    """A reserved message, whose acknowledgement is being committed.

    `turned`: if that commit fails, the message must wait in its chain again.
    """

    __slots__ = ("lease", "size", "turned")

    def __init__(self, lease: Lease, size: int) -> None:
        self.lease = lease
        self.size = size
        self.turned = False


class LeaseTable:
    """The messages of one queue that clients have leased, counted in the subscription's budget.

    `jobs`: how many messages of the queue are leased. `reserved`: the reserved messages by offset.
    """

    __slots__ = ("_budget", "_leases", "_runs", "_starts", "jobs", "next_deadline", "reserved")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._starts: list[int] = []
        self._runs: list[LeaseRun] = []
        self._leases: dict[
            int, list[Lease]
        ] = {}  # by id; messages with different deadlines have separate leases
        self.jobs = 0
        self.next_deadline = NEVER  # a lower bound; exact after `take_expired`
        self.reserved: dict[int, ReservedMessage] = {}

    def add(self, start: int, end: int, size: int, lease: Lease) -> None:
        """Lease the offsets `[start, end)`, none of which may be leased already."""
        run = LeaseRun(start, end, size, lease)
        starts = self._starts
        if not starts or start > starts[-1]:
            starts.append(start)
            self._runs.append(run)
        else:
            index = bisect_right(starts, start)
            starts.insert(index, start)
            self._runs.insert(index, run)
        self._add_to_budget(lease, end - start, size)
        if lease.deadline < self.next_deadline:
            self.next_deadline = lease.deadline

    def _add_to_budget(self, lease: Lease, jobs: int, size: int) -> None:
        if lease.left == 0:
            self._leases.setdefault(lease.id, []).append(lease)
        lease.left += jobs
        if lease.recipient is not None:
            lease.recipient.in_flight += jobs
        if lease.usage is not None:
            lease.usage.in_flight += jobs
        self.jobs += jobs
        self._budget.leased += jobs
        self._budget.leased_bytes += size

    def reserve_message(self, offset: int, lease_id: int) -> bool:
        """Reserve a message that is leased under this id; return False if it is not, or is already
        reserved."""
        lease = self.lease_of(offset)
        if lease is None or lease.id != lease_id or offset in self.reserved:
            return False
        ((_, _, size),) = self.take_leased(offset, offset + 1, lease_id)
        self._add_to_budget(lease, 1, size)
        self.reserved[offset] = ReservedMessage(lease, size)
        return True

    def return_if_reserved(self, offset: int) -> bool:
        """Note that a reserved message must wait in its chain again if its commit fails; False if it is not
        reserved."""
        pending = self.reserved.get(offset)
        if pending is not None:
            pending.turned = True
        return pending is not None

    def end_reservation(self, offset: int) -> ReservedMessage:
        """End the reservation of a message, and its lease."""
        pending = self.reserved.pop(offset)
        self._subtract_leased(pending.lease, 1, pending.size)
        return pending

    def take_leased(self, start: int, end: int, lease_id: int | None) -> list[LeasedRange]:
        """Remove and return the leased ranges of `[start, end)`; with `lease_id`, only those under that
        lease."""
        index = bisect_right(self._starts, start) - 1
        if index < 0:
            index = 0
        elif (run := self._runs[index]).start == start and run.end == end:
            if lease_id is not None and run.lease.id != lease_id:
                return []
            del self._starts[index], self._runs[index]
            self._subtract_leased(run.lease, end - start, run.size)
            return [(start, end, run.size)]
        return self._take_ranges(index, start, end, lease_id)

    def _take_ranges(self, index: int, start: int, end: int, lease_id: int | None) -> list[LeasedRange]:
        ranges: list[LeasedRange] = []
        while index < len(self._runs) and self._runs[index].start < end:
            run = self._runs[index]
            first, after = max(start, run.start), min(end, run.end)
            if first >= after or (lease_id is not None and run.lease.id != lease_id):
                index += 1
                continue
            leased, index = self._split_run(index, run, first, after)
            ranges.append(leased)
        return ranges

    def _split_run(self, index: int, run: LeaseRun, first: int, after: int) -> tuple[LeasedRange, int]:
        """Remove `[first, after)` from the run at `index`; return it, and the index after the
        remaining runs."""
        length, count = run.end - run.start, after - first
        size = run.size * count // length
        rest = run.size - size
        remainders: list[LeaseRun] = []
        size_before = rest * (first - run.start) // (length - count) if length > count else 0
        if first > run.start:
            remainders.append(LeaseRun(run.start, first, size_before, run.lease))
        if after < run.end:
            remainders.append(LeaseRun(after, run.end, rest - size_before, run.lease))
        self._runs[index : index + 1] = remainders
        self._starts[index : index + 1] = [remainder.start for remainder in remainders]
        self._subtract_leased(run.lease, count, size)
        return (first, after, size), index + len(remainders)

    def _subtract_leased(self, lease: Lease, jobs: int, size: int) -> None:
        self.jobs -= jobs
        self._budget.leased -= jobs
        self._budget.leased_bytes -= size
        lease.left -= jobs
        if lease.recipient is not None:
            lease.recipient.in_flight -= jobs
        if lease.usage is not None:
            lease.usage.in_flight -= jobs
        if lease.left == 0:
            leases = self._leases[lease.id]
            leases.remove(lease)
            if not leases:
                del self._leases[lease.id]

    def clear(self) -> None:
        """End all leases without expiring them, because another proxy owns the queue."""
        for run in self._runs:
            self._subtract_leased(run.lease, run.end - run.start, run.size)
        self._starts, self._runs = [], []
        for offset in list(self.reserved):
            self.end_reservation(offset)
        self.next_deadline = NEVER

    def extend(self, lease_id: int, now: float) -> bool:
        """Move the deadline of a lease to one full length after `now`; return False if the lease does not
        exist (any more)."""
        leases = self._leases.get(lease_id)
        if leases is None:
            return False
        for lease in leases:
            self._extend(lease, now)
        return True

    def extend_messages(self, offsets: Sequence[int], lease_ids: Sequence[int], now: float) -> list[int]:
        """Move the deadline of single messages to one full length after `now`; return the offsets that are
        not held by the lease named for them."""
        late: list[int] = []
        for lease_id, group in by_lease(offsets, lease_ids):
            extended = set(self.extend_offsets(group, lease_id or 0, now))
            late += [offset for offset in group if offset not in extended]
        return late

    def extend_offsets(self, offsets: Sequence[int], lease_id: int, now: float) -> list[int]:
        """Move the deadline of these offsets only, not of the whole lease, to one full length after `now`;
        return those that the lease holds."""
        leases = self._leases.get(lease_id)
        if leases is None:
            return []
        renewed = leases[0].renewed_copy(now)
        ranges = [
            leased for start, end in ranges_of(offsets) for leased in self.take_leased(start, end, lease_id)
        ]
        for start, end, size in ranges:
            self.add(start, end, size, renewed)
        extended = [offset for start, end, _ in ranges for offset in range(start, end)]
        for offset in self.reserved.keys() & set(offsets) if self.reserved else ():
            pending = self.reserved[offset]
            if pending.lease.id == lease_id:
                self._subtract_leased(pending.lease, 1, pending.size)
                self._add_to_budget(renewed, 1, pending.size)
                pending.lease = renewed
                extended.append(offset)
        return extended

    def _extend(self, lease: Lease, now: float) -> None:
        lease.deadline = now + lease.length_s
        self.next_deadline = min(self.next_deadline, lease.deadline)

    def expire_now(self, offset: int, now: float) -> bool:
        """Make the lease of one message expire at `now`; return False if the message is not leased, or is
        reserved."""
        lease = self.lease_of(offset)
        if lease is None or offset in self.reserved:
            return False
        expiring = lease.renewed_copy(now)
        expiring.deadline = now
        for start, end, size in self.take_leased(offset, offset + 1, None):
            self.add(start, end, size, expiring)
        return True

    def take_expired(self, now: float) -> list[LeasedRange]:
        """Remove every run whose deadline has passed; return their ranges, ascending."""
        if now < self.next_deadline:
            return []
        expired = [run for run in self._runs if run.lease.deadline <= now]
        if expired:
            self._runs = [run for run in self._runs if run.lease.deadline > now]
            self._starts = [run.start for run in self._runs]
            for run in expired:
                self._subtract_leased(run.lease, run.end - run.start, run.size)
        self.next_deadline = min((run.lease.deadline for run in self._runs), default=NEVER)
        return [(run.start, run.end, run.size) for run in expired]

    def leased_runs(self) -> list[tuple[int, int, int, Lease]]:
        """Return every leased run and reserved message as (start, end, bytes, lease), ascending.

        The leases are copies that count no messages.
        """
        runs = [(run.start, run.end, run.size, run.lease) for run in self._runs]
        runs += [(at, at + 1, pending.size, pending.lease) for at, pending in self.reserved.items()]
        copies = {id(lease): lease.copy() for _, _, _, lease in runs}
        return sorted(
            ((start, end, size, copies[id(lease)]) for start, end, size, lease in runs),
            key=lambda run: run[0],
        )

    def lease_of(self, offset: int) -> Lease | None:
        """Return the lease that holds `offset` now, whatever its id; None if it is not leased."""
        if offset in self.reserved:
            return self.reserved[offset].lease
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self._runs[index].end:
            return None
        return self._runs[index].lease


def by_lease(
    offsets: Sequence[int], lease_ids: Sequence[int] | None
) -> Iterator[tuple[int | None, Sequence[int]]]:
    """Group offsets by lease id; the id is None for offsets without one."""
    if not offsets:
        return
    if not lease_ids:
        yield None, offsets
        return
    first = lease_ids[0]
    if len(lease_ids) == len(offsets) and lease_ids.count(first) == len(lease_ids):
        yield first or None, offsets
        return
    groups: dict[int, list[int]] = {}
    for index, offset in enumerate(offsets):
        groups.setdefault(lease_ids[index] if index < len(lease_ids) else 0, []).append(offset)
    for lease_id, group in groups.items():
        yield lease_id or None, group
