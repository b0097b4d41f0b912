"""What topics.yaml makes of the topics of a log, at the start and at every reload."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.memory import MemoryBackend
from backend.records import TopicInfo
from ddmq.server.admin import topics
from ddmq.server.config import TopicEntry
from ddmq_common.clock import SystemClock
from ddmq_common.errors import CallerError

PATH = Path("conf/topics.yaml")
CLOCK = SystemClock()


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


def apply(backend: MemoryBackend, path: Path = PATH, **entries: TopicEntry) -> list[str]:
    return topics.apply_file(backend, CLOCK, entries, str(path))


def info(backend: MemoryBackend, name: str) -> TopicInfo:
    info = backend.topic(name)
    assert info is not None
    return info


def test_a_topic_that_left_the_file_belongs_to_the_command_line(backend: MemoryBackend) -> None:
    assert apply(backend, a=TopicEntry(queues=2), b=TopicEntry(writable=False)) == ["a", "b"]
    with pytest.raises(CallerError, match=r"'a' stands in conf/topics.yaml"):
        topics.update(backend, CLOCK, "a", {"queues": 3})
    assert apply(backend, b=TopicEntry(writable=False)) == ["a"]
    assert info(backend, "a").queues == 2
    assert topics.update(backend, CLOCK, "a", {"queues": 3}).queues == 3
    assert apply(backend, b=TopicEntry(writable=False)) == []
    assert apply(backend, a=TopicEntry(queues=4)) == ["a", "b"]
    assert info(backend, "a").source == str(PATH)


def test_another_file_and_the_command_line_keep_theirs(backend: MemoryBackend) -> None:
    other = Path("elsewhere/topics.yaml")
    apply(backend, other, theirs=TopicEntry())
    topics.create(backend, CLOCK, "own", {})
    assert apply(backend, a=TopicEntry()) == ["a"]
    assert [info(backend, name).source for name in ("theirs", "own")] == [str(other), "log"]


def test_a_topic_takes_no_larger_bodies_than_the_engine(backend: MemoryBackend) -> None:
    most = backend.capabilities.body_bytes_max
    topics.create(backend, CLOCK, "own", {"body_bytes_max": most})
    with pytest.raises(CallerError, match=f"body_bytes_max is {most + 1}; allowed: at most {most}"):
        topics.update(backend, CLOCK, "own", {"body_bytes_max": most + 1})
    with pytest.raises(CallerError, match=f"topic 'two': body_bytes_max is {most + 1}"):
        topics.create(backend, CLOCK, "two", {"body_bytes_max": most + 1})
    with pytest.raises(CallerError, match=f"conf/topics.yaml: topics.a.body_bytes_max is {most + 1}"):
        apply(backend, a=TopicEntry(body_bytes_max=most + 1))


def test_a_file_that_is_wrong_changes_nothing(backend: MemoryBackend) -> None:
    apply(backend, a=TopicEntry(queues=2), gone=TopicEntry())
    with pytest.raises(CallerError, match=r"topics.a.queues: is 1; the topic has 2"):
        apply(backend, new=TopicEntry(), a=TopicEntry(queues=1))
    assert backend.topic("new") is None
    assert info(backend, "gone").source == str(PATH)
