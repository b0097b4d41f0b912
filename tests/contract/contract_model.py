"""The naive model that an engine is driven beside: lists and sets, no cleverness at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.records import NewRecord, ProgressDelta, ProgressView


@dataclass
class ModelProgress:
    """Finished offsets as a plain set."""

    done: set[int] = field(default_factory=set)
    floor: int = 0
    started: bool = False
    attempts: dict[int, int] = field(default_factory=dict)
    epoch: int = 0
    generation: int = 0

    def refuses(self, delta: ProgressDelta) -> bool:
        if delta.epoch < self.epoch:
            return True
        if delta.reset_to is None:
            return delta.generation != self.generation
        return delta.generation <= self.generation

    def apply(self, delta: ProgressDelta) -> None:
        self.epoch, self.generation = delta.epoch, delta.generation
        if delta.reset_to is not None:
            self.floor, self.done, self.attempts, self.started = delta.reset_to, set(), {}, True
        for start, end in delta.finished:
            self.done.update(range(start, end))
            self.started = True
        while self.floor in self.done:
            self.floor += 1
        for offset, attempts in delta.attempts:
            self.attempts[offset] = max(attempts, self.attempts.get(offset, 0))
        self.attempts = {
            offset: attempts
            for offset, attempts in self.attempts.items()
            if offset >= self.floor and offset not in self.done
        }

    def view(self) -> ProgressView:
        ranges: list[tuple[int, int]] = []
        for offset in sorted(offset for offset in self.done if offset > self.floor):
            if ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
        committed = self.floor if self.started else None
        return ProgressView(committed, tuple(ranges), dict(self.attempts), self.epoch, self.generation)


@dataclass
class ModelRecord:
    """What must come back."""

    new: NewRecord
    stored_ms: int
    order: int  # of storing, over all topics


@dataclass
class ModelTopic:
    incarnation: int
    queues: list[list[ModelRecord]]
    progress: dict[tuple[str, int], ModelProgress] = field(default_factory=dict)


class Model:
    """Everything an engine should hold."""

    def __init__(self) -> None:
        self.topics: dict[str, ModelTopic] = {}
        self.settings: dict[str, bytes] = {}
        self.last_ms = 0
        self._stored = 0

    def takes(self, record: NewRecord) -> bool:
        topic = self.topics.get(record.topic)
        return topic is not None and record.queue_id < len(topic.queues)

    def store(self, record: NewRecord, wall_ms: int) -> int:
        self.last_ms = max(self.last_ms, wall_ms)
        self._stored += 1
        queue = self.topics[record.topic].queues[record.queue_id]
        queue.append(ModelRecord(record, self.last_ms, self._stored))
        return len(queue) - 1

    def progress(self, group: str, topic: str, queue_id: int) -> ModelProgress:
        return self.topics[topic].progress.setdefault((group, queue_id), ModelProgress())
