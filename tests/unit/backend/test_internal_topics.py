"""Internal topics are made once, grow to what is asked for and never shrink."""

from __future__ import annotations

import pytest

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.memory import MemoryBackend
from backend.records import TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.errors import TryLaterError


class Refusing(MemoryBackend):
    """Changes no topic, and says so at once."""

    def put_topic(
        self,
        info: TopicInfo,
        deadline: float,
        into: Completion[TopicInfo] | None = None,
        topics_max: int | None = None,
    ) -> Completion[TopicInfo]:
        raise TryLaterError("the log is full")


def queues_after(backend: MemoryBackend, *counts: int) -> list[int]:
    return [ready_topic(backend, "%DLQ%g", queues, 1e9).wait(10).queues for queues in counts]


def test_a_topic_is_created_grows_and_does_not_shrink() -> None:
    backend = MemoryBackend(ManualClock())
    assert queues_after(backend, 2, 2, 5, 1) == [2, 2, 5, 5]
    assert backend.topics()["%DLQ%g"].queues == 5


def test_what_the_engine_refuses_at_once_is_the_answer() -> None:
    topic = ready_topic(Refusing(ManualClock()), "%DLQ%g", 1, 1e9)
    with pytest.raises(TryLaterError, match="full"):
        topic.result()
