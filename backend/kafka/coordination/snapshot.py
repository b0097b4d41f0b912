"""The whole table as one event, and back. Pure.

Orders matter and are kept: of members (who is the oldest where serials are equal), of a group's topics, of
queues. What is derived from them (the sharing that holds) is derived again.
"""

from __future__ import annotations

from backend.kafka.coordination.events import (
    Snapshot,
    SnapshotCell,
    SnapshotGroup,
    SnapshotLine,
    SnapshotMember,
)
from backend.kafka.coordination.replica import TableState
from backend.ownership.group import AssignedGroup, GroupMember, QueueAssignment, TopicLine
from backend.records import QueueRef


def snapshot(at: int, state: TableState) -> Snapshot:
    """What the events before offset `at` made."""
    return Snapshot(
        at,
        state.epoch,
        state.table.serial,
        list(state.processes),
        list(state.gone),
        [(name, *queues) for name, queues in state.topics.items()],
        [_group(state, name, group) for name, group in state.table.groups.items()],
    )


def _group(state: TableState, name: str, group: AssignedGroup) -> SnapshotGroup:
    lines = [_line(state, line) for line in group.lines.values()]
    return SnapshotGroup(name, group.holder or "", group.withheld, lines)


def _line(state: TableState, line: TopicLine) -> SnapshotLine:
    places = {member: place for place, member in enumerate(line.members)}
    members = [_member(state, member) for member in line.members]
    cells = [
        SnapshotCell(
            queue.incarnation,
            queue.queue_id,
            cell.state,
            -1 if cell.member is None else places[cell.member],
            cell.epoch,
            cell.deadline,
            places[line.aim[queue]] if queue in line.aim else -1,
        )
        for queue, cell in line.cells.items()
    ]
    return SnapshotLine(line.topic, line.epoch, members, cells)


def _member(state: TableState, member: GroupMember) -> SnapshotMember:
    process, number = state.ids[member]
    queues = None if member.queues is None else sorted(member.queues)
    named = member.process[len(process) + 1 :]
    address = "" if member.name == member.process else member.name
    return SnapshotMember(process, number, member.sharing, queues, address, named, member.serial)


def restored(event: Snapshot) -> TableState:
    """The table that a snapshot tells of."""
    state = TableState(event.epoch)
    state.processes = dict.fromkeys(event.processes, 0)
    state.gone = dict.fromkeys(event.gone)
    state.topics = {name: (incarnation, count) for name, incarnation, count in event.topics}
    state.table.put({group.group: _restored_group(state, group) for group in event.groups}, event.serial)
    return state


def _restored_group(state: TableState, found: SnapshotGroup) -> AssignedGroup:
    group = AssignedGroup()
    group.holder, group.withheld = found.holder or None, found.withheld
    for line in found.lines:
        group.lines[line.topic] = _restored_line(state, found.group, line)
    return group


def _restored_line(state: TableState, group: str, found: SnapshotLine) -> TopicLine:
    line = TopicLine(group, found.topic)
    line.epoch = found.epoch
    for told in found.members:
        queues = None if told.queues is None else frozenset(told.queues)
        process = f"{told.process}/{told.member}"
        member = GroupMember(group, found.topic, process, told.sharing, queues, told.address)
        member.serial, member.joined = told.serial, True
        line.enter(member)
        state.enter((told.process, told.number), member)
    for told_cell in found.cells:
        queue = QueueRef(found.topic, told_cell.incarnation, told_cell.queue_id)
        line.cells[queue] = _restored_cell(line, told_cell)
        if told_cell.aim >= 0:
            line.aim[queue] = line.members[told_cell.aim]
    return line


def _restored_cell(line: TopicLine, told: SnapshotCell) -> QueueAssignment:
    cell = QueueAssignment()
    cell.state, cell.epoch, cell.deadline = told.state, told.epoch, told.deadline
    cell.member = None if told.member < 0 else line.members[told.member]
    return cell
