"""A producer rig beside which a delay service seems to run: it holds the shards, the test speaks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.port import Assignment, Join
from backend.records import NewRecord, QueueRef, TopicInfo
from ddmq_common.delays.command import (
    COMMAND_PROPERTY,
    CommandOutcome,
    DelayCommand,
    decode_command,
    encode_outcome,
)
from ddmq_common.delivery import encode
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC, OUTCOME_TOPIC
from tests.played_memory import PlayedMemory
from tests.support.waits import until
from tests.unit.producer.producer_rig import ProducerRig

TOPICS = (
    TopicInfo("orders", 0, 4),
    TopicInfo("none", 0, 1, delay="none"),
    TopicInfo("only", 0, 1, delay="only"),
    TopicInfo(DELAY_TOPIC, 0, 16),
)


class Shards:
    """A member that takes whatever it is given."""

    def __init__(self, backend: PlayedMemory) -> None:
        self.queues: set[QueueRef] = set()
        self.membership = backend.join(Join(DELAY_GROUP, DELAY_TOPIC), self)

    def assigned(self, assignment: Assignment) -> None:
        self.queues.update(assignment.queues)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self.queues.difference_update(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self.queues.difference_update(queues)


class ProducerDelayRig(ProducerRig):
    """`shards.membership.leave()` ends the delay service."""

    def __init__(self, topics: Sequence[TopicInfo] = TOPICS, shards: int = 16, **config: Any) -> None:
        super().__init__(topics, **config)
        self.shards = Shards(self.backend)
        until(lambda: len(self.shards.queues) == shards)

    def records(self, count: int = 1) -> list[NewRecord]:
        """What the backend was asked to append, once there are so many."""
        until(lambda: len(self.backend.sent) >= count)
        return [one.records[0] for one in self.backend.sent]

    def command(self, at: int = -1) -> DelayCommand:
        """The command of one of them."""
        record = self.records(max(at + 1, 1))[at]
        assert record.topic == DELAY_TOPIC
        return decode_command((record.system or {})[COMMAND_PROPERTY])

    def decide(self, command: DelayCommand, code: int, **more: Any) -> None:
        """Write an outcome as the delay service does."""
        outcome = CommandOutcome(command.reply_id, code, **more)
        delivery = encode(b"", encode_outcome(outcome), b"", None)
        record = NewRecord(OUTCOME_TOPIC, command.reply_queue, bytes(16), 0, delivery)
        PlayedMemory.append(self.backend, [record], self.clock.monotonic() + 10).wait(10)
