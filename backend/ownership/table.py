"""The state machine that decides which member holds which queue; events go in, decisions come out.

Each queue of a topic that a group has joined is in one of four states. "Aimed at m" means: group.py says
that m should hold it.

| event                | FREE                | GRANTING m          | HELD by m          | LEAVING m         |
|----------------------|---------------------|---------------------|--------------------|-------------------|
| aimed at another, x  | GRANTING x, Grant * | –                   | LEAVING m, Revoke  | –                 |
| aimed at nobody      | –                   | –                   | LEAVING m, Revoke  | –                 |
| grant durable        | –                   | HELD, Assign **     | –                  | –                 |
| grant not durable    | –                   | FREE until `retry`  | –                  | –                 |
| m releases           | –                   | –                   | FREE               | FREE              |
| m leaves, or is dead | –                   | – (the disk first)  | FREE               | FREE              |
| the deadline passes  | –                   | –                   | –                  | FREE, Lose m      |
| the queue is gone    | forgotten           | forgotten           | forgotten, Lose m  | forgotten, Lose m |
| `recall`             | –                   | –                   | LEAVING m, Revoke  | –                 |
| `depose`             | –                   | –                   | FREE, Lose m       | FREE, Lose m      |

"–": nothing changes; stale messages of members (a release of what they lost) are among these. After
every event all lines concerned take aim again, so a queue that became FREE is granted in the same turn.

Rules:
* A queue whose aim does not change is not touched. One that was asked back does not return to HELD: its
  member has been told; if it is aimed at it again, it gets it back under a new epoch.
* The epoch of a grant is above every epoch granted or recorded on any queue of the topic for that group.
* (**) When m has left meanwhile, or the queue is aimed at another: FREE.
* (*) What goes to one member as a whole is granted when nobody else has any of it: of the queues that a
  member should hold (whole topic), of all whole-group topics of the group (whole group).
* The process that holds a group stays until it is gone or another has joined more of the group's
  whole-group topics: what its holder has not joined nobody gets, so the wider one serves more.
* At most `lines_max` pairs of group and topic; a pair without members is forgotten.

Pure: monotonic seconds, the queues of a topic and the recorded epochs are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from backend.ownership.group import (
    Assign,
    AssignedGroup,
    AssignmentState,
    Decision,
    Grant,
    GroupMember,
    Lose,
    QueueAssignment,
    Revoke,
    TopicLine,
    by_member,
)
from backend.port import Sharing
from backend.records import QueueRef
from ddmq_common.errors import BoundReachedError

REVOKE_S = 2.0  # how long a member may take to release what it is asked for
LATE_MAX = 32  # lines that one `tick` settles: some milliseconds


class AssignmentTable:
    """The assignments of every group.

    `living` returns a topic's existing queues in order; `recorded` returns a queue's recorded epoch.
    """

    def __init__(
        self,
        living: Callable[[str], Sequence[QueueRef]],
        recorded: Callable[[str, QueueRef], int],
        lines_max: int,
        revoke_s: float = REVOKE_S,
    ) -> None:
        self._living = living
        self._recorded = recorded
        self._lines_max = lines_max
        self._revoke_s = revoke_s
        self._groups: dict[str, AssignedGroup] = {}
        self._by_topic: dict[str, dict[str, TopicLine]] = {}  # topic, group
        self._count = 0
        self._serial = 0
        self._leaving: dict[TopicLine, float] = {}  # lines with queues asked back, and the first deadline

    @property
    def waiting(self) -> bool:
        """Whether a deadline is running, so that `tick` must be called."""
        return bool(self._leaving)

    # --- events

    def join(self, member: GroupMember, now: float) -> list[Decision]:
        """Add a member; return the decisions that follow.

        Raises BoundReachedError if there are too many groups.
        """
        line = self._find_line(member.group, member.topic)
        if line is None:
            line = self._open_line(member.group, member.topic)
        member.serial, member.joined = self._next_serial(), True
        line.enter(member)
        return self._settle_line(line, now)

    def leave(self, member: GroupMember, now: float) -> list[Decision]:
        """Remove a member that left or died, and free its queues at once; return the decisions that follow.

        Does nothing if the member is not joined.
        """
        if not member.joined:
            return []
        member.joined = False
        line = self._groups[member.group].lines[member.topic]
        line.leave(member)
        return self._settle_line(line, now)

    def release(self, member: GroupMember, queues: Iterable[QueueRef], now: float) -> list[Decision]:
        """Free queues that a member releases, revoked or not; return the decisions that follow."""
        line = self._find_line(member.group, member.topic)
        if line is None:
            return []
        for queue in queues:
            cell = line.cells.get(queue)
            if cell is not None and cell.is_notified(member):
                cell.free()
        return self._settle_line(line, now)

    def topic_changed(self, topic: str, now: float) -> list[Decision]:
        """Update the queues of a topic that was created or deleted or has grown; return the decisions."""
        decisions: list[Decision] = []
        for line in list(self._by_topic.get(topic, {}).values()):
            decisions += self._settle_line(line, now)
        return decisions

    def granted(self, grant: Grant, now: float) -> list[Decision]:
        """Complete a grant whose epochs are durable; return the decisions that follow."""
        member, assigned = grant.member, list[QueueRef]()
        line = self._find_line(member.group, member.topic)
        if line is None:
            return []
        for queue, cell in self._waiting_cells(line, grant):
            if member.joined and line.aim.get(queue) is member:
                cell.state = AssignmentState.HELD
                assigned.append(queue)
            else:
                cell.free()
        decisions: list[Decision] = [Assign(member, tuple(assigned), grant.epoch)] if assigned else []
        return decisions + self._settle_line(line, now)

    def grant_failed(self, grant: Grant) -> None:
        """Free the queues of a grant whose epochs could not be made durable; `retry` should follow later."""
        line = self._find_line(grant.member.group, grant.member.topic)
        for _, cell in [] if line is None else self._waiting_cells(line, grant):
            cell.free()
        if line is not None and not line:
            self._forget_line(line)

    def retry(self, group: str, topic: str, now: float) -> list[Decision]:
        """Grant queues whose grant failed before; return the decisions."""
        line = self._find_line(group, topic)
        return [] if line is None else self._settle_line(line, now)

    def tick(self, now: float) -> list[Decision]:
        """Take queues from members that did not release them in time, for at most LATE_MAX lines per call."""
        decisions: list[Decision] = []
        for line in [line for line, deadline in self._leaving.items() if deadline <= now][:LATE_MAX]:
            late = line.where(lambda _, cell: cell.state is AssignmentState.LEAVING and cell.deadline <= now)
            decisions += self._take_queues(line, late)
            decisions += self._settle_line(line, now)
        return decisions

    def recall(self, group: str, topic: str, deadline: float) -> list[Decision]:
        """Revoke all queues that members own; these members become the last candidates for them."""
        line = self._find_line(group, topic)
        if line is None:
            return []
        queues = line.where(lambda _, cell: cell.state is AssignmentState.HELD)
        self._move_to_end(line, queues)
        return self._recall_queues(line, queues, deadline)

    def depose(self, group: str, topic: str, now: float) -> list[Decision]:
        """Take all queues from their members at once; these become the last candidates for them."""
        line = self._find_line(group, topic)
        if line is None:
            return []
        queues = line.where(lambda _, cell: cell.state in (AssignmentState.HELD, AssignmentState.LEAVING))
        self._move_to_end(line, queues)
        return self._take_queues(line, queues) + self._settle_line(line, now)

    # --- questions

    def holders(self, group: str, topic: str) -> dict[QueueRef, GroupMember]:
        """Return the member that owns each queue; queues that are being moved are left out."""
        line = self._find_line(group, topic)
        cells = {} if line is None else line.cells
        return {
            queue: cell.member
            for queue, cell in cells.items()
            if cell.state is AssignmentState.HELD and cell.member is not None
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
            for topic, line in group.lines.items():
                self._by_topic.setdefault(topic, {})[name] = line
                self._count += 1
                self._leaving[line] = 0.0
                self._update_line(line)

    # --- inside

    def _settle_line(self, line: TopicLine, now: float) -> list[Decision]:
        """Choose members again, then revoke the queues that must move and grant those that are free."""
        group = self._groups[line.group]
        decisions: list[Decision] = []
        lost = line.sync(self._living(line.topic))
        decisions += [Lose(member, tuple(queues)) for member, queues in lost.items()]
        lines = [line]
        if group.choose() or (group.withheld and not group.others_hold()):
            group.withheld = False
            lines += [other for other in group.whole() if other is not line]
        for one in lines:
            one.choose_members(group.holder)
            decisions += self._recall_queues(one, one.where(_is_misplaced(one)), now + self._revoke_s)
        for one in lines:
            decisions += self._grant_free(one, group)
        for one in lines:
            self._update_line(one)
        return decisions

    def _recall_queues(self, line: TopicLine, queues: Iterable[QueueRef], deadline: float) -> list[Decision]:
        by_holder = by_member((queue, line.cells[queue].member) for queue in queues)
        for owned in by_holder.values():
            self._leaving[line] = min(deadline, self._leaving.get(line, deadline))
            for queue in owned:
                line.cells[queue].recall(deadline)
        return [Revoke(member, tuple(owned), deadline) for member, owned in by_holder.items()]

    def _take_queues(self, line: TopicLine, queues: Sequence[QueueRef]) -> list[Decision]:
        losers = by_member((queue, line.cells[queue].member) for queue in queues)
        for queue in queues:
            line.cells[queue].free()
        return [Lose(member, tuple(lost)) for member, lost in losers.items()]

    def _grant_free(self, line: TopicLine, group: AssignedGroup) -> list[Decision]:
        free = line.where(lambda queue, cell: cell.state is AssignmentState.FREE and queue in line.aim)
        if free and line.sharing is Sharing.WHOLE_GROUP and group.others_hold():
            group.withheld = True
            return []
        if not free:
            return []
        grants: list[Decision] = []
        recorded = max(self._recorded(line.group, queue) for queue in line.cells)
        for member, queues in by_member((queue, line.aim[queue]) for queue in free).items():
            if line.sharing is Sharing.WHOLE_TOPIC and _others_have(line, member):
                continue
            recorded = line.epoch = max(line.epoch, recorded) + 1
            for queue in queues:
                line.cells[queue].give(member, line.epoch)
            grants.append(Grant(member, tuple(queues), line.epoch))
        return grants

    def _waiting_cells(self, line: TopicLine, grant: Grant) -> list[tuple[QueueRef, QueueAssignment]]:
        """Return the queues of a grant that still await its completion."""
        cells = [(queue, line.cells[queue]) for queue in grant.queues if queue in line.cells]
        return [
            (queue, cell)
            for queue, cell in cells
            if cell.state is AssignmentState.GRANTING
            and cell.epoch == grant.epoch
            and cell.member is grant.member
        ]

    def _move_to_end(self, line: TopicLine, queues: Iterable[QueueRef]) -> None:
        members = set(by_member((queue, line.cells[queue].member) for queue in queues))
        processes = {member.process for member in members}
        group, serial = self._groups[line.group], self._next_serial()
        line.move_to_end(serial, members)
        if line.sharing is Sharing.WHOLE_GROUP and group.holder in processes:
            group.holder = None
            for other in group.whole():
                other.move_to_end(serial, [member for member in other.members if member.process in processes])

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _find_line(self, group: str, topic: str) -> TopicLine | None:
        assigned = self._groups.get(group)
        return None if assigned is None else assigned.lines.get(topic)

    def _open_line(self, group: str, topic: str) -> TopicLine:
        if self._count >= self._lines_max:
            raise BoundReachedError(f"{self._lines_max} groups have joined topics; that is the bound")
        line = TopicLine(group, topic)
        self._groups.setdefault(group, AssignedGroup()).lines[topic] = line
        self._by_topic.setdefault(topic, {})[group] = line
        self._count += 1
        return line

    def _update_line(self, line: TopicLine) -> None:
        """Update the line's first deadline, and remove the line if it is empty."""
        if line in self._leaving:
            deadlines = [
                cell.deadline for cell in line.cells.values() if cell.state is AssignmentState.LEAVING
            ]
            if deadlines:
                self._leaving[line] = min(deadlines)
            else:
                del self._leaving[line]
        if not line:
            self._forget_line(line)

    def _forget_line(self, line: TopicLine) -> None:
        self._leaving.pop(line, None)
        group, groups = self._groups[line.group], self._by_topic[line.topic]
        del group.lines[line.topic], groups[line.group]
        if not group.lines:
            del self._groups[line.group]
        if not groups:
            del self._by_topic[line.topic]
        self._count -= 1


def _is_misplaced(line: TopicLine) -> Callable[[QueueRef, QueueAssignment], bool]:
    return lambda queue, cell: cell.state is AssignmentState.HELD and line.aim.get(queue) is not cell.member


def _others_have(line: TopicLine, member: GroupMember) -> bool:
    """Return whether other members still own queues that `member` should own."""
    return any(
        aimed is member and line.cells[queue].member not in (None, member)
        for queue, aimed in line.aim.items()
    )
