"""What one message of an ordered scope costs does not grow with its queues: counted, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from tests.service.consumer.consumer_rig import ConsumerRig, result

BY_KEY = SubscriptionDefaults(start="first", order_key="KEY")


class Counts(Counter[str]):
    """Calls of the backend and looks at queues."""

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            self[name] += 1
            return inner(*args, **named)

        monkeypatch.setattr(owner, name, counted)


@pytest.fixture
def counts(rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    for name in ("read", "bounds"):
        counts.watch(monkeypatch, rig.backend, name)
    counts.watch(monkeypatch, PullBuffer, "_step_queue")
    counts.watch(monkeypatch, SubscribedQueue, "__init__")
    return counts


def one_message(rig: ConsumerRig, counts: Counts, topics: int, queues: int) -> Counts:
    """The calls that one message costs when all queues of the group are at their end."""
    names = [f"T{number}" for number in range(topics)]
    for name in names:
        rig.topic(name, queues)
        rig.subscribe(topic=name, config=BY_KEY)
    last = names[-1]
    rig.send(1, queue=queues - 1, topic=last)
    for _ in range(2):
        call = rig.pull(topic=last.encode())
        rig.submit(result(call.offsets, queue=queues - 1, topic=last))
        counts.clear()
        waiting = rig.start_pull(topic=last.encode(), linger=10_000)
        rig.send(1, queue=queues - 1, topic=last)
        rig.settle()
        assert waiting.values == [b"m0"]
        message_cost = Counts(counts)
        rig.submit(result(waiting.offsets, queue=queues - 1, topic=last))
    return message_cost


@pytest.mark.parametrize(("topics", "queues"), [(1, 10), (1, 1_000), (100, 2)])
def test_the_cost_of_one_message_does_not_grow_with_queues(
    rig: ConsumerRig, counts: Counts, topics: int, queues: int
) -> None:
    calls = one_message(rig, counts, topics, queues)
    assert calls["read"] <= 4
    assert calls["bounds"] <= 3
    assert calls["_step"] <= 20 + 8 * topics  # each topic has a buffer of its own, which is asked


@pytest.mark.slow
def test_many_topics_start_with_a_read_for_each_queue(rig: ConsumerRig, counts: Counts) -> None:
    one_message(rig, counts, 1, 1)
    counts.clear()
    for number in range(100):
        rig.topic(f"U{number}", 2)
        rig.subscribe(topic=f"U{number}", config=BY_KEY)
        rig.send(1, topic=f"U{number}", queue=1)
    call = rig.pull(topic=b"U0")
    assert call.values == [b"m0"]
    assert counts["read"] <= 4 * 200
    assert counts["_step"] <= 20 * 200
