"""The levels' clockwork against a naive model: a list per level, looked at whenever anything happens.

Messages come with due times in any order, topics are closed, deleted and made again, reads and commits fail,
outcomes are refused, and messages are removed before they are due; whatever happens, a level fires the others
in order, none before it is due, each once, to its topic or, for a reason the model agrees with, to the dead
letters; and it never stops for good.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from backend.internal_topics import REAL_QUEUE, REAL_TOPIC
from backend.records import QueueRef, StoredRecord
from ddmq_common.names import SCHEDULE_TOPIC
from delay_service.core.level import (
    FireRun,
    Level,
    LevelLimits,
    LevelState,
    PauseUntil,
    Read,
    SleepUntil,
    WaitForData,
)
from delay_service.core.level_targets import PUT_OFF_S_MIN, Targets
from delay_service.due.backend import REJECTED, TOPIC_DELETED, UNREADABLE, TargetTopic
from tests.examples import examples

PATIENCE_S = 10.0
TOPICS = ("a", "b", "c")
GAP = None


class LevelMachine(RuleBasedStateMachine):
    """One level. `visible`: the topics that the process knows, maybe older than the engine's, `there`."""

    @initialize(count_max=st.sampled_from([1, 2, 8]), bytes_max=st.sampled_from([1, 40, 1_000]))
    def begin(self, count_max: int, bytes_max: int) -> None:
        self.there: dict[str, TargetTopic] = {name: TargetTopic(2, True) for name in TOPICS}
        self.visible = dict(self.there)
        self.limits = LevelLimits(count_max, bytes_max, 0.1, 1.0)
        self.targets = Targets(lambda name: self.visible.get(name), PATIENCE_S)
        self.queue: list[StoredRecord | None] = []
        self.now_s, self.clock_ms = 0.0, 1_000
        self.done: list[tuple[int, str, str]] = []  # offset, topic, reason
        self.closed_since: dict[str, float] = {}
        self.fire: FireRun | None = None
        self.read_at: int | None = None
        self.waiting_at: int | None = None
        self.removal: set[int] = set()  # in progress
        self.removed: set[int] = set()
        self.level = self.restarted()

    @property
    def fired_end(self) -> int:
        return self.done[-1][0] + 1 if self.done else 0

    def restarted(self) -> Level:
        finished = [(offset, offset + 1) for offset in sorted(self.removed) if offset >= self.fired_end]
        queue = QueueRef(SCHEDULE_TOPIC, 1, 0)
        return Level(queue, self.fired_end, 1, 0, self.limits, self.targets, finished)

    # --- the world

    @rule(
        topics=st.lists(st.sampled_from((*TOPICS, "")), min_size=1, max_size=6),
        wait_ms=st.integers(0, 3_000),
        size=st.integers(1, 30),
    )
    def messages(self, topics: list[str], wait_ms: int, size: int) -> None:
        for index, topic in enumerate(topics):
            self.message(topic, wait_ms + 200 * index, size)

    def message(self, topic: str, wait_ms: int, size: int) -> None:
        system = {REAL_TOPIC: topic, REAL_QUEUE: "1"} if topic else {}
        offset = len(self.queue)
        self.queue.append(
            StoredRecord(
                SCHEDULE_TOPIC, 0, offset, offset, bytes(16), 0, self.clock_ms, 0, self.clock_ms + wait_ms,
                b"x" * size, system,
            )
        )  # fmt: skip
        self.woken()

    @rule()
    def damage(self) -> None:
        self.queue.append(GAP)
        self.woken()

    def woken(self) -> None:
        if self.waiting_at is not None and len(self.queue) > self.waiting_at:
            self.waiting_at = None
            self.level.on_wait_end(True)

    @rule(ms=st.sampled_from([1, 50, 300, 1_000, 4_000]))
    def time(self, ms: int) -> None:
        self.now_s += ms / 1_000
        self.clock_ms += ms

    @rule(topic=st.sampled_from(TOPICS), what=st.sampled_from(["gone", "closed", "narrow", "open"]))
    def topic_changes(self, topic: str, what: str) -> None:
        if what == "gone":
            self.there.pop(topic, None)
        else:
            self.there[topic] = TargetTopic(1 if what == "narrow" else 2, what != "closed")

    @rule()
    def news_of_topics(self) -> None:
        self.visible = dict(self.there)

    @rule(removal_is_stored=st.booleans())
    def process_restarts(self, removal_is_stored: bool) -> None:
        """What was committed is on record; a fire under way is not, and a removal under way may be."""
        if removal_is_stored:
            self.removed |= self.removal
        self.fire = self.read_at = self.waiting_at = None
        self.removal = set()
        self.targets = Targets(lambda name: self.visible.get(name), PATIENCE_S)
        self.level = self.restarted()

    # --- removals

    @rule(picks=st.sets(st.integers(0, 40), min_size=1, max_size=5))
    def removal_begins(self, picks: set[int]) -> None:
        assert self.level.can_remove == (self.fire is None and not self.removal)
        for offset in picks:
            has_left = offset < self.fired_end or offset in self.removed
            assert self.level.has_left(offset) == has_left or self.queue[offset] is GAP
        present = {n for n in picks if n < len(self.queue) and self.queue[n] is not GAP}
        offsets = {n for n in present if not self.level.has_left(n)}
        if not self.level.can_remove or offsets != present:
            with pytest.raises(ValueError, match="cannot begin now"):
                self.level.begin_removal(sorted(present) or [0])
        elif offsets:
            self.level.begin_removal(sorted(offsets))
            self.removal = offsets

    @rule(is_stored=st.booleans())
    def removal_ends(self, is_stored: bool) -> None:
        if not self.removal:
            return
        if is_stored:
            self.level.on_removed()
            self.removed |= self.removal
        else:
            self.level.on_not_removed()
        self.removal = set()

    # --- the shell

    @rule(moves=st.lists(st.integers(0, 9), min_size=3, max_size=25))
    def runs(self, moves: list[int]) -> None:
        """One thing after the other; a 9 is a failure, if something is under way that can fail."""
        for move in moves:
            self.move(fails=move == 9, count=1 + move % 5)

    def move(self, fails: bool, count: int) -> None:
        if fails and (self.read_at is not None or self.fire is not None):
            self.it_fails()
        elif self.read_at is not None:
            self.read_ends(count)
        elif self.fire is not None:
            self.commit_ends()
        elif self.waiting_at is None:
            self.step()

    def step(self) -> None:
        step = self.level.step(self.clock_ms, self.now_s)
        if isinstance(step, Read):
            self.read_at = step.offset
        elif isinstance(step, WaitForData):
            self.waiting_at = step.offset
            self.woken()
        elif isinstance(step, SleepUntil):
            assert step.due_ms > self.clock_ms
        elif isinstance(step, PauseUntil):
            assert self.now_s < step.at_s <= self.now_s + self.limits.pause_s_max
        elif isinstance(step, FireRun):
            assert not self.removal
            self.fire = step
            self.check(step)
        else:
            assert self.removal, "only a removal keeps a level from doing anything"

    def check(self, fire: FireRun) -> None:
        """What is fired now are the next messages, due, and within the limits."""
        offsets = [outlet.record.offset for outlet in fire.fires]
        assert offsets == self.unfired(self.fired_end, offsets[-1] + 1)
        assert not self.unfired(offsets[-1] + 1, fire.end)
        assert all(outlet.record.due_ms <= self.clock_ms for outlet in fire.fires)
        assert len(offsets) <= self.limits.count_max
        size = sum(len(outlet.record.delivery) for outlet in fire.fires)
        assert size <= self.limits.bytes_max or len(offsets) == 1

    def unfired(self, start: int, end: int) -> list[int]:
        """The offsets in this range that the level has to fire."""
        return [n for n in range(start, end) if self.queue[n] is not GAP and n not in self.removed]

    def read_ends(self, count: int) -> None:
        at, self.read_at = self.read_at, None
        assert at is not None
        end = min(at + count, len(self.queue))
        records = [record for record in self.queue[at:end] if record is not GAP]
        if records or end < len(self.queue):
            self.level.add_records(records, end, self.clock_ms)
        else:
            self.level.on_queue_end(end)

    def it_fails(self) -> None:
        self.read_at = self.fire = None
        self.level.on_failed(self.now_s)

    def commit_ends(self) -> None:
        """All or nothing, as an engine with these topics decides it."""
        fire, self.fire = self.fire, None
        assert fire is not None
        alive = [outlet for outlet in fire.fires if not outlet.reason and not outlet.put_off_ms]
        is_unknown = any(
            one.topic not in self.there or one.queue_id >= self.there[one.topic].queues for one in alive
        )
        closed = any(one.topic in self.there and not self.there[one.topic].writable for one in alive)
        if is_unknown or closed:
            for one in alive if len(fire.fires) == 1 else ():
                self.closed_since.setdefault(one.topic, self.now_s)
            self.level.on_rejected(fire, topic_unknown=is_unknown, now_s=self.now_s)
            return
        for outlet in fire.fires:
            if outlet.put_off_ms:
                closed_s = self.now_s - self.closed_since[outlet.topic]
                assert outlet.put_off_ms <= 1_000 * max(PUT_OFF_S_MIN, min(closed_s, PATIENCE_S))
                self.message(outlet.topic, outlet.put_off_ms, len(outlet.record.delivery))
            self.agree(outlet.topic, outlet.reason)
            self.done.append((outlet.record.offset, outlet.topic, outlet.reason))
        self.level.on_fired(fire)

    def agree(self, topic: str, reason: str) -> None:
        if reason == UNREADABLE:
            assert topic == ""
        elif reason == TOPIC_DELETED:
            assert topic in self.closed_since, "the engine has said so"
        elif reason == REJECTED:
            assert self.now_s - self.closed_since[topic] >= PATIENCE_S
        else:
            assert topic

    # --- what always holds

    @invariant()
    def each_once_and_in_order(self) -> None:
        if not hasattr(self, "done"):
            return
        offsets = [offset for offset, _, _ in self.done]
        assert self.removed.isdisjoint(offsets)
        assert offsets == self.unfired(0, self.fired_end)
        assert all(self.level.has_left(offset) for offset in (*offsets, *self.removed))
        assert self.level.count_waiting(len(self.queue)) >= len(self.unfired(self.fired_end, len(self.queue)))

    def teardown(self) -> None:
        """With topics open, nothing failing and time passing, all that is left is fired."""
        if not hasattr(self, "level"):
            return
        self.there = self.visible = {name: TargetTopic(2, True) for name in TOPICS}
        self.removal_ends(is_stored=True)  # type: ignore[call-arg]
        for _ in range(10 * len(self.queue) + 20):
            if self.level.state is LevelState.WAITING and self.waiting_at == len(self.queue):
                break
            self.time(4_000)
            self.move(fails=False, count=5)
            self.each_once_and_in_order()
        expected = self.unfired(0, len(self.queue))
        assert [offset for offset, _, _ in self.done] == expected, "it stopped for good"


LevelMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestLevelClockwork = LevelMachine.TestCase
