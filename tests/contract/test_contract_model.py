"""An engine beside a naive model: long random stories, compared after every step.

Engines that keep what they stored are closed and opened in the middle of the story. The environment
variable DDMQ_MODEL_SCALE multiplies the number of stories, for long runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from backend.records import AppendStatus, Bounds, CommitBatch, NewRecord, ProgressDelta, QueueRef, ReadStatus
from backend.testing.kit import Kit
from ddmq_common.errors import FencedError, UnknownTopicError
from tests.contract.contract_engines import MODELLED
from tests.contract.contract_model import Model, ModelProgress, ModelTopic
from tests.examples import examples
from tests.support.waits import done

TOPICS = ["a", "b", "%RETRY%g"]
GROUPS = ["g", "h"]
KEYS = [b"", b"k1", b"k2"]
INDEXES = st.integers(0, 24)  # the n-th queue that exists, counted round; 24 in an append: one that does not
Drawn = tuple[str, int, str, list[tuple[int, int]], list[tuple[int, int]]]
NOWHERE = ("a", 3)
CONTENT = st.tuples(INDEXES, st.sampled_from(KEYS), st.binary(max_size=20))
RANGES = st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
ATTEMPTS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=2)
DELTAS = st.tuples(
    st.sampled_from(GROUPS),
    INDEXES,
    st.sampled_from(["same"] * 6 + ["up", "reset", "reset", "late", "old reset"]),
    st.lists(RANGES, max_size=3),
    ATTEMPTS,
)
SETTINGS = st.dictionaries(
    st.sampled_from(["group/1", "group/2", "sub/1"]), st.none() | st.binary(max_size=5), max_size=2
)


class EngineMachine(RuleBasedStateMachine):
    """Rules act on both; invariants compare. `engine_name` is set by the subclass per engine."""

    engine_name: str

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ddmq-contract-"))
        self.engine = MODELLED[self.engine_name](self.directory)
        self.kit = Kit(self.engine)
        self.model = Model()
        self.deleted: list[QueueRef] = []

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- topics

    @initialize()
    def begin(self) -> None:
        self.make("a", 2)

    @rule(name=st.sampled_from(TOPICS), queues=st.integers(1, 3))
    def make(self, name: str, queues: int) -> None:
        info = self.kit.make(name, queues)
        topic = self.model.topics.get(name)
        if topic is None:
            assert info.queues == queues
            assert all(old.incarnation != info.incarnation for old in self.deleted if old.topic == name)
            self.model.topics[name] = ModelTopic(info.incarnation, [[] for _ in range(queues)])
        else:
            assert (info.incarnation, info.queues) == (topic.incarnation, len(topic.queues))

    @rule(name=st.sampled_from(TOPICS), more=st.integers(0, 1))
    def grow(self, name: str, more: int) -> None:
        info = self.kit.backend.topic(name)
        if info is not None and info.queues + more <= 3:
            done(self.kit.backend.put_topic(replace(info, queues=info.queues + more), self.kit.soon))
            self.model.topics[name].queues += [[] for _ in range(more)]

    @precondition(lambda self: len(self.deleted) < 8)
    @rule(name=st.sampled_from(TOPICS))
    def delete(self, name: str) -> None:
        topic = self.model.topics.pop(name, None)
        if topic is None:
            with pytest.raises(UnknownTopicError):
                done(self.kit.backend.delete_topic(name, self.kit.soon))
        else:
            self.deleted += self.kit.queues(name)
            done(self.kit.backend.delete_topic(name, self.kit.soon))

    # --- writing

    @rule(contents=st.lists(CONTENT, min_size=1, max_size=5), step_ms=st.sampled_from([0, 0, 1, 500, -2000]))
    def append(self, contents: list[tuple[int, bytes, bytes]], step_ms: int) -> None:
        self.kit.clock.now_ms += step_ms
        records = self._records(contents)
        for record, result in zip(records, self.kit.append(*records), strict=True):
            if self.model.takes(record):
                offset = self.model.store(record, self._stored_ms(record, result.offset))
                assert (result.status, result.offset) == (AppendStatus.STORED, offset)
            else:
                assert (result.status, result.offset) == (AppendStatus.REFUSED, -1)
                assert isinstance(result.error, UnknownTopicError)

    def _stored_ms(self, record: NewRecord, offset: int) -> int:
        """What the engine says; it never goes back, and not behind the wall clock."""
        queue = self.kit.queues(record.topic)[record.queue_id]
        stored_ms = done(self.kit.backend.read(queue, offset, 1, 0)).stored_ms(0)
        assert stored_ms >= max(self.model.last_ms, self.kit.clock.now_ms)
        return stored_ms

    @rule(contents=st.lists(CONTENT, max_size=3), deltas=st.lists(DELTAS, max_size=3), changes=SETTINGS)
    def commit(
        self, contents: list[tuple[int, bytes, bytes]], deltas: list[Drawn], changes: dict[str, bytes | None]
    ) -> None:
        records = self._records(contents)
        progress = [delta for delta in map(self._delta, deltas) if delta is not None]
        call = self.kit.backend.commit(CommitBatch(records, progress, changes), self.kit.soon)
        if not all(map(self.model.takes, records)):
            with pytest.raises((UnknownTopicError, FencedError)):
                done(call)
        elif self._fenced(progress):
            with pytest.raises(FencedError):
                done(call)
        else:
            offsets = [result.offset for result in done(call)]
            assert offsets == [
                self.model.store(record, self._stored_ms(record, offset))
                for record, offset in zip(records, offsets, strict=True)
            ]
            for delta in progress:
                self._progress_of(delta).apply(delta)
            for key, value in changes.items():
                self.model.settings.pop(key, None)
                if value is not None:
                    self.model.settings[key] = value

    @rule(
        group=st.sampled_from(GROUPS), index=INDEXES, ranges=st.lists(RANGES, max_size=3), attempts=ATTEMPTS
    )
    def acknowledge(
        self, group: str, index: int, ranges: list[tuple[int, int]], attempts: list[tuple[int, int]]
    ) -> None:
        delta = self._delta((group, index, "same", ranges, attempts))
        if delta is not None:
            assert self.kit.commit(progress=[delta]) == []
            self._progress_of(delta).apply(delta)

    @rule(group=st.sampled_from(GROUPS), index=INDEXES, fives=st.integers(0, 4))
    def reset(self, group: str, index: int, fives: int) -> None:
        delta = self._delta((group, index, "reset", [(0, 1)] * fives, []))
        if delta is not None:
            assert self.kit.commit(progress=[delta]) == []
            self._progress_of(delta).apply(delta)

    @rule(contents=st.lists(CONTENT, min_size=2, max_size=8))
    def append_without_waiting(self, contents: list[tuple[int, bytes, bytes]]) -> None:
        records = self._records(contents)
        calls = [self.kit.backend.append([record], self.kit.soon) for record in records]
        for record, call in zip(records, calls, strict=True):
            offset = done(call)[0].offset
            takes = self.model.takes(record)
            expected = self.model.store(record, self._stored_ms(record, offset)) if takes else -1
            assert offset == expected

    @precondition(lambda self: self.engine.persists)
    @rule()
    def reopen(self) -> None:
        self.engine.reopen()

    # --- asking

    @rule(
        index=INDEXES,
        offset=st.integers(0, 40),
        count_max=st.integers(1, 6),
        bytes_max=st.sampled_from([0, 1, 7, 9, 12, 15, 16, 20, 30, 200]),
    )
    def read(self, index: int, offset: int, count_max: int, bytes_max: int) -> None:
        queue = self._queue(index)
        if queue is None:
            return
        stored = self.model.topics[queue.topic].queues[queue.queue_id]
        batch = self.kit.read(queue, offset, count_max, bytes_max)
        if offset > len(stored):
            assert (batch.status, batch.bounds) == (ReadStatus.OUT_OF_RANGE, Bounds(0, len(stored)))
            return
        expected, size = [], 0
        for record in stored[offset : offset + count_max]:
            size += len(record.new.delivery)
            if expected and size > bytes_max:
                break
            expected.append(record)
        assert batch.status is (ReadStatus.DATA if expected else ReadStatus.NONE)
        if not self.kit.engine.fills_batches:
            expected = expected[: max(len(batch.offsets), min(1, len(expected)))]
        assert [bytes(delivery) for delivery in batch.deliveries] == [
            record.new.delivery for record in expected
        ]
        assert list(batch.offsets) == list(range(offset, offset + len(expected)))
        assert batch.next_offset == offset + len(expected)
        for number, record in enumerate(expected):
            full = batch.record(number)
            assert (full.message_id, full.stored_ms, full.born_ms) == (
                record.new.message_id,
                record.stored_ms,
                record.new.born_ms,
            )

    @rule(index=INDEXES, back_ms=st.sampled_from([-1, 0, 0, 1, 499, 500, 501, 5000]))
    def offset_for_time(self, index: int, back_ms: int) -> None:
        queue = self._queue(index)
        if queue is not None:
            stored = self.model.topics[queue.topic].queues[queue.queue_id]
            wall_ms = self.model.last_ms - back_ms
            expected = sum(record.stored_ms < wall_ms for record in stored)
            assert done(self.kit.backend.offset_for_time(queue, wall_ms)) == expected

    @rule(name=st.sampled_from(TOPICS), key=st.sampled_from(KEYS[1:]), count_max=st.integers(1, 4))
    def find(self, name: str, key: bytes, count_max: int) -> None:
        if name in self.model.topics:
            stored = [record for queue in self.model.topics[name].queues for record in queue]
            hits = sorted((record for record in stored if record.new.key == key), key=lambda hit: -hit.order)
            matches = done(self.kit.backend.find(name, key=key, count_max=count_max))
            assert [hit.message_id for hit in matches] == [hit.new.message_id for hit in hits][:count_max]

    @invariant()
    def same_topics_and_settings(self) -> None:
        topics = {name: (info.incarnation, info.queues) for name, info in self.kit.backend.topics().items()}
        expected = {name: (topic.incarnation, len(topic.queues)) for name, topic in self.model.topics.items()}
        assert {name: topics[name] for name in topics if name in TOPICS} == expected
        for key in ("group/1", "group/2", "sub/1"):
            assert self.kit.backend.setting(key) == self.model.settings.get(key)

    @invariant()
    def same_bounds(self) -> None:
        queues = [queue for name in self.model.topics for queue in self.kit.queues(name)]
        expected = [Bounds(0, len(queue)) for topic in self.model.topics.values() for queue in topic.queues]
        assert done(self.kit.backend.bounds([*queues, *self.deleted])) == [
            *expected,
            *[None] * len(self.deleted),
        ]

    @invariant()
    def same_progress(self) -> None:
        for group in GROUPS:
            for name, topic in self.model.topics.items():
                views = done(self.kit.backend.progress(group, self.kit.queues(name)))
                blank = ModelProgress()
                expected = [topic.progress.get((group, index), blank) for index in range(len(topic.queues))]
                assert views == [progress.view() for progress in expected]

    # --- making

    def _records(self, contents: list[tuple[int, bytes, bytes]]) -> list[NewRecord]:
        records = []
        for index, key, body in contents:
            queue = self._queue(index)
            topic, queue_id = NOWHERE if queue is None or index == 24 else (queue.topic, queue.queue_id)
            records.append(self.kit.new(topic, queue_id, body, key))
        return records

    def _queue(self, index: int) -> QueueRef | None:
        existing = [
            QueueRef(name, topic.incarnation, number)
            for name, topic in sorted(self.model.topics.items())
            for number in range(len(topic.queues))
        ]
        return existing[index % len(existing)] if existing else None

    def _delta(self, drawn: Drawn) -> ProgressDelta | None:
        group, index, kind, finished, attempts = drawn
        queue = self._queue(index)
        if queue is None:
            return None
        progress = self.model.progress(group, queue.topic, queue.queue_id)
        epoch, generation = progress.epoch, progress.generation
        if kind == "reset":
            return ProgressDelta(group, queue, epoch, generation + 1, reset_to=len(finished) * 5)
        if kind == "old reset":
            return ProgressDelta(group, queue, epoch, generation, reset_to=0)
        epoch += {"up": 1, "late": -1}.get(kind, 0)
        return ProgressDelta(group, queue, max(0, epoch), generation, tuple(finished), tuple(attempts))

    def _progress_of(self, delta: ProgressDelta) -> ModelProgress:
        return self.model.progress(delta.group, delta.queue.topic, delta.queue.queue_id)

    def _fenced(self, progress: list[ProgressDelta]) -> bool:
        """What the model says of the deltas applied one after the other to copies."""
        copies: dict[tuple[str, QueueRef], ModelProgress] = {}
        for delta in progress:
            current = self._progress_of(delta)
            copy = copies.setdefault(
                (delta.group, delta.queue), ModelProgress(epoch=current.epoch, generation=current.generation)
            )
            if copy.refuses(delta):
                return True
            copy.apply(delta)
        return False


def _run(name: str, stories: int, steps: int) -> None:
    machine = type(f"Machine_{name}", (EngineMachine,), {"engine_name": name})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=stories * int(os.environ.get("DDMQ_MODEL_SCALE", "1")),
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(1800)  # a failing story is shortened before it is shown
@pytest.mark.parametrize("name", list(MODELLED))
def test_an_engine_agrees_with_the_model(name: str) -> None:
    _run(name, stories=examples(15), steps=30)


@pytest.mark.long
@pytest.mark.timeout(18_000)
@pytest.mark.parametrize("name", list(MODELLED))
def test_an_engine_agrees_with_the_model_at_length(name: str) -> None:
    _run(name, stories=15, steps=100)
