"""The state machine that decides which member owns which queue; events go in, decisions come out.

Each queue of a topic that a group has joined is in one of four states. "Aimed at m" means: group.py says
that m should own it.

| event                | FREE                | GRANTING m          | OWNED by m         | LEAVING m         |
|----------------------|---------------------|---------------------|--------------------|-------------------|
| aimed at another, x  | GRANTING x, Grant * | –                   | LEAVING m, Revoke  | –                 |
| aimed at nobody      | –                   | –                   | LEAVING m, Revoke  | –                 |
| grant durable        | –                   | OWNED, Assign **    | –                  | –                 |
| grant not durable    | –                   | FREE until `retry`  | –                  | –                 |
| m releases           | –                   | –                   | FREE               | FREE              |
| m leaves, or is dead | –                   | – (the disk first)  | FREE               | FREE              |
| the deadline passes  | –                   | –                   | –                  | FREE, Lose m      |
| the queue is gone    | forgotten           | forgotten           | forgotten, Lose m  | forgotten, Lose m |
| `recall`             | –                   | –                   | LEAVING m, Revoke  | –                 |
| `depose`             | –                   | –                   | FREE, Lose m       | FREE, Lose m      |

"–": nothing changes; stale messages of members (a release of what they lost) are among these. After
every event the aims of all rows concerned are chosen again, so a queue that became FREE is granted at once.

Rules:
* A queue whose aim does not change is not touched. A revoked queue does not return to OWNED, because its
  member has been notified; if it is aimed at that member again, the member gets it under a new epoch.
* The epoch of a grant is above every epoch granted or recorded on any queue of the topic for that group.
* (**) When m has left meanwhile, or the queue is aimed at another: FREE.
* (*) Queues that go to one member together are granted when no other member owns any of them: the queues
  of the topic (whole topic), or of all whole-group topics of the group (whole group).
* The process that holds a group stays until it has left or another has joined more of the group's
  whole-group topics: topics that the holder has not joined go to no member, so the wider one serves more.
* At most `rows_max` pairs of group and topic; a pair without members is forgotten.

Pure: monotonic seconds, the queues of a topic and the recorded epochs are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from backend.ownership.group import (
    Assign,
    AssignedGroup,
    AssignmentRow,
    AssignmentState,
    Decision,
    Grant,
    GroupMember,
    Lose,
    QueueAssignment,
    Revoke,
    by_member,
)
from backend.port import Sharing
from backend.records import QueueRef
from ddmq_common.errors import BoundReachedError

REVOKE_S = 2.0  # how long a member may take to release revoked queues
LATE_MAX = 32  # rows that one `tick` settles: some milliseconds


class AssignmentTable:
    """The assignments of every group.

    `living` returns a topic's existing queues in order; `recorded` returns a queue's recorded epoch.
    """

    def __init__(
        self,
        living: Callable[[str], Sequence[QueueRef]],
        recorded: Callable[[str, QueueRef], int],
        rows_max: int,
        revoke_s: float = REVOKE_S,
    ) -> None:
        self._living = living
        self._recorded = recorded
        self._rows_max = rows_max
        self._revoke_s = revoke_s
        self._groups: dict[str, AssignedGroup] = {}
        self._by_topic: dict[str, dict[str, AssignmentRow]] = {}  # topic, group
        self._count = 0
        self._serial = 0
        self._leaving: dict[AssignmentRow, float] = {}  # rows with revoked queues, and the first deadline

    @property
    def waiting(self) -> bool:
        """Whether a deadline is running, so that `tick` must be called."""
        return bool(self._leaving)

    # --- events

    def join(self, member: GroupMember, now: float) -> list[Decision]:
        """Add a member; return the decisions that follow.

        Raises BoundReachedError if there are too many groups.
        """
        row = self._find_row(member.group, member.topic)
        if row is None:
            row = self._open_row(member.group, member.topic)
        member.serial, member.joined = self._next_serial(), True
        row.enter(member)
        return self._settle_row(row, now)

    def leave(self, member: GroupMember, now: float) -> list[Decision]:
        """Remove a member that left or died, and free its queues at once; return the decisions that follow.

        Does nothing if the member is not joined.
        """
        if not member.joined:
            return []
        member.joined = False
        row = self._groups[member.group].rows[member.topic]
        row.leave(member)
        return self._settle_row(row, now)

    def release(self, member: GroupMember, queues: Iterable[QueueRef], now: float) -> list[Decision]:
        """Free queues that a member releases, revoked or not; return the decisions that follow."""
        row = self._find_row(member.group, member.topic)
        if row is None:
            return []
        for queue in queues:
            cell = row.cells.get(queue)
            if cell is not None and cell.is_notified(member):
                cell.free()
        return self._settle_row(row, now)

    def topic_changed(self, topic: str, now: float) -> list[Decision]:
        """Update the queues of a topic that was created or deleted or has grown; return the decisions."""
        decisions: list[Decision] = []
        for row in list(self._by_topic.get(topic, {}).values()):
            decisions += self._settle_row(row, now)
        return decisions

    def granted(self, grant: Grant, now: float) -> list[Decision]:
        """Complete a grant whose epochs are durable; return the decisions that follow."""
        member, assigned = grant.member, list[QueueRef]()
        row = self._find_row(member.group, member.topic)
        if row is None:
            return []
        for queue, cell in self._waiting_cells(row, grant):
            if member.joined and row.aim.get(queue) is member:
                cell.state = AssignmentState.OWNED
                assigned.append(queue)
            else:
                cell.free()
        decisions: list[Decision] = [Assign(member, tuple(assigned), grant.epoch)] if assigned else []
        return decisions + self._settle_row(row, now)

    def grant_failed(self, grant: Grant) -> None:
        """Free the queues of a grant whose epochs could not be made durable; `retry` should follow later."""
        row = self._find_row(grant.member.group, grant.member.topic)
        for _, cell in [] if row is None else self._waiting_cells(row, grant):
            cell.free()
        if row is not None and not row:
            self._forget_row(row)

    def retry(self, group: str, topic: str, now: float) -> list[Decision]:
        """Grant queues whose grant failed before; return the decisions."""
        row = self._find_row(group, topic)
        return [] if row is None else self._settle_row(row, now)

    def tick(self, now: float) -> list[Decision]:
        """Take queues from members that did not release them in time, for at most LATE_MAX rows per call."""
        decisions: list[Decision] = []
        for row in [row for row, deadline in self._leaving.items() if deadline <= now][:LATE_MAX]:
            late = row.where(lambda _, cell: cell.state is AssignmentState.LEAVING and cell.deadline <= now)
            decisions += self._take_queues(row, late)
            decisions += self._settle_row(row, now)
        return decisions

    def recall(self, group: str, topic: str, deadline: float) -> list[Decision]:
        """Revoke all queues that members own; these members become the last candidates for them."""
        row = self._find_row(group, topic)
        if row is None:
            return []
        queues = row.where(lambda _, cell: cell.state is AssignmentState.OWNED)
        self._move_to_end(row, queues)
        return self._recall_queues(row, queues, deadline)

    def depose(self, group: str, topic: str, now: float) -> list[Decision]:
        """Take all queues from their members at once; these become the last candidates for them."""
        row = self._find_row(group, topic)
        if row is None:
            return []
        queues = row.where(lambda _, cell: cell.state in (AssignmentState.OWNED, AssignmentState.LEAVING))
        self._move_to_end(row, queues)
        return self._take_queues(row, queues) + self._settle_row(row, now)

    # --- questions

    def holders(self, group: str, topic: str) -> dict[QueueRef, GroupMember]:
        """Return the member that owns each queue; queues that are being moved are left out."""
        row = self._find_row(group, topic)
        cells = {} if row is None else row.cells
        return {
            queue: cell.member
            for queue, cell in cells.items()
            if cell.state is AssignmentState.OWNED and cell.member is not None
        }

    # --- what a snapshot needs

    @property
    def serial(self) -> int:
        """The highest serial that was given to a member."""
        return self._serial

    @property
    def groups(self) -> Mapping[str, AssignedGroup]:
        """All groups by name; the caller must not change them."""
        return self._groups

    def put(self, groups: dict[str, AssignedGroup], serial: int) -> None:
        """Fill this empty table with the groups of another table."""
        self._groups, self._serial = groups, serial
        for name, group in groups.items():
            for topic, row in group.rows.items():
                self._by_topic.setdefault(topic, {})[name] = row
                self._count += 1
                self._leaving[row] = 0.0
                self._update_row(row)

    # --- inside

    def _settle_row(self, row: AssignmentRow, now: float) -> list[Decision]:
        """Choose members again, then revoke the queues that must move and grant those that are free."""
        group = self._groups[row.group]
        decisions: list[Decision] = []
        lost = row.sync(self._living(row.topic))
        decisions += [Lose(member, tuple(queues)) for member, queues in lost.items()]
        rows = [row]
        if group.choose() or (group.withheld and not group.others_hold()):
            group.withheld = False
            rows += [other for other in group.undivided_rows() if other is not row]
        for one in rows:
            one.choose_members(group.holder)
            decisions += self._recall_queues(one, one.where(_is_misplaced(one)), now + self._revoke_s)
        for one in rows:
            decisions += self._grant_free(one, group)
        for one in rows:
            self._update_row(one)
        return decisions

    def _recall_queues(
        self, row: AssignmentRow, queues: Iterable[QueueRef], deadline: float
    ) -> list[Decision]:
        by_owner = by_member((queue, row.cells[queue].member) for queue in queues)
        for owned in by_owner.values():
            self._leaving[row] = min(deadline, self._leaving.get(row, deadline))
            for queue in owned:
                row.cells[queue].recall(deadline)
        return [Revoke(member, tuple(owned), deadline) for member, owned in by_owner.items()]

    def _take_queues(self, row: AssignmentRow, queues: Sequence[QueueRef]) -> list[Decision]:
        losers = by_member((queue, row.cells[queue].member) for queue in queues)
        for queue in queues:
            row.cells[queue].free()
        return [Lose(member, tuple(lost)) for member, lost in losers.items()]

    def _grant_free(self, row: AssignmentRow, group: AssignedGroup) -> list[Decision]:
        free = row.where(lambda queue, cell: cell.state is AssignmentState.FREE and queue in row.aim)
        if free and row.sharing is Sharing.WHOLE_GROUP and group.others_hold():
            group.withheld = True
            return []
        if not free:
            return []
        grants: list[Decision] = []
        recorded = max(self._recorded(row.group, queue) for queue in row.cells)
        for member, queues in by_member((queue, row.aim[queue]) for queue in free).items():
            if row.sharing is Sharing.WHOLE_TOPIC and _others_have(row, member):
                continue
            recorded = row.epoch = max(row.epoch, recorded) + 1
            for queue in queues:
                row.cells[queue].give(member, row.epoch)
            grants.append(Grant(member, tuple(queues), row.epoch))
        return grants

    def _waiting_cells(self, row: AssignmentRow, grant: Grant) -> list[tuple[QueueRef, QueueAssignment]]:
        """Return the queues of a grant that still await its completion."""
        cells = [(queue, row.cells[queue]) for queue in grant.queues if queue in row.cells]
        return [
            (queue, cell)
            for queue, cell in cells
            if cell.state is AssignmentState.GRANTING
            and cell.epoch == grant.epoch
            and cell.member is grant.member
        ]

    def _move_to_end(self, row: AssignmentRow, queues: Iterable[QueueRef]) -> None:
        members = set(by_member((queue, row.cells[queue].member) for queue in queues))
        processes = {member.process for member in members}
        group, serial = self._groups[row.group], self._next_serial()
        row.move_to_end(serial, members)
        if row.sharing is Sharing.WHOLE_GROUP and group.holder in processes:
            group.holder = None
            for other in group.undivided_rows():
                other.move_to_end(serial, [member for member in other.members if member.process in processes])

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _find_row(self, group: str, topic: str) -> AssignmentRow | None:
        assigned = self._groups.get(group)
        return None if assigned is None else assigned.rows.get(topic)

    def _open_row(self, group: str, topic: str) -> AssignmentRow:
        if self._count >= self._rows_max:
            raise BoundReachedError(f"{self._rows_max} groups have joined topics; that is the bound")
        row = AssignmentRow(group, topic)
        self._groups.setdefault(group, AssignedGroup()).rows[topic] = row
        self._by_topic.setdefault(topic, {})[group] = row
        self._count += 1
        return row

    def _update_row(self, row: AssignmentRow) -> None:
        """Update the row's first deadline, and remove the row if it is empty."""
        if row in self._leaving:
            deadlines = [
                cell.deadline for cell in row.cells.values() if cell.state is AssignmentState.LEAVING
            ]
            if deadlines:
                self._leaving[row] = min(deadlines)
            else:
                del self._leaving[row]
        if not row:
            self._forget_row(row)

    def _forget_row(self, row: AssignmentRow) -> None:
        self._leaving.pop(row, None)
        group, groups = self._groups[row.group], self._by_topic[row.topic]
        del group.rows[row.topic], groups[row.group]
        if not group.rows:
            del self._groups[row.group]
        if not groups:
            del self._by_topic[row.topic]
        self._count -= 1


def _is_misplaced(row: AssignmentRow) -> Callable[[QueueRef, QueueAssignment], bool]:
    return lambda queue, cell: cell.state is AssignmentState.OWNED and row.aim.get(queue) is not cell.member


def _others_have(row: AssignmentRow, member: GroupMember) -> bool:
    """Return whether other members still own queues that `member` should own."""
    return any(
        aimed is member and row.cells[queue].member not in (None, member) for queue, aimed in row.aim.items()
    )
