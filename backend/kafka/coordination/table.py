"""The replicated table: the events of one partition, in their order, decide the same everywhere. Pure.

Every process applies each event to its own CoordinationLog. The table of backend/ownership decides; nothing
in it depends on the time or the knowledge of one process:

* Time is the broker's stamp of the event. Nothing happens because time passes: a holder that does not release
  its queue keeps it until an event says that its process is dead.
* The queues of a topic are those that events stated: `Joined` if the topic is not recorded, then
  `TopicChanged`, which names the incarnation that it replaces, so that a late event of this kind changes
  nothing.
* A grant is durable as soon as its event is, so it is answered while that event is applied. Its epoch is
  above every epoch ever granted: the log begins with one, and each grant raises it.
* A name that is dead stays dead (the last DEAD_MAX names): late events of that process change nothing.
* The feature level only rises, and only to what every process of the table supports (feature_level.py).

A new process starts from a snapshot and applies the events since the state of the snapshot; it has retained
the earlier records for this. Without any snapshot the log restarts with `Begun`. A `Begun` counts only if its
writer had read the newest snapshot or `Begun`. If it counts, the table is empty in every process.

The functions to_snapshot and from_snapshot convert the complete table into one event and back. They retain
the order of members (which decides who is the oldest), of a group's topics and of queues. The sharing that
applies is computed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from backend.kafka.coordination.events import (
    Begun,
    Died,
    Event,
    Id,
    Joined,
    Left,
    LevelRaised,
    Recalled,
    Released,
    Retired,
    Snapshot,
    SnapshotCell,
    SnapshotGroup,
    SnapshotMember,
    SnapshotRow,
    TopicChanged,
)
from backend.kafka.coordination.feature_level import UNSTATED
from backend.ownership.group import (
    AssignedGroup,
    AssignmentRow,
    Decision,
    Grant,
    GroupMember,
    QueueAssignment,
)
from backend.ownership.table import REVOKE_S, AssignmentTable
from backend.records import QueueRef
from ddmq_common.errors import BoundReachedError

DEAD_MAX = 1_000
ROWS_MAX = 10_000
TopicQueues = tuple[int, int]  # incarnation, number of queues


class TableState:
    """The assignment table together with the topics and processes that it depends on.

    Only events change it.
    """

    def __init__(self, epoch: int, rows_max: int = ROWS_MAX, level: int = UNSTATED) -> None:
        self.epoch = epoch  # the highest that was granted
        self.level = level  # the feature level
        self.levels: dict[str, int] = {}  # process → the level that it supports, if that was read here
        self.members: dict[Id, GroupMember] = {}
        self.ids: dict[GroupMember, Id] = {}
        self.processes: dict[str, int] = {}  # with how many memberships, the oldest first
        self.lanes: dict[str, int] = {}  # process → its transactional ids, if it has stated them
        self.retired: dict[str, set[int]] = {}  # process → lanes that it never uses again
        self.dead: dict[str, None] = {}
        self.topics: dict[str, TopicQueues] = {}
        self.joined: dict[str, int] = {}  # topic → memberships
        self.table = AssignmentTable(self.queues_of, lambda group, queue: self.epoch, rows_max)

    def queues_of(self, topic: str) -> list[QueueRef]:
        """Return the queues of a topic."""
        incarnation, count = self.topics.get(topic, (0, 0))
        return [QueueRef(topic, incarnation, number) for number in range(count)]

    def apply(self, event: Event, now: float) -> list[Decision]:
        """Apply an event and return the decisions other than grants, which are durable at once."""
        return self._apply_grants(self._apply_event(event, now), now)

    def _apply_event(self, event: Event, now: float) -> Iterable[Decision]:
        if isinstance(event, Joined):
            return self._add_membership(event, now)
        if isinstance(event, Left):
            return self._remove_memberships([(event.process, number) for number in event.numbers], now)
        if isinstance(event, Released):
            member = self.members.get((event.process, event.number))
            if member is None:
                return []
            queues = [QueueRef(member.topic, incarnation, number) for incarnation, number in event.queues]
            return self.table.release(member, queues, now)
        if isinstance(event, Recalled):
            return self.table.recall(event.group, event.topic, now + REVOKE_S)
        if isinstance(event, Died):
            return self._remove_process(event.process, now)
        if isinstance(event, Retired):
            if event.process in self.processes:
                self.retired.setdefault(event.process, set()).update(event.lanes)
            return []
        if isinstance(event, TopicChanged):
            return self._change_topic(event, now)
        if isinstance(event, LevelRaised):
            self._raise_level(event)
        return []

    def _raise_level(self, event: LevelRaised) -> None:
        if event.level > self.level and self.processes.keys() <= set(event.processes):
            self.level = event.level
            self.levels.update(dict.fromkeys(self.processes, event.level))

    def _apply_grants(self, decisions: Iterable[Decision], now: float) -> list[Decision]:
        other_decisions: list[Decision] = []
        waiting = deque(decisions)
        while waiting:
            decision = waiting.popleft()
            if isinstance(decision, Grant):
                self.epoch = max(self.epoch, decision.epoch)
                waiting += self.table.granted(decision, now)
            else:
                other_decisions.append(decision)
        return other_decisions

    def _add_membership(self, event: Joined, now: float) -> list[Decision]:
        name = (event.process, event.number)
        if event.process in self.dead or name in self.members or 0 < event.level < self.level:
            return []
        member = GroupMember(
            event.group,
            event.topic,
            f"{event.process}/{event.member}",
            event.sharing,
            None if event.queues is None else frozenset(event.queues),
            event.address,
        )
        queues = self.topics.get(event.topic)
        if queues is None and event.queue_count > 0:
            self.topics[event.topic] = event.incarnation, event.queue_count
        try:
            decisions = self.table.join(member, now)
        except BoundReachedError:
            if event.topic not in self.joined:
                self.topics.pop(event.topic, None)
            return []
        self.add_member(name, member)
        if event.lanes > 0:
            self.lanes[event.process] = max(event.lanes, self.lanes.get(event.process, 0))
        if event.level > 0:
            self.levels[event.process] = max(event.level, self.levels.get(event.process, 0))
        return decisions

    def add_member(self, name: Id, member: GroupMember) -> None:
        """Add a member that is in the assignment table."""
        self.members[name], self.ids[member] = member, name
        self.processes[name[0]] = self.processes.get(name[0], 0) + 1
        self.joined[member.topic] = self.joined.get(member.topic, 0) + 1

    def _remove_memberships(self, names: Iterable[Id], now: float) -> list[Decision]:
        decisions: list[Decision] = []
        for name in names:
            member = self.members.pop(name, None)
            if member is not None:
                del self.ids[member]
                decisions += self.table.leave(member, now)
                if _decrement_count(self.processes, name[0]):
                    self.lanes.pop(name[0], None)
                    self.levels.pop(name[0], None)
                    self.retired.pop(name[0], None)
                if _decrement_count(self.joined, member.topic):
                    self.topics.pop(member.topic, None)
        return decisions

    def _remove_process(self, process: str, now: float) -> list[Decision]:
        self.dead.pop(process, None)
        self.dead[process] = None
        while len(self.dead) > DEAD_MAX:
            del self.dead[next(iter(self.dead))]
        return self._remove_memberships(sorted(name for name in self.members if name[0] == process), now)

    def _change_topic(self, event: TopicChanged, now: float) -> list[Decision]:
        was, count = self.topics.get(event.topic, (0, 0))
        grown = event.incarnation == was and event.queue_count > count
        if event.was != was or event.topic not in self.joined or (event.incarnation == was and not grown):
            return []
        if event.queue_count > 0:
            self.topics[event.topic] = event.incarnation, event.queue_count
        else:
            self.topics.pop(event.topic, None)
        return self.table.topic_changed(event.topic, now)


def find_address(table: TableState, process: str) -> str:
    """Return the address that a process stated, for people; its name if it stated none."""
    for (name, _), member in table.members.items():
        if name == process and member.name != member.process:
            return member.name.partition("/")[0]
    return process


def _decrement_count(counts: dict[str, int], key: str) -> bool:
    """Decrement the count of `key`; return whether that was the last."""
    counts[key] -= 1
    if counts[key] == 0:
        del counts[key]
        return True
    return False


def to_snapshot(at: int, state: TableState) -> Snapshot:
    """Make a snapshot of the table as the events before offset `at` made it."""
    return Snapshot(
        at,
        state.epoch,
        state.table.serial,
        list(state.processes),
        list(state.dead),
        [(name, *queues) for name, queues in state.topics.items()],
        [_snapshot_group(state, name, group) for name, group in state.table.groups.items()],
        list(state.lanes.items()),
        [(process, sorted(lanes)) for process, lanes in state.retired.items()],
        state.level,
        list(state.levels.items()),
    )


def _snapshot_group(state: TableState, name: str, group: AssignedGroup) -> SnapshotGroup:
    rows = [_snapshot_row(state, row) for row in group.rows.values()]
    return SnapshotGroup(name, group.holder or "", group.withheld, rows)


def _snapshot_row(state: TableState, row: AssignmentRow) -> SnapshotRow:
    positions = {member: position for position, member in enumerate(row.members)}
    members = [_snapshot_member(state, member) for member in row.members]
    cells = [
        SnapshotCell(
            queue.incarnation,
            queue.queue_id,
            cell.state,
            -1 if cell.member is None else positions[cell.member],
            cell.epoch,
            cell.deadline,
            positions[row.aim[queue]] if queue in row.aim else -1,
        )
        for queue, cell in row.cells.items()
    ]
    return SnapshotRow(row.topic, row.epoch, members, cells)


def _snapshot_member(state: TableState, member: GroupMember) -> SnapshotMember:
    process, number = state.ids[member]
    queues = None if member.queues is None else sorted(member.queues)
    member_name = member.process[len(process) + 1 :]
    address = "" if member.name == member.process else member.name
    return SnapshotMember(process, number, member.sharing, queues, address, member_name, member.serial)


def from_snapshot(event: Snapshot) -> TableState:
    """Restore the coordination table from a snapshot event."""
    state = TableState(event.epoch, level=event.level)
    state.processes = dict.fromkeys(event.processes, 0)
    state.dead = dict.fromkeys(event.dead)
    state.lanes = dict(event.lanes)
    state.levels = dict(event.levels)
    state.retired = {process: set(lanes) for process, lanes in event.retired}
    state.topics = {name: (incarnation, count) for name, incarnation, count in event.topics}
    state.table.put({group.group: _restore_group(state, group) for group in event.groups}, event.serial)
    return state


def _restore_group(state: TableState, stored: SnapshotGroup) -> AssignedGroup:
    group = AssignedGroup()
    group.holder, group.withheld = stored.holder or None, stored.withheld
    for row in stored.rows:
        group.rows[row.topic] = _restore_row(state, stored.group, row)
    return group


def _restore_row(state: TableState, group: str, stored: SnapshotRow) -> AssignmentRow:
    row = AssignmentRow(group, stored.topic)
    row.epoch = stored.epoch
    for stored_member in stored.members:
        queues = None if stored_member.queues is None else frozenset(stored_member.queues)
        process = f"{stored_member.process}/{stored_member.member}"
        member = GroupMember(
            group, stored.topic, process, stored_member.sharing, queues, stored_member.address
        )
        member.serial, member.joined = stored_member.serial, True
        row.enter(member)
        state.add_member((stored_member.process, stored_member.number), member)
    for stored_cell in stored.cells:
        queue = QueueRef(stored.topic, stored_cell.incarnation, stored_cell.queue_id)
        row.cells[queue] = _restore_cell(row, stored_cell)
        if stored_cell.aim >= 0:
            row.aim[queue] = row.members[stored_cell.aim]
    return row


def _restore_cell(row: AssignmentRow, stored: SnapshotCell) -> QueueAssignment:
    cell = QueueAssignment()
    cell.state, cell.epoch, cell.deadline = stored.state, stored.epoch, stored.deadline
    cell.member = None if stored.member < 0 else row.members[stored.member]
    return cell


class PlacedEvent(NamedTuple):
    """An event with its offset in the log. `stamp_ms`: the broker's time stamp."""

    offset: int
    stamp_ms: int
    event: Event


class CoordinationLog:
    """Applies the events of the log in order and returns the decisions of the table.

    `first`: the offset from which the log was read. `begin_count`: how often the table has restarted; a
    restart ends all assignments, without a decision for each.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self.state: TableState | None = None
        self.begin_count = 0
        self.next = first  # offset of the next record
        self.base_offset = -1  # offset of the newest snapshot, or beginning, that counted
        self._early_events: list[PlacedEvent] = []  # events to apply after a snapshot

    def apply(self, placed: PlacedEvent) -> list[Decision]:
        """Apply one event and return the decisions."""
        offset, stamp_ms, event = placed
        self.next = offset + 1
        if isinstance(event, Snapshot):
            return self._apply_snapshot(offset, event)
        if isinstance(event, Begun):
            self._apply_begun(offset, event)
            return []
        if self.state is None:
            self._early_events.append(placed)
            return []
        return self.state.apply(event, stamp_ms / 1000)

    def _apply_snapshot(self, offset: int, event: Snapshot) -> list[Decision]:
        decisions: list[Decision] = []
        if self.state is None:
            if event.at < self._first:
                return []
            self.state = from_snapshot(event)
            for placed in self._early_events:
                if placed.offset >= event.at:
                    decisions += self.state.apply(placed.event, placed.stamp_ms / 1000)
            self._early_events.clear()
        self.base_offset = offset
        return decisions

    def _apply_begun(self, offset: int, event: Begun) -> None:
        unknown = self.state is None and event.read_until < self._first
        if unknown or (self.state is not None and self.base_offset >= event.read_until):
            return
        self.state = TableState(event.epoch, level=event.level)
        self.begin_count += 1
        self.base_offset = offset
        self._early_events.clear()

    def make_snapshot(self) -> Snapshot | None:
        """Return a snapshot of the present table; None while it is unknown."""
        return None if self.state is None else to_snapshot(self.next, self.state)
