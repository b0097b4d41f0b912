"""Lanes: which commits of one process may be in flight together, and in which order. Pure.

A commit names its resources: each pair of group and queue whose progress it changes, each queue that it
appends to, and the settings if it changes any. The commits of one resource form a queue, in the order of the
calls, and only the first of a queue may start. So two batches in flight never share a resource, and the order
of the calls is kept for each of them; commits without a common resource never wait for each other.

| kind        | what it is                                     | in flight at once                           |
|-------------|------------------------------------------------|---------------------------------------------|
| ACTION      | a call to make between commits, e.g. an append | none: it ends at once                       |
| PLAIN       | progress alone, written without a transaction  | one batch                                   |
| TRANSACTION | records or settings                            | one batch for each free transactional id    |
| EXCLUSIVE   | checks that no other process may pass          | alone: it starts when nothing is in flight  |

* A batch has the commits that may start and belong to its bucket (a hash of what the commit changes first),
  and those that would otherwise wait for the batch itself: they are next in the queues of its members.
* Transactions that were called after a waiting exclusive commit wait for it, so it does start. Progress does
  not: an acknowledgement never waits for another queue of messages.
* A suspect, a commit to a topic that has not answered lately, is a batch of its own, and one of them is in
  flight at a time. So a topic that does not answer takes one transactional id at most.

Work that is given up while it waits stays in its queues until it is the first there; then it ends at once.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Generic, TypeVar

BUCKETS = 4  # groups of commits that share transactions while no transactional id is free


class WorkKind(IntEnum):
    """The kinds of work that lanes schedule: an action on the state, or a commit of one of three kinds."""

    ACTION = 0
    PLAIN = 1
    TRANSACTION = 2
    EXCLUSIVE = 3


class LaneWork:
    """A commit or an action that waits until the lanes allow it to start.

    `size`: how many records it has. `is_alone`: it shares no batch with others.
    """

    __slots__ = (
        "blockers",
        "bucket",
        "is_abandoned",
        "is_alone",
        "kind",
        "number",
        "resources",
        "size",
        "waits_for_appends",
    )

    def __init__(self, kind: WorkKind, resources: Iterable[Hashable] = (), size: int = 0) -> None:
        self.kind = kind
        self.resources = tuple(dict.fromkeys(resources))
        self.bucket = hash(self.resources[0]) % BUCKETS if self.resources else 0
        self.size = size
        self.is_alone = False
        self.is_abandoned = False  # given up while it waited
        self.waits_for_appends = False  # it could start, but for earlier appends
        self.number = 0  # in the order of the calls; 0: it is not scheduled
        self.blockers = 0  # queues in which it is not the first


W = TypeVar("W", bound=LaneWork)


class Batch(Generic[W]):
    """LaneWork that is in flight together; for each resource its members are in the order of the calls."""

    __slots__ = ("is_suspect", "kind", "members")

    def __init__(self, kind: WorkKind, members: list[W], is_suspect: bool = False) -> None:
        self.kind = kind
        self.members = members
        self.is_suspect = is_suspect


class ReadyHeap(Generic[W]):
    """LaneWork that is the first in all its queues, the earliest call first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, W]] = []

    def push(self, work: W) -> None:
        """Add work; adding it twice has no further effect."""
        heappush(self._heap, (work.number, work))

    def first_number(self) -> int:
        """Return the number of the first work in it; 0 if there is none."""
        heap = self._heap
        while heap and (heap[0][1].is_abandoned or heap[0][0] != heap[0][1].number or heap[0][1].blockers):
            heappop(heap)
        return heap[0][0] if heap else 0

    def pop(self) -> W:
        """Remove and return the first work; call `first_number` before."""
        return heappop(self._heap)[1]


class Lanes(Generic[W]):
    """Decides which commits and actions of one process may be in flight together, and in which order.

    `is_open(work, on_open)` says whether a transaction that is first in all its queues may start; if not,
    `on_open` must be called once it may. `is_suspect(work)`: see above. `members_max`, `size_max`: a batch
    takes no more work once it has so many members, or records.
    """

    def __init__(
        self,
        members_max: int,
        size_max: int,
        is_open: Callable[[W, Callable[[], None]], bool] = lambda work, on_open: True,
        is_suspect: Callable[[W], bool] = lambda work: False,
    ) -> None:
        self._members_max = members_max
        self._size_max = size_max
        self._is_open = is_open
        self._is_suspect = is_suspect
        self._last_number = 0
        self._queues: dict[Hashable, deque[W]] = {}
        self._actions: deque[W] = deque()
        self._plain: ReadyHeap[W] = ReadyHeap()
        self._transactions: list[ReadyHeap[W]] = [ReadyHeap() for _ in range(BUCKETS)]
        self._suspects: ReadyHeap[W] = ReadyHeap()
        self._exclusive: ReadyHeap[W] = ReadyHeap()
        self._exclusive_numbers: list[int] = []  # of all that wait, also of those that are not ready
        self.waiting = 0
        self.with_records = 0  # works that have records, waiting or in flight
        self.in_flight: dict[Batch[W], None] = {}

    def __contains__(self, resource: Hashable) -> bool:
        """Return whether work that waits or is in flight has this resource."""
        return resource in self._queues

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self.waiting and not self.in_flight

    def list_resources(self) -> Iterable[Hashable]:
        """Return the resources of all work that waits or is in flight."""
        return self._queues.keys()

    # --- waiting work

    def add(self, work: W) -> None:
        """Add work behind all other work."""
        self._last_number += 1
        work.number = self._last_number
        self.waiting += 1
        self.with_records += work.size > 0
        for resource in work.resources:
            queue = self._queues.setdefault(resource, deque())
            work.blockers += bool(queue)
            queue.append(work)
        if work.kind is WorkKind.EXCLUSIVE:
            insort(self._exclusive_numbers, work.number)
        if not work.blockers:
            self._make_ready(work)

    def give_up(self, work: W) -> None:
        """Mark waiting work as over: `next_action` returns it when its turn comes."""
        work.is_abandoned, work.waits_for_appends = True, False
        if not work.blockers:
            self._actions.append(work)

    def recheck_suspects(self) -> None:
        """Ask again which of the waiting work is suspect."""
        while self._suspects.first_number():
            self._push(self._suspects.pop())

    def _make_ready(self, work: W) -> None:
        if work.is_abandoned or work.kind is WorkKind.ACTION:
            self._actions.append(work)
        elif work.kind is not WorkKind.TRANSACTION or self._may_start(work):
            self._push(work)

    def _may_start(self, work: W) -> bool:
        def on_open() -> None:
            if work.waits_for_appends:
                work.waits_for_appends = False
                self._push(work)

        work.waits_for_appends = True
        if self._is_open(work, on_open):
            work.waits_for_appends = False
        return not work.waits_for_appends

    def _push(self, work: W) -> None:
        if work.kind is WorkKind.PLAIN:
            self._plain.push(work)
        elif work.kind is WorkKind.EXCLUSIVE:
            self._exclusive.push(work)
        else:
            self._transactions[work.bucket].push(work)

    # --- actions

    def next_action(self) -> W | None:
        """Return the next action, or work that was given up, and stop scheduling it."""
        if not self._actions:
            return None
        work = self._actions.popleft()
        self._stop_waiting(work)
        self._leave_queues((work,), ())
        return work

    # --- batches

    def next_batch(self, has_free_id: bool) -> Batch[W] | None:
        """Return the next batch and mark it as being committed until `end` is called; None if none may
        start."""
        batch = self._next_exclusive() or self._next_plain()
        if batch is None and has_free_id:
            batch = self._next_transaction()
        if batch is not None:
            for work in batch.members:
                self._stop_waiting(work)
            self.in_flight[batch] = None
        return batch

    def end(self, batch: Batch[W], retried: Collection[W] = ()) -> None:
        """End a batch that was being committed.

        `retried`: its members that start again, before all that was called after them.
        """
        del self.in_flight[batch]
        for work in retried:
            self.waiting += 1
            if work.kind is WorkKind.EXCLUSIVE:
                insort(self._exclusive_numbers, work.number)
        self._leave_queues(batch.members, retried)

    def _stop_waiting(self, work: W) -> None:
        self.waiting -= 1
        if work.kind is WorkKind.EXCLUSIVE:
            self._exclusive_numbers.remove(work.number)

    def _leave_queues(self, members: Collection[W], retried: Collection[W]) -> None:
        """Remove work from its queues, and make ready the work that is the first there now."""
        remaining, changed = set(retried), dict[Hashable, None]()
        for work in members:
            if work not in remaining:
                work.number = 0
                self.with_records -= work.size > 0
                for resource in work.resources:
                    queue = self._queues[resource]
                    if queue[0] is work:
                        queue.popleft()
                    else:  # behind a member that is retried
                        queue.remove(work)
                    changed[resource] = None
        for work in retried:
            work.blockers = sum(self._queues[resource][0] is not work for resource in work.resources)
            if not work.blockers:
                self._make_ready(work)
        for resource in changed:
            queue = self._queues[resource]
            if not queue:
                del self._queues[resource]
            elif queue[0] not in remaining:
                queue[0].blockers -= 1
                if not queue[0].blockers:
                    self._make_ready(queue[0])

    def _next_exclusive(self) -> Batch[W] | None:
        number = self._exclusive.first_number()
        if self.in_flight or not number or number != self._exclusive_numbers[0]:
            return None
        return Batch(WorkKind.EXCLUSIVE, [self._exclusive.pop()])

    def _next_plain(self) -> Batch[W] | None:
        if not self._plain.first_number() or any(batch.kind is WorkKind.PLAIN for batch in self.in_flight):
            return None
        return self._form_batch(self._plain, WorkKind.PLAIN, self._last_number + 1)

    def _next_transaction(self) -> Batch[W] | None:
        """Return the next batch of transactional commits. A waiting exclusive commit delays those called
        later."""
        if any(batch.kind is WorkKind.EXCLUSIVE for batch in self.in_flight):
            return None
        end = self._exclusive_numbers[0] if self._exclusive_numbers else self._last_number + 1
        while True:
            heads = [(number, bucket) for bucket in range(BUCKETS)
                     if 0 < (number := self._transactions[bucket].first_number()) < end]  # fmt: skip
            if not heads:
                break
            batch = self._form_batch(self._transactions[min(heads)[1]], WorkKind.TRANSACTION, end)
            if batch is not None:
                return batch
        if 0 < self._suspects.first_number() < end and not any(batch.is_suspect for batch in self.in_flight):
            return Batch(WorkKind.TRANSACTION, [self._suspects.pop()], is_suspect=True)
        return None

    def _form_batch(self, ready: ReadyHeap[W], kind: WorkKind, end: int) -> Batch[W] | None:
        """Return a batch of ready work numbered below `end`, and of work that waits only for that work.

        None if all of it is suspect; it is put aside then.
        """
        members, size = list[W](), 0
        positions: dict[
            Hashable, int
        ] = {}  # resource → members of the batch in its queue, which are its first
        following: deque[W] = deque()
        while len(members) < self._members_max and size < self._size_max:
            if following:
                work = following.popleft()
                if not self._may_join(work, kind, end, positions):
                    continue
            elif 0 < ready.first_number() < end:
                work = ready.pop()
                if kind is WorkKind.TRANSACTION and self._is_suspect(work):
                    self._suspects.push(work)
                    continue
                if work.is_alone and members:
                    ready.push(work)
                    break
            else:
                break
            members.append(work)
            size += work.size
            if work.is_alone:
                break
            for resource in work.resources:
                positions[resource] = positions.get(resource, 0) + 1
                queue = self._queues[resource]
                if len(queue) > positions[resource]:
                    following.append(queue[positions[resource]])
        return Batch(kind, members) if members else None

    def _may_join(self, work: W, kind: WorkKind, end: int, positions: dict[Hashable, int]) -> bool:
        """Return whether work waits for the batch alone, and may be in it."""
        if (
            not WorkKind.PLAIN <= work.kind <= kind
            or work.number >= end
            or work.is_alone
            or work.is_abandoned
        ):
            return False
        for resource in work.resources:
            queue, position = self._queues[resource], positions.get(resource, 0)
            if (
                position >= len(queue) or queue[position] is not work
            ):  # it is in the batch, or waits for others
                return False
        if work.kind is WorkKind.PLAIN:
            return True
        return not self._is_suspect(work) and self._is_open(work, lambda: None)
