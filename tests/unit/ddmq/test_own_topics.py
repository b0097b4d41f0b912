"""What an operator may change of the topics that the system makes for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.memory import MemoryBackend
from backend.records import Durability, TopicInfo
from ddmq.server.admin import topics
from ddmq_common.clock import SystemClock
from ddmq_common.errors import CallerError

OWN = ("%DLQ%g", "%RETRY%g", "%DELAY", "SCHEDULE_TOPIC_XXXX")


@pytest.fixture
def backend() -> MemoryBackend:
    backend = MemoryBackend(clock=SystemClock())
    for name in OWN:
        backend.put_topic(TopicInfo(name, 0, 1), SystemClock().monotonic() + 60).wait(60)
    return backend


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    "settings", [{"readable": False}, {"writable": False}, {"durability": "written"}, {"delay": "only"}]
)
def test_the_system_can_always_read_and_write_its_topics(
    backend: MemoryBackend, name: str, settings: dict[str, Any]
) -> None:
    before = backend.topic(name)
    with pytest.raises(CallerError, match="belongs to the system"):
        topics.update(backend, SystemClock(), name, settings)
    assert backend.topic(name) == before


def test_topics_of_groups_may_grow(backend: MemoryBackend) -> None:
    assert topics.update(backend, SystemClock(), "%DLQ%g", {"queues": 3}).queues == 3
    with pytest.raises(CallerError, match="allowed to change: nothing"):
        topics.update(backend, SystemClock(), "SCHEDULE_TOPIC_XXXX", {"queues": 3})


@pytest.mark.parametrize("durability", Durability)
def test_topics_of_every_durability_are_told_of(backend: MemoryBackend, durability: Durability) -> None:
    """Also of one that nobody made here: on Kafka those of others with two copies are replicated."""
    backend.capabilities = replace(backend.capabilities, durability=frozenset(Durability))
    info = TopicInfo("orders", 0, 1, durability)
    backend.put_topic(info, SystemClock().monotonic() + 60).wait(60)
    (row,) = (row for row in topics.list_topics(backend, internal=False) if row["topic"] == "orders")
    changed = topics.update(backend, SystemClock(), "orders", {"durability": row["durability"], "queues": 2})
    assert changed.durability is durability
