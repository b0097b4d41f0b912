"""MemberWatch: what a process does about the others and about itself, and the snapshots that it writes.

When a process is silent, and whose turn it is to end it, stands in coordination/silence.py. Who ends it first
takes over its transactional name, and that of the namespace, which ends what was under way under them and
fences them, and only then writes that it is dead. The oldest process writes the snapshots.

Nobody else judges a process that is heard and does not let queues go: what holds them up, its commits, is
known to itself alone. After REVOKE_S it lets them go for its members. A release goes out behind the commits
that were called before it; if it has not come LET_GO_S after the queues were asked back, the process gives
its name up, and with it everything: either it is over under the old name then, or it is silent.

Which processes are silent, and when it is this one's turn to end one of them. Pure.

Another process is silent when nothing of it was followed for `session_s`, on this process's monotonic clock.
That alone says nothing: this process may have been stopped, or Kafka may answer nobody. So it is ended only
when a beat which this process sent at its turn, or later, has come back: whatever the other wrote until
then stands before that beat in the log, and would have been followed. A living process is not taken for dead
because others are slow, or because the log stood still for all.

| a process is silent, and this one is             | its turn, after the other was heard last             |
|--------------------------------------------------|------------------------------------------------------|
| the oldest of those that are not                 | `session_s`                                          |
| the n-th after that one                          | n × TURN_S later, should those before not manage     |
| none of them (it takes part in nothing itself)   | one turn more than the last of them                  |

| at its turn                                      | then                                                 |
|--------------------------------------------------|------------------------------------------------------|
| no beat that was sent since has come back        | `ask`: one is to be sent, unless one is under way    |
| one has                                          | `end`, once; again if that has failed                |
| something of the other is followed               | it is not silent any more                            |
| its death is followed                            | it is forgotten                                      |
"""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from backend.kafka.clients.producers import fence, once_name, own_name
from backend.kafka.coordination.events import Died, Event, Snapshot
from backend.kafka.coordination.memberships import KafkaMemberships
from backend.kafka.coordination.table import TableState
from backend.kafka.options import KafkaOptions
from backend.ownership.group import AssignmentState, GroupMember
from backend.ownership.table import REVOKE_S
from backend.records import QueueRef

log = logging.getLogger(__name__)
LET_GO_S = 15.0  # more than a transaction may take
SNAPSHOT_S = 60.0
SNAPSHOT_EVENTS = 5_000
Asked = tuple[str, QueueRef, int]  # group, queue, epoch


class MemberWatch:
    """Belongs to the memberships, which drive it. `call`: from any thread, to the hub."""

    def __init__(
        self,
        options: KafkaOptions,
        members: KafkaMemberships,
        call: Callable[..., object],
        now: Callable[[], float],
    ) -> None:
        self._options = options
        self._members = members
        self._call = call
        self._name = ""
        self._silence = Silence(options.session_ms / 1000)
        self._asked: dict[Asked, float] = {}  # what is asked back from this process, since when
        self._overdue: set[Asked] = set()  # what was let go for its member
        self._snapshot_at = now()
        self._events = 0
        members.ticked, members.heard = self._tick, self._hear

    def _hear(self, event: Event, now: float) -> None:
        self._events += 1
        process = getattr(event, "process", None)
        if isinstance(event, Snapshot):
            self._snapshot_at, self._events = now, 0
        elif isinstance(event, Died):
            self._silence.died(event.process)
        elif process is not None:
            self._silence.heard(process, now)

    def _tick(self, now: float) -> None:
        table = self._members.table
        if table is None:
            return
        if self._name != self._members.name:
            self._name = self._members.name
            self._silence.forget()
            self._asked.clear()
            self._overdue.clear()
        self._look_at_others(table, now)
        self._look_at_own(table, now)
        if next(iter(table.processes), "") == self._name:
            old = now - self._snapshot_at > SNAPSHOT_S and self._events > 0
            if old or self._events > SNAPSHOT_EVENTS:
                self._snapshot_at, self._events = now, 0
                self._members.snapshot()

    # --- the others

    def _look_at_others(self, table: TableState, now: float) -> None:
        asked, answered = self._members.beats
        found = self._silence.look(self._name, table.processes, now, asked, answered)
        if found.ask:
            self._members.beat(now)
        for process, silent_s in found.end:
            log.warning("process %s is fenced: silent for %.1f s", process, silent_s)
            _thread.start_new_thread(self._fence, (process, self._name))

    def _fence(self, process: str, name: str) -> None:
        """In a native thread."""
        names = [own_name(self._options, process), once_name(self._options)]
        try:
            error = fence(self._options.client(), names)
        except Exception as failed:
            error = repr(failed)
        self._call(self._fenced, process, name, error)

    def _fenced(self, process: str, name: str, error: str | None) -> None:
        if name != self._members.name:
            return
        if error is None:
            log.warning("process %s is declared dead", process)
            self._members.write(Died(process, name))
        else:
            log.warning("process %s could not be fenced: %s; tried again", process, error)
            self._silence.failed(process)

    # --- this process

    def _look_at_own(self, table: TableState, now: float) -> None:
        asked: dict[Asked, float] = {}
        late: dict[GroupMember, list[QueueRef]] = {}
        for key, member in _leaving(table, self._name):
            since = asked[key] = self._asked.get(key, now)
            if now - since > LET_GO_S:
                self._members.give_up(f"{key[1]} of group {key[0]} was not let go in {LET_GO_S:g} s")
                return
            if now - since > REVOKE_S and key not in self._overdue:
                self._overdue.add(key)
                late.setdefault(member, []).append(key[1])
        self._asked = asked
        self._overdue &= asked.keys()
        for member, queues in late.items():
            self._members.overdue(member, queues)


def _leaving(table: TableState, process: str) -> list[tuple[Asked, GroupMember]]:
    """What is asked back from members of a process."""
    if not table.table.waiting:
        return []
    return [
        ((name, queue, cell.epoch), cell.member)
        for name, group in table.table.groups.items()
        for line in group.lines.values()
        for queue, cell in line.cells.items()
        if cell.state is AssignmentState.LEAVING
        and cell.member is not None
        and table.ids[cell.member][0] == process
    ]


TURN_S = 2.0  # a process that is fenced by one does not have to be fenced by the next one, too


class SilentProcesses(NamedTuple):
    """What is to be done now. `end`: processes, with how long they were silent."""

    ask: bool
    end: list[tuple[str, float]]


class Silence:
    """What one process has heard of the others."""

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._heard: dict[str, float] = {}
        self._ending: set[str] = set()

    def heard(self, process: str, now: float) -> None:
        """Something of it was followed."""
        self._heard[process] = now

    def died(self, process: str) -> None:
        """Its death was followed."""
        self._heard.pop(process, None)
        self._ending.discard(process)

    def forget(self) -> None:
        """What was heard before tells nothing any more: this process may have been stopped."""
        self._heard.clear()
        self._ending.clear()

    def failed(self, process: str) -> None:
        """It could not be ended."""
        self._ending.discard(process)

    def look(
        self, own: str, processes: Collection[str], now: float, asked: float, answered: float
    ) -> SilentProcesses:
        """`processes`: all that have joined, the oldest first. `asked`, `answered`: when the newest beat of
        this process was sent, and the newest one of those that have come back."""
        self._heard = {process: self._heard.get(process, now) for process in processes}
        ends = {process: heard + self._session_s for process, heard in self._heard.items() if process != own}
        silent = {process: end for process, end in ends.items() if now > end}
        turn_s = _place(own, (process for process in processes if process not in silent)) * TURN_S
        mine = {process: end + turn_s for process, end in silent.items() if process not in self._ending}
        due = [process for process, turn in mine.items() if now >= turn]
        found = [(process, now - self._heard[process]) for process in due if answered >= mine[process]]
        self._ending.update(process for process, _ in found)
        return SilentProcesses(any(asked < mine[process] for process in due), found)


def _place(own: str, able: Iterable[str]) -> int:
    line = list(able)
    return line.index(own) if own in line else len(line) + 1
