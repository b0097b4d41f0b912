"""Which messages fire next: scans over one store's due order, so a storm or a closed topic holds up itself.

* The head scan reads the due order from its beginning; what it has read is in flight (`busy`) until it is
  settled, and `_after` remembers how far it is, so that nothing is read twice.
* When the head scan's slice is full there is a backlog. A second scan then looks ahead, behind the slice:
  it leaves out the topics that crowd the head, and jumps over milliseconds that hold nothing else, further
  each time, so that it reaches what is due now within a few slices however long the storm is. Who stands in
  the middle of a storm is found by what is remembered of lately added messages (Nearby).
* Messages of a topic that takes nothing now are put aside in the store and come back by a scan of their own
  as soon as their topic takes messages again.

A plan is at most one slice of each scan. What the log knows to be fired already is not fired but forgotten;
those changes need no commit (`FirePlan.changes`).

The store is an argument, and is read here: `due`, `get`, `next_due`, `put_aside` block the hub while RocksDB
reads one slice, mostly from memory. They never yield, and that is why they are called from here: were the
messages read elsewhere and handed in, a cancel could come between the read and the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from backend.progress.ack_map import OFFSET_END, AckMap
from delay_service.core.fire_command import (
    UNFIT,
    FireCommand,
    PassedOver,
    caught_up,
    dead_fire,
    fire_command,
    offsets_of,
    state_after,
)
from delay_service.core.occurrences import CATCH_UP_MAX
from delay_service.core.schedules import delivered_before
from delay_service.due.backend import GONE, UNREADABLE, TargetTopic
from delay_service.store.port import DelayStore, DueKey, IdKind, IdState, Pending, StoreChanges

JUMP_MS_MAX = 64
NEARBY_MAX = 50_000  # keys remembered of each shard, some 150 bytes each
TRIM_MS = 1_000
CROWD = 4  # a topic with a CROWDth of the head slice is left out of the second scan


class SliceLimits(NamedTuple):
    """Of one slice of the head scan; the others take a quarter. `kept_ms`: of an id that has fired.
    `catch_up_max`: of missed deliveries of one message."""

    count_max: int
    bytes_max: int
    kept_ms: int
    catch_up_max: int = CATCH_UP_MAX


class FirePlan(NamedTuple):
    """What to append in one commit, and what to write to the store whether it succeeds or not."""

    fires: list[FireCommand]
    changes: StoreChanges | None
    stale: int  # messages forgotten because the log says that they were fired
    over: list[int]  # offsets that are done without firing; to be finished with the next commit


class DueScans:
    """Of one shard. `look(topic)`: None when there is no such topic. `busy` is changed here and by
    `settled` only."""

    def __init__(
        self, store: DelayStore, acks: AckMap, look: Callable[[str], TargetTopic | None], limits: SliceLimits
    ) -> None:
        self.busy: dict[int, Pending] = {}
        self._store = store
        self._acks = acks
        self._look = look
        self._limits = limits
        self._after: DueKey | None = None
        self._ahead: DueKey | None = None
        self._jump_ms = 0
        self._crowd: frozenset[str] = frozenset()
        self._aside: set[str] = set(store.topics_put_aside())
        self._coming_back: set[str] = set()  # with messages from aside in flight
        self._nearby = Nearby(NEARBY_MAX)
        self._trimmed_ms = 0
        self._turns: dict[str, int] = {}
        self._now = 0
        self._changes: StoreChanges | None = None
        self._stale = 0
        self._over: list[int] = []
        self._seen: set[int] = set()  # by this plan; the scans may cross

    # --- what others tell

    @property
    def aside(self) -> frozenset[str]:
        """Topics with messages put aside."""
        return frozenset(self._aside)

    def added(self, messages: Sequence[Pending]) -> None:
        """These wait from now on."""
        keys = [message.key for message in messages]
        add = self._nearby.add
        for message, key in zip(messages, keys, strict=True):
            add(message.topic, key)
        self.lowered(keys)

    def lowered(self, keys: Iterable[DueKey]) -> None:
        """These wait now: where the head scan is past one it goes back."""
        lowest = min(keys, default=None)
        if lowest is not None and self._after is not None and lowest <= self._after:
            self._after = lowest.before()

    def wake_ms(self) -> int | None:
        """When the next message that is not in flight is due; None when none waits."""
        following = self._store.next_due(self._after)
        return None if following is None else following.due_ms

    def settled(self, fires: Iterable[FireCommand], fired: bool) -> None:
        """Their commit has ended; those that did not fire are read again."""
        lowest: DueKey | None = None
        for one in fires:
            message = one.message
            self.busy.pop(message.offset, None)
            if one.aside:
                self._coming_back.discard(message.topic)
            elif not fired and (lowest is None or message.key < lowest):
                lowest = message.key
        if lowest is not None:
            self.lowered((lowest,))

    def changes_of(self, fires: Iterable[FireCommand], fired_ms: int) -> StoreChanges:
        """What to write when they have fired."""
        changes = StoreChanges()
        for one in fires:
            message = one.message
            (changes.removed_deferred if one.aside else changes.removed).append(message)
            changes.ids[message.uuid] = state_after(one, fired_ms, self._limits.kept_ms)
            if one.following is not None:
                changes.added.append(one.following)
        return changes

    def put_aside(self, fires: Iterable[FireCommand]) -> StoreChanges:
        """What to write when their topics would not have them now."""
        changes = StoreChanges()
        for one in fires:
            if not one.aside:
                changes.deferred.append(one.message)
                self._aside.add(one.message.topic)
        return changes

    # --- plans

    def plan(self, now_ms: int) -> FirePlan:
        """What fires now; its messages are busy from here on."""
        self._begin(now_ms)
        fires = self._head()
        fires += self._second()
        fires += self._back()
        for one in fires:
            self.busy[one.message.offset] = one.message
        return FirePlan(fires, self._changes, self._stale, self._over)

    def _begin(self, now_ms: int) -> None:
        """Nothing is planned yet; a method of its own, for compiled code takes what is None here for None."""
        self._now, self._changes, self._stale, self._over = now_ms, None, 0, []
        self._seen.clear()

    def _head(self) -> list[FireCommand]:
        limits = self._limits
        found = self._store.due(self._now, limits.count_max, limits.bytes_max, self._after)
        if not found:
            self._ahead = None
            self._trim()
            return []
        full = len(found) >= limits.count_max or _size(found) >= limits.bytes_max // 2
        if full:
            counts = Counter([message.topic for message in found])
            self._crowd = frozenset(topic for topic, count in counts.items() if count * CROWD >= len(found))
        self._after = found[-1].key
        self._ahead = (
            max(self._ahead or self._after, DueKey(self._after.due_ms, OFFSET_END)) if full else None
        )
        return self._fires_of(found)

    def _second(self) -> list[FireCommand]:
        if self._ahead is None:
            return []
        limits = self._limits
        fires = self._fires_of(self._near(max(limits.count_max // 4, 1)))
        found = self._store.due(
            self._now, max(limits.count_max // 4, 1), max(limits.bytes_max // 4, 1), self._ahead
        )
        if not found:
            return fires
        others = [message for message in found if message.topic not in self._crowd]
        if others:
            self._jump_ms, self._ahead = 0, found[-1].key
        else:
            self._jump_ms = min(self._jump_ms * 2 + 1, JUMP_MS_MAX)
            to = min(found[-1].due_ms + self._jump_ms - 1, max(self._now - 1, found[-1].due_ms))
            self._ahead = DueKey(to, OFFSET_END)
        return fires + self._fires_of(others)

    def _near(self, limit: int) -> list[Pending]:
        """Messages in the middle of the storm, behind what the head scan has read."""
        without = self._crowd | self._aside
        found = [self._store.get(key) for key in self._nearby.due(self._now, without, limit)]
        after = self._after
        return [one for one in found if one is not None and (after is None or one.key > after)]

    def _trim(self) -> None:
        if self._after is not None and self._nearby and not 0 <= self._now - self._trimmed_ms < TRIM_MS:
            self._trimmed_ms = self._now
            self._nearby.trim(self._after)

    def _back(self) -> list[FireCommand]:
        for topic in self._aside - self._coming_back:
            look = self._look(topic)
            if look is not None and not look.writable:
                continue
            found = self._store.put_aside(topic, max(self._limits.count_max // 4, 1))
            if not found:
                self._aside.discard(topic)
                continue
            due = [message for message in found if message.due_ms <= self._now]  # the clock was set back
            fires = self._fires_of(due, aside=True)
            if fires:
                self._coming_back.add(topic)
            return fires
        return []

    # --- one message

    def _fires_of(self, messages: list[Pending], aside: bool = False) -> list[FireCommand]:
        busy, acks, seen = self.busy, self._acks, self._seen
        attempts, finished = acks.attempts, acks.is_finished
        fires: list[FireCommand] = []
        looks: dict[str, TargetTopic | None] = {}
        for message in messages:
            offset = message.offset
            if offset in busy or offset in seen:
                continue
            seen.add(offset)
            if finished(offset):
                self._forget(message, aside)
            elif attempts and attempts.get(offset, 0) > message.occurrence:
                self._catch_up(message, aside, fires)
            else:
                topic = message.topic
                if topic not in looks:
                    looks[topic] = self._look(topic)
                self._one(message, looks[topic], aside, fires)
        return fires

    def _one(self, message: Pending, look: TargetTopic | None, aside: bool, fires: list[FireCommand]) -> None:
        if look is not None and not look.writable:
            if not aside:
                self._change().deferred.append(message)
                self._aside.add(message.topic)
            return
        queues, by_key = (1, False) if look is None else (look.queues, look.by_key)
        most = self._limits.catch_up_max
        try:
            made = fire_command(message, queues, self._turn, self._now, aside, most, by_key)
        except UNFIT:
            made = dead_fire(message, UNREADABLE, self._now, aside)
        if isinstance(made, PassedOver):
            if made.following is None:
                self._over += offsets_of(message)
            self._replace(message, made.following, aside, delivered_before(message.occurrence) > 0)
        else:
            fires.append(made)

    def _turn(self, topic: str) -> int:
        turn = self._turns[topic] = self._turns.get(topic, 0) + 1
        return turn

    def _change(self) -> StoreChanges:
        if self._changes is None:
            self._changes = StoreChanges()
        return self._changes

    def _forget(self, message: Pending, aside: bool) -> None:
        self._stale += 1
        self._replace(message, None, aside)

    def _catch_up(self, message: Pending, aside: bool, fires: list[FireCommand]) -> None:
        fired = self._acks.attempts[message.offset]
        try:
            following = caught_up(message, fired, self._now, self._limits.catch_up_max)
        except UNFIT:
            fires.append(dead_fire(message, UNREADABLE, self._now, aside))
        else:
            self._stale += 1
            if following is None:
                self._over += offsets_of(message)
            self._replace(message, following, aside)

    def _replace(
        self, message: Pending, following: Pending | None, aside: bool, delivered: bool = True
    ) -> None:
        """`delivered`: something of it was; else it is over as if it had been taken back."""
        changes = self._change()
        (changes.removed_deferred if aside else changes.removed).append(message)
        if following is not None:
            changes.added.append(following)
            changes.ids[message.uuid] = IdState(IdKind.PENDING, following.due_ms, message.offset)
            self.added((following,))
        else:
            kept = self._now + self._limits.kept_ms
            kind, at_ms = (IdKind.FIRED, message.due_ms) if delivered else (IdKind.CANCELLED, self._now)
            changes.ids[message.uuid] = IdState(kind, at_ms, message.offset, kept)

    def dead(self, fires: Iterable[FireCommand], reason: str = GONE) -> list[FireCommand]:
        """The same messages as dead letters."""
        return [dead_fire(one.message, reason, self._now, one.aside) for one in fires]


def _size(messages: list[Pending]) -> int:
    return sum(len(message.delivery) for message in messages)


class Nearby:
    """Where messages that came in lately stand in the due order, by topic: the way past a storm.

    A storm can be scanned no faster than a million messages a second, so whoever stands in the middle of one
    cannot be found by reading on. Of each topic the keys that were added are therefore remembered, in memory,
    at most `keys_max`: when there are more, the topic with the most goes, which is the storm's. It may know
    too little (what came in before the process started), and keys where nothing stands any more.
    """

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._topics: dict[str, list[DueKey]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, topic: str, key: DueKey) -> None:
        """A message waits there from now on."""
        if self._count >= self._keys_max:
            largest = max(self._topics, key=lambda one: len(self._topics[one]))
            self._count -= len(self._topics.pop(largest))
        heappush(self._topics.setdefault(topic, []), key)
        self._count += 1

    def due(self, now_ms: int, without: Container[str], limit: int) -> list[DueKey]:
        """Keys that are due, of topics that are not in `without`, a fair share each; forgotten herewith."""
        found: list[DueKey] = []
        share = max(limit // max(len(self._topics), 1), 1)
        for topic in list(self._topics):
            if topic in without:
                continue
            keys = self._topics[topic]
            taken = 0
            while keys and keys[0].due_ms <= now_ms and taken < share and len(found) < limit:
                found.append(heappop(keys))
                taken += 1
            self._count -= taken
            self._topics.pop(topic)
            if keys:
                self._topics[topic] = keys  # behind the others, whose turn comes first then
            if len(found) >= limit:
                break
        return found

    def trim(self, to: DueKey) -> None:
        """Nothing waits up to `to` that is not being fired."""
        for topic, keys in list(self._topics.items()):
            if keys and keys[0] <= to:
                left = [key for key in keys if key > to]
                self._count -= len(keys) - len(left)
                heapify(left)
                keys[:] = left
            if not keys:
                del self._topics[topic]
