"""KafkaMemberships: what this process asks of the replicated table, and what the table decides for it.

What members ask becomes events of the coordination topic; nothing is decided before they are followed, where
everybody applies them alike. A release goes out after the commits that were called before it.

Everything is lost when this process is declared dead, or has not seen a heartbeat of its own for `session_ms`
(monotonic, from when it was sent): it may have been. It then takes another name, and joins again. That is
looked at before a commit begins, before it is answered, and before any decision is carried out, so a process
that was stopped does nothing under what it held before.

How decisions are carried out stands in holding.py, what is done about the others in watch.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gevent

from backend.kafka.clients.producers import Producers
from backend.kafka.commits.commit_queue import CommitLine
from backend.kafka.coordination.events import (
    Beat,
    Begun,
    Died,
    Event,
    Joined,
    Left,
    Released,
    TopicSeen,
    encode_event,
)
from backend.kafka.coordination.holding import KafkaMembership, QueueHolding
from backend.kafka.coordination.table import LINES_MAX, PlacedEvent, TableState, TopicQueues
from backend.kafka.options import KafkaOptions
from backend.kafka.state.followed import KafkaState
from backend.ownership.group import Decision, GroupMember
from backend.port import Join, MembershipListener
from backend.progress.group_progress import Key
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, DrainingError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
TICKS = 5  # looks at the others between two heartbeats
EPOCHS_APART = 1_000_000  # from everything that is recorded, when the log begins anew


class KafkaMemberships:
    """Every membership of this process. `queues`: incarnation and number of queues of a topic."""

    def __init__(
        self,
        options: KafkaOptions,
        state: KafkaState,
        line: CommitLine,
        producers: Producers,
        clock: Clock,
        queues: Callable[[str], TopicQueues | None],
    ) -> None:
        self._session_s = options.session_ms / 1000
        self._state = state
        self._line = line
        self._producers = producers
        self._clock = clock
        self._queues = queues
        self._later: Any = gevent.get_hub().loop.run_callback
        self._members: dict[int, KafkaMembership] = {}
        self._mine: dict[GroupMember, KafkaMembership] = {}
        self._by_topic: dict[str, set[KafkaMembership]] = {}
        self._holding = QueueHolding(state, line, clock, self.topic_changed)
        self._number = self._beats = 0
        self._beat_at = 0.0
        self._sent: dict[int, float] = {}  # beat → when it was sent
        self._confirmed: float | None = None  # when the newest beat was sent that has come back
        self._beaten = self._flowed = 0.0  # the same, also without a member; when the newest of all was sent
        self._name = self._old_name = ""
        self._begins = 0
        self._closed = False
        self._timer = HubTimer(ref=False)
        self._heartbeat_s = options.heartbeat_ms / 1000
        self.ticked: Callable[[float], None] = lambda now: (
            None
        )  # again and again, while this process is alive
        self.heard: Callable[[Event, float], None] = lambda event, now: None  # each event, once it is applied
        line.alive, line.ended, line.named = self.alive, self._ended, self._named

    @property
    def name(self) -> str:
        """Of this process among the others; empty while it has none."""
        return self._name

    @property
    def beats(self) -> tuple[float, float]:
        """When the newest heartbeat was sent, and the newest one of those that have come back."""
        return self._beaten, self._flowed

    @property
    def table(self) -> TableState | None:
        """What is followed; None while that is unknown."""
        return self._state.coordination.state

    # --- calls

    def join(self, join: Join, listener: MembershipListener) -> KafkaMembership:
        """Take part. Raises BoundReachedError when there are too many groups."""
        if self._closed:
            raise DrainingError("the Kafka engine was closed")
        lines = {(each.join.group, each.join.topic) for each in self._members.values()}
        if len(self._members) >= LINES_MAX and len(lines | {(join.group, join.topic)}) > LINES_MAX:
            raise BoundReachedError(f"{LINES_MAX} groups have joined topics; that is the bound")
        self._number += 1
        membership = self._members[self._number] = KafkaMembership(self, self._number, join, listener)
        self._by_topic.setdefault(join.topic, set()).add(membership)
        self._enter([membership])
        return membership

    def release(self, membership: KafkaMembership, queues: Iterable[QueueRef]) -> None:
        """A member lets queues go."""
        given = {queue: membership.held.pop(queue) for queue in queues if queue in membership.held}
        if given:
            self._release(membership, given)

    def _release(self, membership: KafkaMembership, given: Mapping[QueueRef, int]) -> None:
        """Let them go: what was called before counts, what is called later does not. `given`: with epochs."""
        name, number = membership.joined_as, membership.number
        pairs = [(queue.incarnation, queue.queue_id) for queue in given]

        def released() -> None:
            for queue, epoch in given.items():
                self._holding.over(membership, queue, epoch)
            self._write(Released(name, number, pairs), name)

        self._line.after([], released)

    def leave(self, membership: KafkaMembership) -> None:
        """A member is gone."""
        self._members.pop(membership.number, None)
        self._by_topic[membership.join.topic].discard(membership)
        if not self._by_topic[membership.join.topic]:
            del self._by_topic[membership.join.topic]
        if membership.member is not None:
            self._mine.pop(membership.member, None)
        name, number, held = membership.joined_as, membership.number, dict(membership.held)

        def left() -> None:
            self._holding.left(membership, held)
            self._write(Left(name, [number]), name)

        if name:
            self._line.after([], left)
        if not self._members:
            self._confirmed = None

    def holders(self, group: str, topic: str) -> dict[QueueRef, str]:
        """Addresses of who holds what now."""
        held = {} if self.table is None else self.table.table.holders(group, topic)
        return {queue: "" if member.name == member.process else member.name for queue, member in held.items()}

    def holds(self, key: Key) -> bool:
        """Whether a member of this process holds a queue for a group."""
        group, queue = key
        return any(
            queue in each.held and each.join.group == group for each in self._by_topic.get(queue.topic, ())
        )

    def floor(self, key: Key, epoch: int) -> int:
        """No lower epoch is taken from this process: it has lost that queue."""
        return self._holding.floor(key, epoch, self.holds)

    def topic_changed(self, topic: str) -> None:
        """A topic was made, has grown, or is gone: say so, where the table knows something else."""
        table = self.table
        if table is None or topic not in table.joined or not self._name:
            return
        known, found = table.topics.get(topic, (0, 0)), self._queues(topic) or (0, 0)
        if found[0] != known[0] or found[1] > known[1]:
            self._write(TopicSeen(topic, known[0], *found), self._name)

    def close(self) -> None:
        """Leave everything; nobody hears anything any more."""
        if self._closed:
            return
        self._closed = True
        self._holding.close()
        self._timer.stop()
        for membership in self._members.values():
            membership.active = False
        if self._members and self._name and not self._line.busy:  # else the others fence it first, as silent
            self._write(Died(self._name, self._name), "")
        self._members.clear()
        self._by_topic.clear()
        self._mine.clear()

    # --- the life of this process

    def alive(self) -> bool:
        """Whether nobody can have declared this process dead. If not, it gives its name up, at once."""
        if self._confirmed is None or self._closed:
            return True
        silent = self._clock.monotonic() - self._confirmed
        if silent <= self._session_s:
            return True
        self._line.renew(f"no heartbeat of its own was seen for {silent:.1f} s")
        return False

    def _ended(self, reason: str) -> None:
        """The name is given up: everything is lost."""
        name, self._name = self._name, ""
        self._confirmed = None
        self._sent.clear()
        self._mine.clear()
        for membership in self._members.values():
            self._holding.lose_everything(membership)
        self._old_name = name
        self._holding.tell_now()

    def _named(self, name: str) -> None:
        """A new name, under which nothing was written yet; nothing is under way under the old one."""
        if self._closed:
            return
        if self._old_name:
            self._write(Died(self._old_name, self._old_name), name)
            self._old_name = ""
        self._name = name
        if not self._timer.active:  # also without a membership: the others may all be dead
            self._timer.every(self._heartbeat_s / TICKS, self._tick)
        self._enter(list(self._members.values()))

    def _enter(self, memberships: Sequence[KafkaMembership]) -> None:
        """Tell the others of memberships, when that is possible; else it is done later."""
        if not self._name or not self._state.ready or not memberships:
            return
        if self.table is None:
            self._begin()
            return
        now = self._clock.monotonic()  # before the others can have heard of it
        for membership in memberships:
            if membership.joined_as != self._name:
                membership.joined_as = self._name
                self._write(self._joined(membership), self._name)
        if self._confirmed is None:
            self.beat(now)

    def _joined(self, membership: KafkaMembership) -> Joined:
        join = membership.join
        queues = None if join.queues is None else sorted(join.queues)
        found = self._queues(join.topic) or (0, 0)
        return Joined(
            self._name,
            membership.number,
            join.group,
            join.topic,
            join.sharing,
            queues,
            join.address,
            join.member,
            *found,
        )

    def _begin(self) -> None:
        """There is no table in the log: begin one."""
        epoch = max(self._clock.wall_ms() * 1000, self._state.progress.highest_epoch() + EPOCHS_APART)
        self._write(Begun(epoch, self._state.coordination.next), self._name)

    def beat(self, now: float) -> None:
        """Say that this process is there."""
        self._beats += 1
        self._sent[self._beats] = self._beaten = now
        self._beat_at = now + self._heartbeat_s * (1 - 0.5 / TICKS)
        self._write(Beat(self._name, self._beats), self._name)

    def _tick(self) -> None:
        if not self.alive() or not self._name or not self._state.ready:
            return
        if self.table is None:
            if self._members:
                self._begin()
            return
        self._enter([each for each in self._members.values() if each.joined_as != self._name])
        now = self._clock.monotonic()
        if self._members and now >= self._beat_at:
            self.beat(now)
            for topic in list(self._by_topic):
                self.topic_changed(topic)
        self.ticked(now)

    def _write(self, event: Event, tag: str) -> None:
        if tag == self._name or self._closed or isinstance(event, Died):
            self._producers.event(self._state.topics.coordination, encode_event(event), tag)

    def write(self, event: Event) -> None:
        """Write an event, as this process is called now."""
        self._write(event, self._name)

    def event_failed(self, tag: object, reason: str) -> None:
        """An event was not written: nobody knows what the others know of this process."""
        if tag and tag == self._name:
            self._line.renew(f"an event of the coordination topic could not be written: {reason}")

    def cut(self) -> None:
        """The log was not followed in time: what the table says is unknown."""
        self._line.renew("the coordination topic was cut before it was followed")

    # --- events

    def event(self, placed: PlacedEvent) -> None:
        """The next event of the log."""
        log_, event, now = self._state.coordination, placed.event, self._clock.monotonic()
        known = log_.state is not None
        decisions = log_.apply(placed)
        table = log_.state
        if self._closed or table is None:
            return
        if isinstance(event, Joined) and event.process == self._name:
            self._entered(table, event.number)
        elif isinstance(event, Beat) and event.process == self._name:
            self._seen_beat(event.number)
        elif isinstance(event, Died) and event.process == self._name:
            self._line.renew(f"declared dead by {event.by}")
        if log_.begins != self._begins:
            self._begins = log_.begins
            if known and self._members:
                self._line.renew("the coordination log has begun anew")
        if not known:
            self._later(self._enter_all)
        self.heard(event, now)
        if decisions and self.alive():
            self._carry_out(decisions)

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            membership = self._mine.get(decision.member)
            if membership is not None:
                self._holding.take(membership, decision)

    def _enter_all(self) -> None:
        if not self._closed:
            self._enter(list(self._members.values()))

    def _entered(self, table: TableState, number: int) -> None:
        membership = self._members.get(number)
        member = table.members.get((self._name, number))
        if self._confirmed is None:  # from here on it may be given queues, and the others count its silence
            self._confirmed = min(self._sent.values(), default=None)
        if membership is not None and member is not None:
            membership.member = member
            self._mine[member] = membership
        elif membership is not None:
            log.warning("joining %s was refused: too many groups", membership.join)

    def _seen_beat(self, number: int) -> None:
        sent = self._sent.pop(number, None)
        if sent is not None:
            self._flowed = sent
            if self._members:
                self._confirmed = sent
            for older in [beat for beat in self._sent if beat < number]:
                del self._sent[older]

    # --- what the watch asks for

    def overdue(self, member: GroupMember, queues: Sequence[QueueRef]) -> None:
        """A member of this process has not released queues in time: it is done for it."""
        membership = self._mine.get(member)
        if membership is not None:
            epochs = {queue: membership.held.get(queue, 0) for queue in queues}
            self._holding.lose(membership, queues)
            self._release(membership, epochs)

    def give_up(self, reason: str) -> None:
        """This process cannot do what the table wants of it: it goes on under another name."""
        self._line.renew(reason)

    def snapshot(self) -> None:
        """Write the whole table down, for those who come new."""
        found = self._state.coordination.snapshot()
        if found is not None:
            self._producers.event(self._state.topics.coordination, encode_event(found), "")
