"""Which messages fire next: scans over one store's due order, so a storm or a closed topic holds up itself.

* The head scan reads the due order from its beginning; what it has read is in flight (`busy`) until it is
  settled, and `_after` remembers how far it is, so that nothing is read twice.
* When the head scan's slice is full there is a backlog. A second scan then looks ahead, behind the slice:
  it leaves out the topics that crowd the head, and jumps over milliseconds that hold nothing else, further
  each time, so that it reaches what is due now within a few slices however long the storm is. Who stands in
  the middle of a storm is found by what is remembered of lately added messages (Nearby).
* Messages of a topic that takes nothing now are put aside in the store and come back by a scan of their own
  as soon as their topic takes messages again. Meanwhile they are not read. Of a topic that was held, what was
  due before its release and is not aside yet goes there too, so that all of it fires in due order.

A plan is at most one slice of each scan. What the log knows to be fired already is not fired but forgotten;
those changes need no commit (`FirePlan.changes`).

The store is an argument, and is read here: `due`, `get`, `next_due`, `read_deferred` block the hub while
RocksDB reads one slice, mostly from memory. They never yield, and that is why they are called from here: were
the messages read elsewhere and handed in, a cancel could come between the read and the plan.
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
    SkippedMessage,
    catch_up_delivery,
    dead_fire,
    fire_command,
    offsets_of,
    state_after,
)
from delay_service.core.occurrences import CATCH_UP_MAX
from delay_service.core.schedules import delivered_before
from delay_service.due.backend import TOPIC_DELETED, UNREADABLE, TargetTopic
from delay_service.store.port import DelayStore, DueKey, IdKind, IdState, Pending, StoreChanges

JUMP_MS_MAX = 64
RECENT_KEYS_MAX = 50_000  # keys remembered of each shard, some 150 bytes each
TRIM_MS = 1_000
CROWD = 4  # a topic with a CROWDth of the head slice is left out of the second scan


class SliceLimits(NamedTuple):
    """The limits of one slice of the main scan; while it has a backlog, all other scans use a quarter.

    `id_retention_ms`: how long the id of a fired message is retained. `catch_up_max`: how many missed
    deliveries of one message still fire.
    """

    count_max: int
    bytes_max: int
    id_retention_ms: int
    catch_up_max: int = CATCH_UP_MAX


class FirePlan(NamedTuple):
    """The messages to fire in one commit, and store changes that do not depend on the commit's outcome."""

    fires: list[FireCommand]
    changes: StoreChanges | None
    stale: int  # messages forgotten because the log says that they were fired
    passed_offsets: list[int]  # offsets that are done without firing; to be finished with the next commit


class DueScans:
    """Plans the fires of one shard.

    `find_target_topic` returns None for an unknown topic. `busy`: the messages in flight, by offset; only
    this class changes it.
    """

    def __init__(
        self,
        store: DelayStore,
        acks: AckMap,
        find_target_topic: Callable[[str], TargetTopic | None],
        limits: SliceLimits,
    ) -> None:
        self.busy: dict[int, Pending] = {}
        self._store = store
        self._acks = acks
        self._find_target_topic = find_target_topic
        self._limits = limits
        self._after: DueKey | None = None
        self._ahead: DueKey | None = None
        self._jump_ms = 0
        self._crowd: frozenset[str] = frozenset()
        self._deferred_topics: set[str] = set(store.deferred_topics())
        self._coming_back: set[str] = set()  # with messages from aside in flight
        self._released_ms: dict[str, int] = {}  # topics whose hold ended, and when, until none of it is aside
        self._recent = RecentKeys(RECENT_KEYS_MAX)
        self._trimmed_ms = 0
        self._round_robin_counts: dict[str, int] = {}
        self._now = 0
        self._changes: StoreChanges | None = None
        self._stale = 0
        self._passed_offsets: list[int] = []
        self._planned: set[int] = set()  # by this plan; the scans may cross

    # --- what others tell

    @property
    def deferred_topics(self) -> frozenset[str]:
        """Return the topics that have deferred messages."""
        return frozenset(self._deferred_topics)

    def on_released(self, topic: str, now_ms: int) -> None:
        """Fire what is due by now in due order, because the hold of the topic has ended."""
        self._released_ms[topic] = now_ms

    def on_added(self, messages: Sequence[Pending]) -> None:
        """Register messages that have been added to the store."""
        keys = [message.key for message in messages]
        add = self._recent.add
        for message, key in zip(messages, keys, strict=True):
            add(message.topic, key)
        self.move_back(keys)

    def move_back(self, keys: Iterable[DueKey]) -> None:
        """Move the start of the main scan back to before the lowest of these keys, if necessary."""
        lowest = min(keys, default=None)
        if lowest is not None and self._after is not None and lowest <= self._after:
            self._after = lowest.before()

    def wake_ms(self) -> int | None:
        """Return when the next message that is not in flight is due; None if no message waits."""
        following = self._store.next_due(self._after)
        return None if following is None else following.due_ms

    def on_commit_done(self, fires: Iterable[FireCommand], fired: bool) -> None:
        """Release the messages of a finished commit. Without `fired` they will be read again."""
        lowest: DueKey | None = None
        for fire in fires:
            message = fire.message
            self.busy.pop(message.offset, None)
            if fire.is_deferred:
                self._coming_back.discard(message.topic)
            elif not fired and (lowest is None or message.key < lowest):
                lowest = message.key
        if lowest is not None:
            self.move_back((lowest,))

    def changes_of(self, fires: Iterable[FireCommand], fired_ms: int) -> StoreChanges:
        """Return the store changes that follow from the fires of these messages."""
        changes = StoreChanges()
        for fire in fires:
            message = fire.message
            (changes.removed_deferred if fire.is_deferred else changes.removed).append(message)
            changes.ids[message.uuid] = state_after(fire, fired_ms, self._limits.id_retention_ms)
            if fire.following is not None:
                changes.added.append(fire.following)
        return changes

    def defer_messages(self, fires: Iterable[FireCommand]) -> StoreChanges:
        """Return the store changes that defer messages whose topics accept none now."""
        changes = StoreChanges()
        for fire in fires:
            if not fire.is_deferred:
                changes.deferred.append(fire.message)
                self._deferred_topics.add(fire.message.topic)
        return changes

    # --- plans

    def plan_fires(self, now_ms: int) -> FirePlan:
        """Choose the messages to fire in this slice of time, and mark them as busy."""
        self._begin(now_ms)
        fires = self._scan_head()
        fires += self._scan_ahead()
        fires += self._scan_deferred()
        for fire in fires:
            self.busy[fire.message.offset] = fire.message
        return FirePlan(fires, self._changes, self._stale, self._passed_offsets)

    def _begin(self, now_ms: int) -> None:
        """Start an empty plan of messages to fire.

        A separate method, because compiled code would otherwise infer that it stays None.
        """
        self._now, self._changes, self._stale, self._passed_offsets = now_ms, None, 0, []
        self._planned.clear()

    def _scan_head(self) -> list[FireCommand]:
        limits = self._limits
        messages = self._store.due(self._now, limits.count_max, limits.bytes_max, self._after)
        if not messages:
            self._ahead = None
            self._trim_recent()
            return []
        full = len(messages) >= limits.count_max or _total_bytes(messages) >= limits.bytes_max // 2
        if full:
            counts = Counter([message.topic for message in messages])
            self._crowd = frozenset(
                topic for topic, count in counts.items() if count * CROWD >= len(messages)
            )
        self._after = messages[-1].key
        self._ahead = (
            max(self._ahead or self._after, DueKey(self._after.due_ms, OFFSET_END)) if full else None
        )
        return self._fires_of(messages)

    def _scan_ahead(self) -> list[FireCommand]:
        if self._ahead is None:
            return []
        limits = self._limits
        fires = self._fires_of(self._read_recent(max(limits.count_max // 4, 1)))
        messages = self._store.due(
            self._now, max(limits.count_max // 4, 1), max(limits.bytes_max // 4, 1), self._ahead
        )
        if not messages:
            return fires
        others = [message for message in messages if message.topic not in self._crowd]
        if others:
            self._jump_ms, self._ahead = 0, messages[-1].key
        else:
            self._jump_ms = min(self._jump_ms * 2 + 1, JUMP_MS_MAX)
            to = min(messages[-1].due_ms + self._jump_ms - 1, max(self._now - 1, messages[-1].due_ms))
            self._ahead = DueKey(to, OFFSET_END)
        return fires + self._fires_of(others)

    def _read_recent(self, limit: int) -> list[Pending]:
        """Read recently added due messages that the main scan has passed already, while very many messages
        are due at once."""
        without = self._crowd | self._deferred_topics
        messages = [self._store.get(key) for key in self._recent.due(self._now, without, limit)]
        after = self._after
        return [
            message for message in messages if message is not None and (after is None or message.key > after)
        ]

    def _trim_recent(self) -> None:
        if self._after is not None and self._recent and not 0 <= self._now - self._trimmed_ms < TRIM_MS:
            self._trimmed_ms = self._now
            self._recent.trim(self._after)

    def _scan_deferred(self) -> list[FireCommand]:
        for topic in self._deferred_topics - self._coming_back:
            target = self._find_target_topic(topic)
            if target is not None and not target.writable:
                continue
            share = 1 if self._ahead is None else 4  # a backlog of the main scan comes first
            limits = self._limits
            deferred = self._store.read_deferred(
                topic, max(limits.count_max // share, 1), max(limits.bytes_max // share, 1)
            )
            if not deferred:
                if not self._is_deferring(topic):
                    self._deferred_topics.discard(topic)
                    self._released_ms.pop(topic, None)
                continue
            due = [message for message in deferred if message.due_ms <= self._now]  # the clock was set back
            fires = self._fires_of(due, is_deferred=True)
            if fires:
                self._coming_back.add(topic)
            return fires
        return []

    def _is_deferring(self, topic: str) -> bool:
        """Return whether this plan defers messages of the topic; the store does not list them as such yet."""
        changes = self._changes
        return changes is not None and any(message.topic == topic for message in changes.deferred)

    # --- one message

    def _fires_of(self, messages: list[Pending], is_deferred: bool = False) -> list[FireCommand]:
        busy, acks, planned = self.busy, self._acks, self._planned
        attempts, finished = acks.attempts, acks.is_finished
        fires: list[FireCommand] = []
        targets: dict[str, TargetTopic | None] = {}
        for message in messages:
            offset = message.offset
            if offset in busy or offset in planned:
                continue
            planned.add(offset)
            if finished(offset):
                self._forget_fired(message, is_deferred)
            elif attempts and attempts.get(offset, 0) > message.occurrence:
                self._catch_up(message, is_deferred, fires)
            else:
                topic = message.topic
                if topic not in targets:
                    targets[topic] = self._find_target_topic(topic)
                self._plan_message(message, targets[topic], is_deferred, fires)
        return fires

    def _plan_message(
        self, message: Pending, target: TargetTopic | None, is_deferred: bool, fires: list[FireCommand]
    ) -> None:
        released = self._released_ms
        joins_deferred = bool(released) and message.due_ms <= released.get(message.topic, -1)
        if (target is not None and not target.writable) or (joins_deferred and not is_deferred):
            if not is_deferred:
                self._plan_changes().deferred.append(message)
                self._deferred_topics.add(message.topic)
            return
        queues, by_key = (1, False) if target is None else (target.queues, target.by_key)
        catch_up_max = self._limits.catch_up_max
        try:
            outcome = fire_command(
                message, queues, self._next_queue, self._now, is_deferred, catch_up_max, by_key
            )
        except UNFIT:
            outcome = dead_fire(message, UNREADABLE, self._now, is_deferred)
        if isinstance(outcome, SkippedMessage):
            if outcome.following is None:
                self._passed_offsets += offsets_of(message)
            self._replace_message(
                message, outcome.following, is_deferred, delivered_before(message.occurrence) > 0
            )
        else:
            fires.append(outcome)

    def _next_queue(self, topic: str) -> int:
        count = self._round_robin_counts[topic] = self._round_robin_counts.get(topic, 0) + 1
        return count

    def _plan_changes(self) -> StoreChanges:
        if self._changes is None:
            self._changes = StoreChanges()
        return self._changes

    def _forget_fired(self, message: Pending, is_deferred: bool) -> None:
        self._stale += 1
        self._replace_message(message, None, is_deferred)

    def _catch_up(self, message: Pending, is_deferred: bool, fires: list[FireCommand]) -> None:
        fired = self._acks.attempts[message.offset]
        try:
            following = catch_up_delivery(message, fired, self._now, self._limits.catch_up_max)
        except UNFIT:
            fires.append(dead_fire(message, UNREADABLE, self._now, is_deferred))
        else:
            self._stale += 1
            if following is None:
                self._passed_offsets += offsets_of(message)
            self._replace_message(message, following, is_deferred)

    def _replace_message(
        self, message: Pending, following: Pending | None, is_deferred: bool, delivered: bool = True
    ) -> None:
        """Replace a message in the store by its next delivery, if any. `delivered` False: it never fired."""
        changes = self._plan_changes()
        (changes.removed_deferred if is_deferred else changes.removed).append(message)
        if following is not None:
            changes.added.append(following)
            changes.ids[message.uuid] = IdState(IdKind.PENDING, following.due_ms, message.offset)
            self.on_added((following,))
        else:
            forget_ms = self._now + self._limits.id_retention_ms
            kind, at_ms = (IdKind.FIRED, message.due_ms) if delivered else (IdKind.CANCELLED, self._now)
            changes.ids[message.uuid] = IdState(kind, at_ms, message.offset, forget_ms)

    def make_dead_letters(
        self, fires: Iterable[FireCommand], reason: str = TOPIC_DELETED
    ) -> list[FireCommand]:
        """Return fires that move the same messages to the dead letters."""
        return [dead_fire(fire.message, reason, self._now, fire.is_deferred) for fire in fires]


def _total_bytes(messages: list[Pending]) -> int:
    return sum(len(message.delivery) for message in messages)


class RecentKeys:
    """The keys of recently added messages by topic, with which a message is found in the middle of a storm.

    The main scan reads at most a million messages a second, so in a storm it would reach a new message too
    late. Therefore the added keys are cached, at most `keys_max`; beyond that, the topic with the most keys,
    that of the storm, is dropped. Keys from before the process start are missing, and some keys may be stale.
    """

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._topics: dict[str, list[DueKey]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, topic: str, key: DueKey) -> None:
        """Add the key of a new waiting message."""
        if self._count >= self._keys_max:
            largest = max(self._topics, key=lambda name: len(self._topics[name]))
            self._count -= len(self._topics.pop(largest))
        heappush(self._topics.setdefault(topic, []), key)
        self._count += 1

    def due(self, now_ms: int, without: Container[str], limit: int) -> list[DueKey]:
        """Remove and return due keys, a fair share of each topic that is not in `without`."""
        due_keys: list[DueKey] = []
        share = max(limit // max(len(self._topics), 1), 1)
        for topic in list(self._topics):
            if topic in without:
                continue
            keys = self._topics[topic]
            count = 0
            while keys and keys[0].due_ms <= now_ms and count < share and len(due_keys) < limit:
                due_keys.append(heappop(keys))
                count += 1
            self._count -= count
            self._topics.pop(topic)
            if keys:
                self._topics[topic] = keys  # behind the others, whose turn comes first then
            if len(due_keys) >= limit:
                break
        return due_keys

    def trim(self, to: DueKey) -> None:
        """Drop the keys up to `to`, whose messages have fired or are in flight."""
        for topic, keys in list(self._topics.items()):
            if keys and keys[0] <= to:
                remaining = [key for key in keys if key > to]
                self._count -= len(keys) - len(remaining)
                heapify(remaining)
                keys[:] = remaining
            if not keys:
                del self._topics[topic]
