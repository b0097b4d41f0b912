"""Leases of one queue as runs of offsets.

One delivery is one Lease: an id and a deadline, shared by the runs of consecutive offsets that the
answer held (one run, unless the queue had gaps). Finishing part of a run cuts it, and so does extending
part of it: that part has a deadline of its own, under the same id. Nothing else is kept per message. Runs
are disjoint and sorted by offset, so that whoever comes with an offset and no lease id finds the lease by
bisection.

A message whose acknowledgement is being committed together with others (replying.py) is *taken up*: it counts
as leased, but nobody takes it, and its lease does not run out.

The byte count of a run is shared out in proportion when it is cut: sums stay exact, single pieces are
estimates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from mypy_extensions import mypyc_attr

from proxy_consumer.core.progress import ranges_of
from proxy_consumer.core.tally import Budget
from proxy_consumer.core.timer_queue import NEVER

Piece = tuple[int, int, int]  # start, end, bytes
EXTENSION_MIN_S = 0.001  # a smaller difference of two deadlines is rounding


@mypyc_attr(allow_interpreted_subclasses=True)
class Recipient:
    """The client that deliveries go to, and how many messages of them it has in flight. `name`: what it calls
    itself, as it came; empty: the `address` that it comes from says it all."""

    __slots__ = ("address", "in_flight", "name")

    def __init__(self, name: bytes = b"") -> None:
        self.in_flight = 0
        self.name = name
        self.address = ""


class Lease:
    """One delivery's right to finish its messages. `left`: how many are not finished yet.

    `since`: monotonic seconds when they were handed out; it stays when the deadline moves. `length_s`: how
    long the lease lasts, and each extension of it.
    """

    __slots__ = ("deadline", "id", "left", "length_s", "recipient", "since")

    def __init__(self, lease_id: int, deadline: float, since: float = 0.0) -> None:
        self.id = lease_id
        self.deadline = deadline
        self.since = since
        self.length_s = deadline - since
        self.left = 0
        self.recipient: Recipient | None = None

    def given_to(self, recipient: Recipient) -> None:
        """Count the messages of this lease as in flight at `recipient`."""
        self.recipient = recipient
        recipient.in_flight += self.left

    def copy(self) -> Lease:
        """Return the same right, of no messages yet."""
        twin = Lease(self.id, self.deadline, self.since)
        twin.length_s = self.length_s
        return twin

    def renewed_copy(self, now: float) -> Lease:
        """Return the same right with a deadline of its own, a whole length from now."""
        part = Lease(self.id, now + self.length_s, self.since)
        part.length_s = self.length_s
        part.recipient = self.recipient
        return part

    @property
    def is_extended(self) -> bool:
        """Whether the deadline has been moved since the messages were handed out."""
        return self.deadline > self.since + self.length_s + EXTENSION_MIN_S


class LeaseRun:
    """Consecutive offsets `[start, end)` under one lease."""

    __slots__ = ("end", "lease", "size", "start")

    def __init__(self, start: int, end: int, size: int, lease: Lease) -> None:
        self.start = start
        self.end = end
        self.size = size
        self.lease = lease


class TakenUp:
    """A message that is taken up. `turned`: its chain has turned back, it is to wait there again."""

    __slots__ = ("lease", "size", "turned")

    def __init__(self, lease: Lease, size: int) -> None:
        self.lease = lease
        self.size = size
        self.turned = False


class LeaseTable:
    """All leased runs of one queue, counted in the subscription's budget. `jobs`: messages of this queue.

    `taken_up`: by offset.
    """

    __slots__ = ("_budget", "_leases", "_runs", "_starts", "jobs", "next_deadline", "taken_up")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._starts: list[int] = []
        self._runs: list[LeaseRun] = []
        self._leases: dict[int, list[Lease]] = {}  # by id: the parts of one that have deadlines of their own
        self.jobs = 0
        self.next_deadline = NEVER  # a lower bound; exact after `take_expired`
        self.taken_up: dict[int, TakenUp] = {}

    def add(self, start: int, end: int, size: int, lease: Lease) -> None:
        """Lease `[start, end)`, none of which is leased now."""
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
        self.jobs += jobs
        self._budget.leased += jobs
        self._budget.leased_bytes += size

    def take_up(self, offset: int, lease_id: int) -> bool:
        """Take up a message that is leased under this id; False when it is not."""
        lease = self.lease_of(offset)
        if lease is None or lease.id != lease_id or offset in self.taken_up:
            return False
        ((_, _, size),) = self.take_leased(offset, offset + 1, lease_id)
        self._add_to_budget(lease, 1, size)
        self.taken_up[offset] = TakenUp(lease, size)
        return True

    def turn_back(self, offset: int) -> bool:
        """Its chain turns back; True when it is taken up, and goes back only if it is put down unfinished."""
        pending = self.taken_up.get(offset)
        if pending is not None:
            pending.turned = True
        return pending is not None

    def put_down(self, offset: int) -> TakenUp:
        """End the taking up of a message, and its lease."""
        pending = self.taken_up.pop(offset)
        self._give_back(pending.lease, 1, pending.size)
        return pending

    def take_leased(self, start: int, end: int, lease_id: int | None) -> list[Piece]:
        """Remove what of `[start, end)` is leased (under `lease_id`, unless None); returns the pieces."""
        index = bisect_right(self._starts, start) - 1
        if index < 0:
            index = 0
        elif (run := self._runs[index]).start == start and run.end == end:
            if lease_id is not None and run.lease.id != lease_id:
                return []
            del self._starts[index], self._runs[index]
            self._give_back(run.lease, end - start, run.size)
            return [(start, end, run.size)]
        return self._take_pieces(index, start, end, lease_id)

    def _take_pieces(self, index: int, start: int, end: int, lease_id: int | None) -> list[Piece]:
        pieces: list[Piece] = []
        while index < len(self._runs) and self._runs[index].start < end:
            run = self._runs[index]
            first, after = max(start, run.start), min(end, run.end)
            if first >= after or (lease_id is not None and run.lease.id != lease_id):
                index += 1
                continue
            piece, index = self._cut_run(index, run, first, after)
            pieces.append(piece)
        return pieces

    def _cut_run(self, index: int, run: LeaseRun, first: int, after: int) -> tuple[Piece, int]:
        """Take `[first, after)` out of the run at `index`; the piece, and the index after what is left."""
        whole, count = run.end - run.start, after - first
        size = run.size * count // whole
        rest = run.size - size
        parts: list[LeaseRun] = []
        size_before = rest * (first - run.start) // (whole - count) if whole > count else 0
        if first > run.start:
            parts.append(LeaseRun(run.start, first, size_before, run.lease))
        if after < run.end:
            parts.append(LeaseRun(after, run.end, rest - size_before, run.lease))
        self._runs[index : index + 1] = parts
        self._starts[index : index + 1] = [part.start for part in parts]
        self._give_back(run.lease, count, size)
        return (first, after, size), index + len(parts)

    def _give_back(self, lease: Lease, jobs: int, size: int) -> None:
        self.jobs -= jobs
        self._budget.leased -= jobs
        self._budget.leased_bytes -= size
        lease.left -= jobs
        if lease.recipient is not None:
            lease.recipient.in_flight -= jobs
        if lease.left == 0:
            parts = self._leases[lease.id]
            parts.remove(lease)
            if not parts:
                del self._leases[lease.id]

    def clear(self) -> None:
        """The queue is another's: nothing of it is in flight here any more."""
        for run in self._runs:
            self._give_back(run.lease, run.end - run.start, run.size)
        self._starts, self._runs = [], []
        for offset in list(self.taken_up):
            self.put_down(offset)
        self.next_deadline = NEVER

    def extend(self, lease_id: int, now: float) -> bool:
        """Start a live lease's time anew; False when there is no such lease (any more)."""
        parts = self._leases.get(lease_id)
        if parts is None:
            return False
        for lease in parts:
            self._extend(lease, now)
        return True

    def extend_parts(self, offsets: Sequence[int], lease_ids: Sequence[int], now: float) -> list[int]:
        """Start the time of single messages anew; returns the offsets that their leases do not hold."""
        late: list[int] = []
        for lease_id, group in by_lease(offsets, lease_ids):
            extended = set(self.extend_part(group, lease_id or 0, now))
            late += [offset for offset in group if offset not in extended]
        return late

    def extend_part(self, offsets: Sequence[int], lease_id: int, now: float) -> list[int]:
        """Start the time of these offsets anew, of no others under the lease; those that it holds."""
        parts = self._leases.get(lease_id)
        if parts is None:
            return []
        part = parts[0].renewed_copy(now)
        pieces = [
            piece for start, end in ranges_of(offsets) for piece in self.take_leased(start, end, lease_id)
        ]
        for start, end, size in pieces:
            self.add(start, end, size, part)
        extended = [offset for start, end, _ in pieces for offset in range(start, end)]
        for offset in self.taken_up.keys() & set(offsets) if self.taken_up else ():
            pending = self.taken_up[offset]
            if pending.lease.id == lease_id:
                self._give_back(pending.lease, 1, pending.size)
                self._add_to_budget(part, 1, pending.size)
                pending.lease = part
                extended.append(offset)
        return extended

    def _extend(self, lease: Lease, now: float) -> None:
        lease.deadline = now + lease.length_s
        self.next_deadline = min(self.next_deadline, lease.deadline)

    def cut_short(self, offset: int, now: float) -> bool:
        """Let the lease of one message end at `now`; False when it is not leased, or is taken up."""
        lease = self.lease_of(offset)
        if lease is None or offset in self.taken_up:
            return False
        part = lease.renewed_copy(now)
        part.deadline = now
        for start, end, size in self.take_leased(offset, offset + 1, None):
            self.add(start, end, size, part)
        return True

    def take_expired(self, now: float) -> list[Piece]:
        """Remove every run whose deadline has come; returns the pieces, ascending."""
        if now < self.next_deadline:
            return []
        expired = [run for run in self._runs if run.lease.deadline <= now]
        if expired:
            self._runs = [run for run in self._runs if run.lease.deadline > now]
            self._starts = [run.start for run in self._runs]
            for run in expired:
                self._give_back(run.lease, run.end - run.start, run.size)
        self.next_deadline = min((run.lease.deadline for run in self._runs), default=NEVER)
        return [(run.start, run.end, run.size) for run in expired]

    def leased_runs(self) -> list[tuple[int, int, int, Lease]]:
        """Every run as (start, end, bytes, lease), ascending, and what is taken up; leases as copies that
        nobody counts yet."""
        runs = [(run.start, run.end, run.size, run.lease) for run in self._runs]
        runs += [(at, at + 1, pending.size, pending.lease) for at, pending in self.taken_up.items()]
        copies = {id(lease): lease.copy() for _, _, _, lease in runs}
        return sorted(
            ((start, end, size, copies[id(lease)]) for start, end, size, lease in runs),
            key=lambda run: run[0],
        )

    def lease_of(self, offset: int) -> Lease | None:
        """The lease that holds `offset` now, whatever its id."""
        if offset in self.taken_up:
            return self.taken_up[offset].lease
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or offset >= self._runs[index].end:
            return None
        return self._runs[index].lease


def by_lease(
    offsets: Sequence[int], lease_ids: Sequence[int] | None
) -> Iterator[tuple[int | None, Sequence[int]]]:
    """Offsets grouped by lease id, None for those without one."""
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
