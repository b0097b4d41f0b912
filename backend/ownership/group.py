"""One group: its members, how its queues are shared among them, and who should own each queue. Pure.

An AssignmentRow is the group on one topic: its members, the state of each queue, and `aim`, the member that
should own each queue:
* spread (averagely, by circle, consistent hash): queues that the same members can take are shared out
  among those by the strategy; members sorted by name, queues by number;
* whole topic: each queue to the oldest member that can take it, so without `queues` all go to one;
* whole group: each queue to the oldest member of the process that holds the group.

The strategies are those that RocketMQ calls AllocateMessageQueueAveragely, -AveragelyByCircle and
-ConsistentHash. Members and queues come to them sorted: every caller then reaches the same result from the
same names. Each answers with one member's index per queue. Hashes are SHA-1 of names, so they are the same in
every process and at every start.

table.py describes what happens to a queue when its aim changes. Its decisions are carried out in order: a
Grant is made durable first (every queue's epoch is raised in the group's progress); once that is answered,
the table is notified, and only then decides to Assign.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import sha1
from typing import NamedTuple

from backend.port import Sharing
from backend.records import QueueRef


class GroupMember:
    """One member of a group on one topic; compared by identity.

    `process`: the process that it belongs to. `name`: used to sort and hash members, the same at every start
    of the process. `queues`: the only queue numbers that it accepts, None = any. `serial`: its position in
    the order of members, the lowest is the oldest. `joined`: it has joined and not left.
    """

    __slots__ = ("group", "joined", "name", "process", "queues", "serial", "sharing", "topic")

    def __init__(
        self,
        group: str,
        topic: str,
        process: str,
        sharing: Sharing = Sharing.AVERAGELY,
        queues: frozenset[int] | None = None,
        name: str = "",
    ) -> None:
        self.group = group
        self.topic = topic
        self.process = process
        self.sharing = sharing
        self.queues = queues
        self.name = name or process
        self.serial = 0
        self.joined = False

    def can_take(self, queue: QueueRef) -> bool:
        """Return whether the member accepts this queue."""
        return self.queues is None or queue.queue_id in self.queues

    def __repr__(self) -> str:
        return f"GroupMember({self.group}, {self.topic}, {self.name}, {self.serial})"


class Grant(NamedTuple):
    """The decision to give a member these queues: raise their epochs durably, then report `granted` or
    `grant_failed` to the table."""

    member: GroupMember
    queues: tuple[QueueRef, ...]
    epoch: int


class Assign(NamedTuple):
    """The decision to notify a member that it owns these queues now."""

    member: GroupMember
    queues: tuple[QueueRef, ...]
    epoch: int


class Revoke(NamedTuple):
    """Ask the member to release these queues by `deadline` (monotonic seconds)."""

    member: GroupMember
    queues: tuple[QueueRef, ...]
    deadline: float


class Lose(NamedTuple):
    """Notify the member that it no longer owns these queues."""

    member: GroupMember
    queues: tuple[QueueRef, ...]


Decision = Grant | Assign | Revoke | Lose


POINTS = 64  # places of one member on the ring: with ten members shares differ by about a third
NAMES_CACHED = 4096


def averagely(queues: int, members: int) -> list[int]:
    """Return one member index per queue, so that each member gets consecutive queues.

    If the numbers do not divide evenly, the first members get one more.
    """
    each, more = divmod(queues, members)
    owners: list[int] = []
    for member in range(members):
        owners += [member] * (each + (member < more))
    return owners


def by_circle(queues: int, members: int) -> list[int]:
    """Return one member index per queue: the members in turn, repeatedly."""
    return [queue % members for queue in range(queues)]


def consistent_hash(queues: Sequence[str], members: Sequence[str]) -> list[int]:
    """Return one member index per queue: that of the next member on a hash ring.

    A member that joins takes only its own share. Members with equal names are distinguished by their order.
    """
    ring = _ring_of(members)
    hashes = [point for point, _ in ring]
    return [ring[bisect_left(hashes, _hash_of(queue)) % len(ring)][1] for queue in queues]


def _ring_of(members: Sequence[str]) -> list[tuple[int, int]]:
    repeats: dict[str, int] = {}
    ring: list[tuple[int, int]] = []
    for index, name in enumerate(members):
        repeat = repeats[name] = repeats.get(name, -1) + 1
        ring += [(point, index) for point in _points_of(name, repeat)]
    return sorted(ring)


@lru_cache(maxsize=NAMES_CACHED)
def _points_of(name: str, repeat: int) -> tuple[int, ...]:
    return tuple(_hash_of(f"{name}#{repeat}#{number}") for number in range(POINTS))


def _hash_of(name: str) -> int:
    return int.from_bytes(sha1(name.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()[:8])


STRICTNESS = {sharing: index for index, sharing in enumerate(Sharing)}
Grouped = dict[GroupMember, list[QueueRef]]


class AssignmentState(Enum):
    """The states of one queue's assignment; `QueueAssignment.member` is set in all states except FREE."""

    FREE = "free"
    GRANTING = "granting"  # its epoch is being raised; the member knows nothing yet
    OWNED = "held"
    LEAVING = "leaving"  # revoked, and released at the latest at `QueueAssignment.deadline`


class QueueAssignment:
    """The assignment state of one queue, and the member that it belongs to."""

    __slots__ = ("deadline", "epoch", "member", "state")

    def __init__(self) -> None:
        self.state = AssignmentState.FREE
        self.member: GroupMember | None = None
        self.epoch = 0
        self.deadline = 0.0

    def free(self) -> None:
        """Take the queue from its member: its state becomes FREE."""
        self.state, self.member = AssignmentState.FREE, None

    def give(self, member: GroupMember, epoch: int) -> None:
        """Begin to grant the queue to `member` under `epoch`."""
        self.state, self.member, self.epoch = AssignmentState.GRANTING, member, epoch

    def recall(self, deadline: float) -> None:
        """Begin to take the queue back from its member. The member must release it by `deadline`."""
        self.state, self.deadline = AssignmentState.LEAVING, deadline

    def is_notified(self, member: GroupMember) -> bool:
        """Return whether `member` was notified that it owns the queue."""
        return self.member is member and self.state is not AssignmentState.GRANTING


class AssignmentRow:
    """The members and queue assignments of one group on one topic."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.members: list[GroupMember] = []  # the oldest first
        self.cells: dict[QueueRef, QueueAssignment] = {}
        self.aim: dict[QueueRef, GroupMember] = {}
        self.epoch = 0  # above it is every later grant, so a holder may use its newest for all it holds
        self.sharing = Sharing.AVERAGELY

    def __bool__(self) -> bool:
        """Return whether this row is still needed: it has a member or a grant under way."""
        return bool(self.members) or any(
            cell.state is AssignmentState.GRANTING for cell in self.cells.values()
        )

    def enter(self, member: GroupMember) -> None:
        """Add a member, after all others."""
        self.members.append(member)
        self._choose_sharing()

    def leave(self, member: GroupMember) -> None:
        """Remove a member; the queues that it owned become free at once."""
        self.members.remove(member)
        for cell in self.cells.values():
            if cell.is_notified(member):
                cell.free()
        self._choose_sharing()

    def move_to_end(self, serial: int, members: Iterable[GroupMember]) -> None:
        """Move these members to the end of the order, with serials above `serial`."""
        for member in members:
            member.serial = serial
        self.members.sort(key=lambda member: member.serial)

    def _choose_sharing(self) -> None:
        requested = [member.sharing for member in self.members] or [Sharing.AVERAGELY]
        self.sharing = max(requested, key=STRICTNESS.__getitem__)

    def sync(self, living: Sequence[QueueRef]) -> Grouped:
        """Update the queues to those that exist; return the deleted queues that members owned, by member."""
        if len(living) == len(self.cells) and all(queue in self.cells for queue in living):
            return {}
        existing = set(living)
        deleted = [(queue, cell) for queue, cell in self.cells.items() if queue not in existing]
        self.cells = {queue: self.cells.get(queue) or QueueAssignment() for queue in living}
        return by_member((queue, cell.member) for queue, cell in deleted if _is_notified(cell))

    def choose_members(self, holder: str | None) -> None:
        """Decide which member should own each queue; `holder` is the process that holds the group."""
        queues = list(self.cells)
        if self.sharing is Sharing.WHOLE_TOPIC:
            self.aim = _first_able(queues, self.members)
        elif self.sharing is Sharing.WHOLE_GROUP:
            self.aim = _first_able(queues, [member for member in self.members if member.process == holder])
        else:
            self.aim = spread(self.sharing, queues, self.members)

    def where(self, want: Callable[[QueueRef, QueueAssignment], bool]) -> list[QueueRef]:
        """Return the queues for which `want` returns True."""
        return [queue for queue, cell in self.cells.items() if want(queue, cell)]


def spread(
    sharing: Sharing, queues: Sequence[QueueRef], members: Sequence[GroupMember]
) -> dict[QueueRef, GroupMember]:
    """Distribute the queues over members that accept them; return the member that should own each queue."""
    ordered = sorted(members, key=lambda member: (member.name, member.serial))
    choosy = any(member.queues is not None for member in ordered)
    takers: dict[tuple[GroupMember, ...], list[QueueRef]] = {}
    for queue in sorted(queues):
        able = tuple(member for member in ordered if member.can_take(queue)) if choosy else tuple(ordered)
        takers.setdefault(able, []).append(queue)
    return {
        queue: able[owner]
        for able, shared in takers.items()
        if able
        for queue, owner in zip(shared, _owner_indexes(sharing, shared, able), strict=True)
    }


def _owner_indexes(sharing: Sharing, queues: Sequence[QueueRef], members: Sequence[GroupMember]) -> list[int]:
    if sharing is Sharing.CONSISTENT_HASH:
        names = [f"{queue.topic}/{queue.queue_id}" for queue in queues]
        return consistent_hash(names, [member.name for member in members])
    strategy = by_circle if sharing is Sharing.BY_CIRCLE else averagely
    return strategy(len(queues), len(members))


def _first_able(queues: Iterable[QueueRef], members: Sequence[GroupMember]) -> dict[QueueRef, GroupMember]:
    owners = (
        (queue, next((member for member in members if member.can_take(queue)), None)) for queue in queues
    )
    return {queue: member for queue, member in owners if member is not None}


def by_member(pairs: Iterable[tuple[QueueRef, GroupMember | None]]) -> Grouped:
    """Group queues by their member, leaving out queues without one."""
    grouped: Grouped = {}
    for queue, member in pairs:
        if member is not None:
            grouped.setdefault(member, []).append(queue)
    return grouped


def _is_notified(cell: QueueAssignment) -> bool:
    return cell.state in (AssignmentState.OWNED, AssignmentState.LEAVING)


class AssignedGroup:
    """The rows of one group, by topic.

    `holder`: the process that holds the topics shared as a whole group. `withheld`: queues were not granted
    to the holder because other processes still owned some.
    """

    def __init__(self) -> None:
        self.rows: dict[str, AssignmentRow] = {}
        self.holder: str | None = None
        self.withheld = False

    def undivided_rows(self) -> list[AssignmentRow]:
        """Return the rows whose queues all go to one member of the group together."""
        return [row for row in self.rows.values() if row.sharing is Sharing.WHOLE_GROUP]

    def choose(self) -> bool:
        """Choose the process that holds the group; return whether it has changed.

        That is the process that joined the most topics, then the present holder, then the oldest.
        """
        joined: dict[str, int] = {}
        oldest: dict[str, int] = {}
        for row in self.undivided_rows():
            for process in dict.fromkeys(member.process for member in row.members):
                joined[process] = joined.get(process, 0) + bool(row.cells)
            for member in row.members:
                oldest[member.process] = min(member.serial, oldest.get(member.process, member.serial))
        present = self.holder
        self.holder = max(
            joined, key=lambda process: (joined[process], process == present, -oldest[process]), default=None
        )
        return self.holder != present

    def others_hold(self) -> bool:
        """Return whether another process than the holder still owns any whole-group queue."""
        return any(
            cell.member is not None and cell.member.process != self.holder
            for row in self.undivided_rows()
            for cell in row.cells.values()
        )
