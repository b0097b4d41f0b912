"""MemberWatch: what a process does about the others and about itself, and the snapshots that it writes.

When a process is silent, and whose turn it is to end it, stands in coordination/silence.py. Who ends it first
takes over its transactional name, and that of the namespace, which ends what was under way under them and
fences them, and only then writes that it is dead. The oldest process writes the snapshots.

Nobody else judges a process that is heard and does not let queues go: what holds them up, its commits, is
known to itself alone. After REVOKE_S it lets them go for its members. A release goes out behind the commits
that were called before it; if it has not come LET_GO_S after the queues were asked back, the process gives
its name up, and with it everything: either it is over under the old name then, or it is silent.
"""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable

from backend.kafka.commit.fencing import fence, once_name, own_name
from backend.kafka.coordination.events import Died, Event, Snapshot
from backend.kafka.coordination.replica import TableState
from backend.kafka.coordination.silence import Silence
from backend.kafka.membership import KafkaMemberships
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
