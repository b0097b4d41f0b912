"""The levels' clockwork against a naive model: a list per level, looked at whenever anything happens.

Messages come with due times in any order, topics are closed, deleted and made again, reads and commits fail,
outcomes are refused; whatever happens, a level fires its messages in order, none before it is due, each
once, to its topic or, for a reason the model agrees with, to the dead letters; and it never stops for good.
"""

from __future__ import annotations

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
        self.level = self.restarted(0)

    def restarted(self, position: int) -> Level:
        return Level(QueueRef(SCHEDULE_TOPIC, 1, 0), position, 1, 0, self.limits, self.targets)

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

    @rule()
    def process_restarts(self) -> None:
        """What was committed is on record; what was under way is not."""
        committed = self.done[-1][0] + 1 if self.done else 0
        self.fire = self.read_at = self.waiting_at = None
        self.targets = Targets(lambda name: self.visible.get(name), PATIENCE_S)
        self.level = self.restarted(committed)

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
        else:
            assert isinstance(step, FireRun)
            self.fire = step
            self.check(step)

    def check(self, fire: FireRun) -> None:
        """What is fired now are the next messages, due, and within the limits."""
        start = self.done[-1][0] + 1 if self.done else 0
        offsets = [outlet.record.offset for outlet in fire.fires]
        assert offsets == [n for n in range(start, offsets[-1] + 1) if self.queue[n] is not GAP]
        assert all(record is GAP for record in self.queue[offsets[-1] + 1 : fire.end])
        assert all(outlet.record.due_ms <= self.clock_ms for outlet in fire.fires)
        assert len(offsets) <= self.limits.count_max
        size = sum(len(outlet.record.delivery) for outlet in fire.fires)
        assert size <= self.limits.bytes_max or len(offsets) == 1

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
        upto = offsets[-1] + 1 if offsets else 0
        assert offsets == [n for n in range(upto) if self.queue[n] is not GAP]

    def teardown(self) -> None:
        """With topics open, nothing failing and time passing, all that is left is fired."""
        if not hasattr(self, "level"):
            return
        self.there = self.visible = {name: TargetTopic(2, True) for name in TOPICS}
        for _ in range(10 * len(self.queue) + 20):
            if self.level.state is LevelState.WAITING and self.waiting_at == len(self.queue):
                break
            self.time(4_000)
            self.move(fails=False, count=5)
            self.each_once_and_in_order()
        expected = [n for n, record in enumerate(self.queue) if record is not GAP]
        assert [offset for offset, _, _ in self.done] == expected, "it stopped for good"


LevelMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestLevelClockwork = LevelMachine.TestCase
