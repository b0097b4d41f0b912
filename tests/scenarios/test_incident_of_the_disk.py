"""A disk fills up: the alert comes before sends are rejected, the largest writer is found, and stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq_client import Message
from tests.scenarios.incident_operators import Operator
from tests.scenarios.incident_world import WAY_PARAMS, IncidentWorld, deployed, describe_way
from tests.scenarios.real_server import write_config
from tests.scenarios.topic_writer import writing
from tests.support.installations import Installation
from tests.support.waits import until

FREE_BYTES = (2 << 30) + (256 << 20)  # more than the threshold of the alert


@pytest.fixture(params=WAY_PARAMS, ids=describe_way)
def way(request: pytest.FixtureRequest) -> tuple[str, type[Operator]]:
    """How the servers are deployed, and what their operator uses."""
    chosen: tuple[str, type[Operator]] = request.param
    return chosen


@pytest.fixture
def world(
    way: tuple[str, type[Operator]], installation: Installation, tmp_path: Path
) -> Iterator[IncidentWorld]:
    config = write_config(tmp_path / "conf", file_log={"allocate_bytes": "1MiB"})
    with deployed(way[0], tmp_path, installation, config, disk_free=FREE_BYTES) as created:
        yield created


def test_the_largest_writer_of_a_full_disk_is_closed(
    world: IncidentWorld, way: tuple[str, type[Operator]]
) -> None:
    _, front_end = way
    for topic in ("audit", "orders"):
        world.create_topic(topic)
        world.subscribe("billing", topic)
    received: list[str] = []
    before = world.observe_bystanders()
    settings = world.settings_of("billing")

    def handle(message: Message) -> None:
        received.append(message.topic)

    world.consumer("billing", ["audit", "orders"], handle)
    producer = world.producer()
    producer.send("orders", "small")
    with writing(world.producer(), "audit") as writer:
        operator, finding = world.alert(front_end, "DdmqDiskFillsUp")
        assert finding["severity"] == "warning"
        until(lambda: find_largest_writer(world, front_end) == "audit", "the largest writer is known")
        operator.close_topic("audit")
        until(writer.stopped.is_set, "its sends are rejected")
        assert "audit" in str(writer.errors)
    stored = len(received)
    until(lambda: received.count("audit") == stored_in(world, "audit"), "what is stored is delivered")
    assert received.count("audit") >= stored - 1
    producer.send("orders", "after the repair")
    until(lambda: received.count("orders") == 2, "other topics go on")
    world.await_calm(front_end, "DdmqDiskFillsUp")
    assert world.server.request("GET", "/ready")[0] == 200
    assert world.server.admin("GET", "topics", "audit")["writable"] is False
    assert world.server.admin("GET", "topics", "orders")["writable"] is True
    assert world.settings_of("billing") == settings
    world.stop_clients()
    assert world.observe_bystanders() == before


def find_largest_writer(world: IncidentWorld, front_end: type[Operator]) -> str | None:
    """Over all servers, because each knows what it stored."""
    writers: dict[str, float] = defaultdict(float)
    for server in world.servers:
        for topic, size in front_end(server).measure_writers().items():
            writers[topic] += size
    return max(writers, key=writers.__getitem__) if writers else None


def stored_in(world: IncidentWorld, topic: str) -> int:
    """The number of messages that the queues of a topic have."""
    return sum(row["next"] for row in world.server.admin("GET", "topics", topic)["by_queue"])
