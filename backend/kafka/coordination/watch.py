"""MemberWatch: watches the other processes and this one, drives the memberships, and writes snapshots.

A process is silent when no event of it was followed for `session_s`, on this process's monotonic clock. That
alone proves nothing: this process may have been stopped, or Kafka may not answer any process. So a silent
process is ended only after a heartbeat that this process sent at its slot, or later, has come back:
everything that the other process wrote until then precedes that heartbeat in the log, and would have been
followed. A living process is not declared dead because others are slow, or because the log was stalled for
all.

| a process is silent, and this one is             | its slot, after the last event of the other          |
|--------------------------------------------------|------------------------------------------------------|
| the oldest of those that are not                 | `session_s`                                          |
| the n-th after that one                          | n × SLOT_S later, if those before do not succeed     |
| none of them (it has no membership itself)       | one slot more than the last of them                  |

| at its slot                                      | then                                                 |
|--------------------------------------------------|------------------------------------------------------|
| no heartbeat that was sent since has come back   | one is sent, unless one is in flight                 |
| a heartbeat that was sent since has come back    | the process is ended, once; retried after a failure  |
| an event of the other is followed                | it is not silent any more                            |
| its death is followed                            | it is forgotten                                      |

The process that ends another first takes over all its transactional ids, and that of the namespace. This ends
transactions in flight under them and fences them. Only then it writes that the other is dead. The number of
ids is in the event with which the other has joined; if a process did not state it, as many as this version
uses are taken over. Ids that the other has retired are left out. The oldest process writes the snapshots.

A process that sends heartbeats but does not release queues is not ended by others: only that process knows
what delays its commits. After REVOKE_S it releases the queues for its members. A release is written behind
the commits that were called before it. If it has not been followed RELEASE_S after the queues were revoked,
the process gives up its name and all its queues: then it has either ended under the old name, or it is
silent.
"""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from backend.kafka.clients.transactions import LANES_MAX, fence_names, lane_id, namespace_transactional_id
from backend.kafka.coordination.events import Died, Event, Snapshot
from backend.kafka.coordination.feature_level import UNSTATED
from backend.kafka.coordination.memberships import TICKS, KafkaMemberships
from backend.kafka.coordination.shared_addresses import SharedAddresses
from backend.kafka.coordination.table import TableState, find_address
from backend.kafka.options import KafkaOptions
from backend.ownership.group import AssignmentState, GroupMember
from backend.ownership.table import REVOKE_S
from backend.records import QueueRef
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
RELEASE_S = 15.0  # more than a transaction may take
SNAPSHOT_S = 60.0
SNAPSHOT_EVENTS = 5_000
SLOT_S = 2.0  # a process that is fenced by one does not have to be fenced by the next one, too
RevokedQueue = tuple[str, QueueRef, int]  # group, queue, epoch


class MemberWatch:
    """Periodically ticks the memberships and checks other processes for silence.

    `call` runs a function on the hub, from any thread; `raise_level(now)` is called with each tick.
    """

    def __init__(
        self,
        options: KafkaOptions,
        members: KafkaMemberships,
        call: Callable[..., object],
        now: Callable[[], float],
        raise_level: Callable[[float], object] = lambda now: None,
    ) -> None:
        self._options = options
        self._members = members
        self._call = call
        self._now = now
        self._raise_level = raise_level
        self._name = ""
        self._silence = SilenceDetector(options.session_ms / 1000)
        self._revoked_at: dict[RevokedQueue, float] = {}  # of this process, and not released
        self._overdue: set[RevokedQueue] = set()  # those that were released for their member
        self._ending_earlier: set[str] = set()  # processes that do not support the feature level
        self._snapshot_at = now()
        self._event_count = 0
        self.shared_addresses = SharedAddresses()
        self._timer = HubTimer(ref=False)
        self._timer.every(options.heartbeat_ms / 1000 / TICKS, self.tick)

    def on_event(self, event: Event) -> None:
        """Note that the process that wrote an applied event was alive."""
        self._event_count += 1
        process = getattr(event, "process", None)
        if isinstance(event, Snapshot):
            self._snapshot_at, self._event_count = self._now(), 0
        elif isinstance(event, Died):
            self._silence.on_died(event.process)
        elif process is not None:
            self._silence.on_event(process, self._now())

    def tick(self) -> None:
        """Tick the memberships, then check the other processes and this one; called by its own timer."""
        now = self._now()
        if not self._members.tick(now):
            return
        table = self._members.table
        assert table is not None
        if self._name != self._members.name:
            self._name = self._members.name
            self._silence.clear()
            self._revoked_at.clear()
            self._overdue.clear()
            self._ending_earlier.clear()
        self._check_others(table, now)
        self._check_own(table, now)
        self._check_levels(table)
        self._raise_level(now)
        self.shared_addresses.check(table, self._name, now)
        if next(iter(table.processes), "") == self._name:
            is_old = now - self._snapshot_at > SNAPSHOT_S and self._event_count > 0
            if is_old or self._event_count > SNAPSHOT_EVENTS:
                self._snapshot_at, self._event_count = now, 0
                self._members.write_snapshot()

    def close(self) -> None:
        """Stop the timer of the checks."""
        self._timer.stop()

    # --- the others

    def _check_others(self, table: TableState, now: float) -> None:
        sent_at, returned_at = self._members.heartbeat_times
        silent = self._silence.check(self._name, table.processes, now, sent_at, returned_at)
        if silent.needs_heartbeat:
            self._members.send_heartbeat(now)
        for process, silent_s in silent.to_end:
            log.warning("process %s is fenced: silent for %.1f s", process, silent_s)
            self._start_fencing(table, process)

    def _check_levels(self, table: TableState) -> None:
        """End processes that know nothing of levels, if they join after the level has risen.

        They were suspended while it rose; from the start such a process is refused (opening.py).
        """
        supporting = [process for process in table.processes if table.levels.get(process, 0) >= table.level]
        if table.level == UNSTATED or next(iter(supporting), self._name) != self._name:
            return
        for process in table.processes.keys() - supporting - self._ending_earlier:
            log.error(
                "process %s is of a version that does not support feature level %d; it is ended: stop it",
                find_address(table, process),
                table.level,
            )
            self._ending_earlier.add(process)
            self._start_fencing(table, process)
        self._ending_earlier &= table.processes.keys()

    def _start_fencing(self, table: TableState, process: str) -> None:
        retired = table.retired.get(process, ())
        lanes = [lane for lane in range(table.lanes.get(process, LANES_MAX)) if lane not in retired]
        _thread.start_new_thread(self._fence_process, (process, lanes, self._name))

    def _fence_process(self, process: str, lanes: Sequence[int], name: str) -> None:
        """Take over the transactional ids of a silent process; runs in a native thread."""
        names = [lane_id(self._options, process, lane) for lane in lanes]
        names.append(namespace_transactional_id(self._options))
        try:
            error = fence_names(self._options.client_settings(), names)
        except Exception as exception:
            error = repr(exception)
        self._call(self._on_fenced, process, name, error)

    def _on_fenced(self, process: str, name: str, error: str | None) -> None:
        if name != self._members.name:
            return
        if error is None:
            log.warning("process %s is declared dead", process)
            self._members.write_event(Died(process, name))
        else:
            log.warning("process %s could not be fenced, retrying: %s", process, error)
            self._silence.on_end_failed(process)
            self._ending_earlier.discard(process)

    # --- this process

    def _check_own(self, table: TableState, now: float) -> None:
        revoked_at: dict[RevokedQueue, float] = {}
        overdue: dict[GroupMember, list[QueueRef]] = {}
        for key, member in _find_revoked(table, self._name):
            since = revoked_at[key] = self._revoked_at.get(key, now)
            if now - since > RELEASE_S:
                self._members.give_up(f"{key[1]} of group {key[0]} was not let go in {RELEASE_S:g} s")
                return
            if now - since > REVOKE_S and key not in self._overdue:
                self._overdue.add(key)
                overdue.setdefault(member, []).append(key[1])
        self._revoked_at = revoked_at
        self._overdue &= revoked_at.keys()
        for member, queues in overdue.items():
            self._members.release_overdue(member, queues)


def _find_revoked(table: TableState, process: str) -> list[tuple[RevokedQueue, GroupMember]]:
    """Return the queues that were revoked from members of a process and are not released yet."""
    if not table.table.waiting:
        return []
    return [
        ((name, queue, cell.epoch), cell.member)
        for name, group in table.table.groups.items()
        for row in group.rows.values()
        for queue, cell in row.cells.items()
        if cell.state is AssignmentState.LEAVING
        and cell.member is not None
        and table.ids[cell.member][0] == process
    ]


class SilentProcesses(NamedTuple):
    """The result of a check. `to_end`: the silent processes to end, with the seconds of their silence."""

    needs_heartbeat: bool
    to_end: list[tuple[str, float]]


class SilenceDetector:
    """Records when each process wrote its last event, and decides which ones this process must end. Pure."""

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._last_event_at: dict[str, float] = {}
        self._ending: set[str] = set()

    def on_event(self, process: str, now: float) -> None:
        """Note that an event of a process was followed at `now`."""
        self._last_event_at[process] = now

    def on_died(self, process: str) -> None:
        """Remove a process that was declared dead."""
        self._last_event_at.pop(process, None)
        self._ending.discard(process)

    def clear(self) -> None:
        """Forget all times: this process may have been stopped, so they prove nothing."""
        self._last_event_at.clear()
        self._ending.clear()

    def on_end_failed(self, process: str) -> None:
        """Allow another attempt to end a process, after one failed."""
        self._ending.discard(process)

    def check(
        self, own: str, processes: Collection[str], now: float, sent_at: float, returned_at: float
    ) -> SilentProcesses:
        """Find the processes to end now, and whether a heartbeat must be sent first.

        `processes`: all that have joined, the oldest first. `sent_at`: when this process sent its newest
        heartbeat; `returned_at`: when it sent the newest one that was read back.
        """
        self._last_event_at = {process: self._last_event_at.get(process, now) for process in processes}
        expiries = {
            process: last_event_at + self._session_s
            for process, last_event_at in self._last_event_at.items()
            if process != own
        }
        silent = {process: expiry for process, expiry in expiries.items() if now > expiry}
        slot_start_s = _slot_of(own, (process for process in processes if process not in silent)) * SLOT_S
        slots = {
            process: expiry + slot_start_s
            for process, expiry in silent.items()
            if process not in self._ending
        }
        due = [process for process, slot_at in slots.items() if now >= slot_at]
        to_end = [
            (process, now - self._last_event_at[process]) for process in due if returned_at >= slots[process]
        ]
        self._ending.update(process for process, _ in to_end)
        return SilentProcesses(any(sent_at < slots[process] for process in due), to_end)


def _slot_of(own: str, living: Iterable[str]) -> int:
    processes = list(living)
    return processes.index(own) if own in processes else len(processes) + 1
