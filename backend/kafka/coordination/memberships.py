"""KafkaMemberships: requests of this process's members to the replicated table, and its decisions for them.

Requests of members become events of the coordination topic. Nothing is decided before they are followed,
where every process applies them alike. A release is written after the commits that were called before it.

All queues are lost when this process is declared dead, or has not followed a heartbeat of its own for
`session_ms` (monotonic, from when it was sent), because it may have been declared dead. It then takes another
name, and joins again. That is checked before a commit begins, before it is answered, and before any decision
is carried out, so a process that was stopped does nothing with the queues that it owned before.

assignments.py carries out the decisions; watch.py watches the other processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gevent

from backend.kafka.clients.producers import Producers
from backend.kafka.clients.transactions import LANES_MAX
from backend.kafka.commits.commit_queue import CommitQueue
from backend.kafka.coordination.assignments import KafkaMembership, MemberAssignments
from backend.kafka.coordination.events import (
    Begun,
    Died,
    Event,
    HeartbeatSent,
    Joined,
    Left,
    Released,
    Retired,
    TopicChanged,
    encode_event,
)
from backend.kafka.coordination.feature_level import recorded_level
from backend.kafka.coordination.table import ROWS_MAX, PlacedEvent, TableState
from backend.kafka.options import KafkaOptions
from backend.kafka.state.followed import KafkaState
from backend.kafka.topic_info import TopicRegistry
from backend.ownership.group import Decision, GroupMember
from backend.port import Join, MembershipListener
from backend.progress.group_progress import Key
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, DrainingError

log = logging.getLogger(__name__)
TICKS = 5  # between two heartbeats
EPOCH_GAP = 1_000_000  # above every recorded epoch, when the log restarts


class KafkaMemberships:
    """All memberships of this process.

    MemberWatch calls `tick`; the commit queue calls the `on_name…` methods.
    """

    def __init__(
        self,
        options: KafkaOptions,
        state: KafkaState,
        commits: CommitQueue,
        producers: Producers,
        clock: Clock,
        topics: TopicRegistry,
    ) -> None:
        self._session_s = options.session_ms / 1000
        self._level = options.supported_level
        self._heartbeat_s = options.heartbeat_ms / 1000
        self._state = state
        self._commits = commits
        self._producers = producers
        self._clock = clock
        self._topics = topics
        self._later: Any = gevent.get_hub().loop.run_callback
        self._memberships: dict[int, KafkaMembership] = {}
        self._by_member: dict[GroupMember, KafkaMembership] = {}
        self._by_topic: dict[str, set[KafkaMembership]] = {}
        self._assignments = MemberAssignments(state, commits, clock, self.on_topic_changed)
        self._last_number = self._heartbeat_count = 0
        self._next_heartbeat_at = 0.0
        self._sent_at: dict[int, float] = {}  # by heartbeat, of those that have not come back
        self._confirmed_at: float | None = None  # when the newest heartbeat was sent that has come back
        self._last_sent_at = self._last_returned_at = 0.0  # the same, also without a member
        self._name = self._former_name = ""
        self._begin_count = 0
        self._closed = False

    @property
    def name(self) -> str:
        """This process's name in the coordination topic; "" if it has none at present."""
        return self._name

    @property
    def heartbeat_times(self) -> tuple[float, float]:
        """The send times (monotonic s) of the newest heartbeat, and of the newest one that was read back."""
        return self._last_sent_at, self._last_returned_at

    @property
    def table(self) -> TableState | None:
        """The table of queue assignments as followed so far; None until it is known."""
        return self._state.coordination.state

    # --- calls

    def join(self, join: Join, listener: MembershipListener) -> KafkaMembership:
        """Join a group for a topic. Raises BoundReachedError when there are too many groups."""
        if self._closed:
            raise DrainingError("the Kafka engine was closed")
        pairs = {(other.join.group, other.join.topic) for other in self._memberships.values()}
        if len(self._memberships) >= ROWS_MAX and len(pairs | {(join.group, join.topic)}) > ROWS_MAX:
            raise BoundReachedError(f"{ROWS_MAX} groups have joined topics; that is the bound")
        self._last_number += 1
        membership = KafkaMembership(self._last_number, join, listener, self._release, self._leave)
        self._memberships[self._last_number] = membership
        self._by_topic.setdefault(join.topic, set()).add(membership)
        self._announce_memberships([membership])
        return membership

    def _release(self, membership: KafkaMembership, queues: Iterable[QueueRef]) -> None:
        epochs = {queue: membership.owned.pop(queue) for queue in queues if queue in membership.owned}
        if epochs:
            self._write_release(membership, epochs)

    def _write_release(self, membership: KafkaMembership, epochs: Mapping[QueueRef, int]) -> None:
        """Release queues after the earlier commits, which still take effect; later commits are rejected."""
        name, number = membership.joined_as, membership.number
        pairs = [(queue.incarnation, queue.queue_id) for queue in epochs]

        def write() -> None:
            for queue, epoch in epochs.items():
                self._assignments.end_epoch(membership, queue, epoch)
            self._write_event(Released(name, number, pairs), name)

        self._commits.run_after_progress(list(epochs), write)

    def _leave(self, membership: KafkaMembership) -> None:
        self._memberships.pop(membership.number, None)
        self._by_topic[membership.join.topic].discard(membership)
        if not self._by_topic[membership.join.topic]:
            del self._by_topic[membership.join.topic]
        if membership.member is not None:
            self._by_member.pop(membership.member, None)
        name, number, epochs = membership.joined_as, membership.number, dict(membership.owned)

        def write() -> None:
            self._assignments.end_epochs_after_leave(membership, epochs)
            self._write_event(Left(name, [number]), name)

        if name:
            assigning = membership.assigning
            queues = [*epochs, *(() if assigning is None else assigning.queues)]
            self._commits.run_after_progress(queues, write)
        if not self._memberships:
            self._confirmed_at = None

    def holders(self, group: str, topic: str) -> dict[QueueRef, str]:
        """Return the address of the current holder of each of the group's queues."""
        members = {} if self.table is None else self.table.table.holders(group, topic)
        return {
            queue: "" if member.name == member.process else member.name for queue, member in members.items()
        }

    def holds_queue(self, key: Key) -> bool:
        """Return whether a member of this process holds a queue for a group."""
        group, queue = key
        memberships = self._by_topic.get(queue.topic, ())
        return any(queue in other.owned and other.join.group == group for other in memberships)

    def epoch_floor(self, key: Key, epoch: int) -> int:
        """Return the lowest epoch under which this process may write progress; see CommitPlan."""
        return self._assignments.epoch_floor(key, epoch, self.holds_queue)

    def on_topic_changed(self, topic: str) -> None:
        """Write an event if the table differs from the topic, which was created, deleted or has grown."""
        table = self.table
        if table is None or topic not in table.joined or not self._name:
            return
        recorded, actual = table.topics.get(topic, (0, 0)), self._topics.incarnation_and_queues(topic)
        if actual[0] != recorded[0] or actual[1] > recorded[1]:
            self._write_event(TopicChanged(topic, recorded[0], *actual), self._name)

    def close(self) -> None:
        """Leave all groups; no listener is called any more."""
        if self._closed:
            return
        self._closed = True
        self._assignments.close()
        for membership in self._memberships.values():
            membership.is_active = False
        if self._memberships and self._name and not self._commits.is_busy:  # else others fence it, as silent
            self._write_event(Died(self._name, self._name), "")
        self._memberships.clear()
        self._by_topic.clear()
        self._by_member.clear()

    # --- the life of this process

    def is_alive(self) -> bool:
        """Return whether no other process can have declared this one dead.

        If it may have, give the name up.
        """
        if self._confirmed_at is None or self._closed:
            return True
        silent_s = self._clock.monotonic() - self._confirmed_at
        if silent_s <= self._session_s:
            return True
        self._commits.renew(f"no heartbeat of its own was seen for {silent_s:.1f} s")
        return False

    def on_name_lost(self) -> None:
        """Take all queues from the members, because the name was given up."""
        name, self._name = self._name, ""
        self._confirmed_at = None
        self._sent_at.clear()
        self._by_member.clear()
        for membership in self._memberships.values():
            self._assignments.lose_all(membership)
        self._former_name = name
        self._assignments.notify_now()

    def on_named(self, name: str) -> None:
        """Rejoin all groups under the new name; nothing is in flight under the former one."""
        if self._closed:
            return
        if self._former_name:
            self._write_event(Died(self._former_name, self._former_name), name)
            self._former_name = ""
        self._name = name
        self._announce_memberships(list(self._memberships.values()))

    def _announce_memberships(self, memberships: Sequence[KafkaMembership]) -> None:
        """Write the Joined events of memberships if that is possible now; otherwise a later tick does."""
        if not self._name or not self._state.ready or not memberships:
            return
        if self.table is None:
            self._begin_log()
            return
        now = self._clock.monotonic()  # before any other process can have seen the events
        for membership in memberships:
            if membership.joined_as != self._name:
                membership.joined_as = self._name
                self._write_event(self._to_joined_event(membership), self._name)
        self.announce_retired()
        if self._confirmed_at is None:
            self.send_heartbeat(now)

    def announce_retired(self) -> None:
        """Write which transactional ids of this process are never used again, if there are any."""
        lanes = self._producers.retired
        if lanes and self._name:
            self._write_event(Retired(self._name, sorted(lanes)), self._name)

    def _to_joined_event(self, membership: KafkaMembership) -> Joined:
        join = membership.join
        return Joined(
            self._name,
            membership.number,
            join.group,
            join.topic,
            join.sharing,
            None if join.queues is None else sorted(join.queues),
            join.address,
            join.member,
            *self._topics.incarnation_and_queues(join.topic),
            lanes=LANES_MAX,
            level=self._level,
        )

    def _begin_log(self) -> None:
        """Write a Begun event, because the log contains no table."""
        epoch = max(self._clock.wall_ms() * 1000, self._state.progress.highest_epoch() + EPOCH_GAP)
        level = recorded_level(self._state.settings, self._level)
        self._write_event(Begun(epoch, self._state.coordination.next, level), self._name)

    def send_heartbeat(self, now: float) -> None:
        """Write a heartbeat of this process."""
        self._heartbeat_count += 1
        self._sent_at[self._heartbeat_count] = self._last_sent_at = now
        self._next_heartbeat_at = now + self._heartbeat_s * (1 - 0.5 / TICKS)
        self._write_event(HeartbeatSent(self._name, self._heartbeat_count), self._name)

    def tick(self, now: float) -> bool:
        """Announce memberships and send heartbeats; return whether this process is alive with a table."""
        if self._closed or not self.is_alive() or not self._name or not self._state.ready:
            return False
        if self.table is None:
            if self._memberships:
                self._begin_log()
            return False
        self._announce_memberships(
            [other for other in self._memberships.values() if other.joined_as != self._name]
        )
        if self._memberships and now >= self._next_heartbeat_at:
            self.send_heartbeat(now)
            for topic in list(self._by_topic):
                self.on_topic_changed(topic)
        return True

    def _write_event(self, event: Event, tag: str) -> None:
        """Write an event unless the process has another name than `tag`; a death is always written."""
        if tag == self._name or self._closed or isinstance(event, Died):
            self._producers.write_event(self._state.system_topics.coordination, encode_event(event), tag)

    def write_event(self, event: Event) -> None:
        """Write an event under the present name."""
        self._write_event(event, self._name)

    def on_event_failed(self, tag: object, reason: str) -> None:
        """Switch to a new name: an event was not written, so other processes' view of this one is unclear."""
        if tag and tag == self._name:
            self._commits.renew(f"an event of the coordination topic could not be written: {reason}")

    def on_log_truncated(self) -> None:
        """Switch to a new name: events were deleted before they were followed, so the table is unknown."""
        self._commits.renew("the coordination topic was cut before it was followed")

    # --- events

    def on_event(self, placed: PlacedEvent) -> bool:
        """Apply the next event of the log to the table; return whether the table is known afterwards."""
        coordination, event = self._state.coordination, placed.event
        had_table = coordination.state is not None
        decisions = coordination.apply(placed)
        table = coordination.state
        if self._closed or table is None:
            return False
        if isinstance(event, Joined) and event.process == self._name:
            self._on_joined(table, event.number)
        elif isinstance(event, HeartbeatSent) and event.process == self._name:
            self._on_heartbeat(event.number)
        elif isinstance(event, Died) and event.process == self._name:
            self._commits.renew(f"declared dead by {event.by}")
        if coordination.begin_count != self._begin_count:
            self._begin_count = coordination.begin_count
            if had_table and self._memberships:
                self._commits.renew("the coordination log has begun anew")
        if not had_table:
            self._later(self._announce_all)
        if decisions and self.is_alive():
            self._carry_out(decisions)
        return True

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            membership = self._by_member.get(decision.member)
            if membership is not None:
                self._assignments.carry_out(membership, decision)

    def _announce_all(self) -> None:
        if not self._closed:
            self._announce_memberships(list(self._memberships.values()))

    def _on_joined(self, table: TableState, number: int) -> None:
        membership = self._memberships.get(number)
        member = table.members.get((self._name, number))
        if self._confirmed_at is None:  # from here on it may get queues, and the others count its silence
            self._confirmed_at = min(self._sent_at.values(), default=None)
        if membership is not None and member is not None:
            membership.member = member
            self._by_member[member] = membership
        elif membership is not None:
            log.warning("joining %s was rejected: too many groups", membership.join)

    def _on_heartbeat(self, number: int) -> None:
        sent_at = self._sent_at.pop(number, None)
        if sent_at is not None:
            self._last_returned_at = sent_at
            if self._memberships:
                self._confirmed_at = sent_at
            for older in [heartbeat for heartbeat in self._sent_at if heartbeat < number]:
                del self._sent_at[older]

    # --- requests of the watch

    def release_overdue(self, member: GroupMember, queues: Sequence[QueueRef]) -> None:
        """Release queues of this process's member that did not release them before their deadline."""
        membership = self._by_member.get(member)
        if membership is not None:
            epochs = {queue: membership.owned.get(queue, 0) for queue in queues}
            self._assignments.lose(membership, queues)
            self._write_release(membership, epochs)

    def give_up(self, reason: str) -> None:
        """Switch to a new name, because this process cannot fulfil the requirements of the table."""
        self._commits.renew(reason)

    def write_snapshot(self) -> None:
        """Write a snapshot of the table, for processes that start later."""
        snapshot = self._state.coordination.make_snapshot()
        if snapshot is not None:
            self._producers.write_event(self._state.system_topics.coordination, encode_event(snapshot), "")
