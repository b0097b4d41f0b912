"""MemberWatch: what a process does about the others: it declares the silent dead, and writes snapshots.

Silent is who has written nothing for `session_ms`, on this process's monotonic clock; with a beat of its own
seen not longer ago, and all events followed up to now once more before anything is done. The oldest of those
that are alive acts first, each further one RANK_S later, last a process that takes part in nothing itself, as
a proxy that only sends: all others may be dead. It first takes over the transactional name of the
silent one, and that of the namespace, which ends what was under way under them and fences them, and only then
writes that it is dead. The same is done about a process that does not let queues go: GRACE_S after it should
have. For its own members the process releases what they do not.
"""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable

from backend.assignment.group import AssignmentState, GroupMember
from backend.assignment.table import REVOKE_S
from backend.completion import Completion
from backend.kafka.commit.producers import fence, once_name, own_name
from backend.kafka.coordination.events import Died, Event, Snapshot
from backend.kafka.coordination.replica import TableState
from backend.kafka.following.follow import KafkaState
from backend.kafka.membership import KafkaMemberships
from backend.kafka.options import KafkaOptions
from backend.records import QueueRef

log = logging.getLogger(__name__)
RANK_S = 1.0
GRACE_S = 1.0
SNAPSHOT_S = 60.0
SNAPSHOT_EVENTS = 5_000
Asked = tuple[str, QueueRef, int]  # group, queue, epoch


class MemberWatch:
    """Belongs to the memberships, which drive it. `call`: from any thread, to the hub."""

    def __init__(
        self,
        options: KafkaOptions,
        state: KafkaState,
        members: KafkaMemberships,
        call: Callable[..., object],
        now: Callable[[], float],
    ) -> None:
        self._options = options
        self._session_s = options.session_ms / 1000
        self._state = state
        self._members = members
        self._call = call
        self._now = now
        self._name = ""
        self._heard: dict[str, float] = {}
        self._asked: dict[Asked, float] = {}
        self._fencing: set[str] = set()
        self._snapshot_at = now()
        self._events = 0
        members.ticked, members.heard = self._tick, self._hear

    def _hear(self, event: Event, now: float) -> None:
        self._events += 1
        process = getattr(event, "process", None)
        if isinstance(event, Snapshot):
            self._snapshot_at, self._events = now, 0
        elif isinstance(event, Died):
            self._heard.pop(event.process, None)
            self._fencing.discard(event.process)
        elif process is not None:
            self._heard[process] = now

    def _tick(self, now: float) -> None:
        table = self._members.table
        if table is None:
            return
        if self._name != self._members.name:
            self._name = self._members.name
            self._heard.clear()  # what was heard before tells nothing: this process may have been stopped
            self._asked.clear()
        self._look_for_silent(table, now)
        self._look_for_late(table, now)
        if next(iter(table.processes), "") == self._name:
            old = now - self._snapshot_at > SNAPSHOT_S and self._events > 0
            if old or self._events > SNAPSHOT_EVENTS:
                self._snapshot_at, self._events = now, 0
                self._members.snapshot()

    # --- the silent

    def _look_for_silent(self, table: TableState, now: float) -> None:
        silent = []
        for process in table.processes:
            heard = self._heard.setdefault(process, now)
            if process != self._name and now - heard > self._session_s:
                silent.append((process, now - heard - self._session_s))
        self._heard = {process: at for process, at in self._heard.items() if process in table.processes}
        for process, since in silent:
            if since >= self._rank(table, {name for name, _ in silent}) * RANK_S:
                self._end(process, f"silent for {since + self._session_s:.1f} s", self._is_silent)

    def _is_silent(self, process: str) -> bool:
        return self._now() - self._heard.get(process, self._now()) > self._session_s

    def _rank(self, table: TableState, without: set[str]) -> int:
        """This process's turn: the members by age, then who is none, such as a proxy that only sends."""
        able = [name for name in table.processes if name not in without]
        return able.index(self._name) if self._name in able else len(able) + 1

    # --- those that do not let go

    def _look_for_late(self, table: TableState, now: float) -> None:
        if not table.table.waiting:
            self._asked.clear()
            return
        late: dict[GroupMember, list[QueueRef]] = {}
        asked: dict[Asked, float] = {}
        for name, group in table.table.groups.items():
            for line in group.lines.values():
                for queue, cell in line.cells.items():
                    if cell.state is AssignmentState.LEAVING and cell.member is not None:
                        key = (name, queue, cell.epoch)
                        since = asked[key] = self._asked.get(key, now)
                        mine = table.ids[cell.member][0] == self._name
                        if now - since > REVOKE_S + (0 if mine else GRACE_S):
                            late.setdefault(cell.member, []).append(queue)
        self._asked = asked
        for member, queues in late.items():
            process = table.ids[member][0]
            if process == self._name:
                self._members.overdue(member, queues)
            elif self._rank(table, {process}) == 0:
                self._end(process, f"it does not let go of {member.topic}", lambda _: True)

    # --- declaring dead

    def _end(self, process: str, why: str, still: Callable[[str], bool]) -> None:
        if process in self._fencing:
            return
        self._fencing.add(process)

        def followed(barrier: Completion[None]) -> None:
            table = self._members.table
            there = table is not None and process in table.processes
            if barrier.error is not None or not there or not still(process) or not self._members.alive():
                self._fencing.discard(process)
                return
            log.warning("process %s is declared dead: %s", process, why)
            _thread.start_new_thread(self._fence, (process, self._name))

        self._state.events_caught_up().then(followed)

    def _fence(self, process: str, name: str) -> None:
        """In a native thread."""
        names = [own_name(self._options, process), once_name(self._options)]
        try:
            error = fence(self._options.client(), names)
        except Exception as failed:
            error = repr(failed)
        self._call(self._fenced, process, name, error)

    def _fenced(self, process: str, name: str, error: str | None) -> None:
        if error is not None:
            log.warning("process %s could not be fenced: %s; tried again", process, error)
        elif name == self._members.name:
            self._members.write(Died(process, name))
            return
        self._fencing.discard(process)
