"""RangeReader through the real server: bounds, ranges, offsets by time, proxies that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq_client import OutgoingMessage, Producer, PullError, QueueBounds, RangeReader
from tests.scenarios.real_server import RealServer, running
from tests.support.installations import Installation, installed
from tests.support.ports import port_of, reserved

COUNT = 250


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("ranges")
    with installed(engine) as installation, running(folder, installation=installation) as ready:
        send(ready, "shelf", COUNT)
        yield ready


def send(server: RealServer, topic: str, count: int) -> None:
    with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
        messages = [OutgoingMessage(topic, b"%d" % number, shard_key=number) for number in range(count)]
        assert all(result.stored for result in producer.send_batch(messages))


def reader(server: RealServer, *topics: str, group: str = "archive") -> RangeReader:
    return RangeReader(f"127.0.0.1:{server.ports['consumer']}", group, topics)


def everything(ranges: RangeReader, at: QueueBounds) -> list[tuple[int, bytes]]:
    messages, offset = [], at.first
    while offset < at.end:
        batch = ranges.read(at.topic, at.queue, offset)
        assert batch.next_offset > offset
        messages += [(message.offset, message.body) for message in batch.messages]
        offset = batch.next_offset
    return messages


def test_all_of_a_topic_twice_by_its_bounds(server: RealServer) -> None:
    with reader(server, "shelf") as ranges:
        bounds = ranges.bounds()
        assert sorted(at.number for at in bounds) == [0, 1, 2, 3]
        first = [everything(ranges, at) for at in bounds]
        second_reading = [everything(ranges, at) for at in bounds]
    bodies = [body for queue in first for _, body in queue]
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(COUNT)]
    assert second_reading == first


def test_a_topic_that_does_not_exist_has_no_bounds_and_a_queue_of_it_no_messages(server: RealServer) -> None:
    with reader(server, "shelf", "nowhere", group="archive-2") as ranges:
        assert {at.topic for at in ranges.bounds()} == {"shelf"}
        with pytest.raises(PullError, match="no such queue"):
            ranges.read("nowhere", "R_default_nowhere_0", 0)


def test_the_first_offset_at_or_after_a_time(server: RealServer) -> None:
    with reader(server, "shelf") as ranges:
        for at in ranges.bounds():
            stored = [
                ranges.read(at.topic, at.queue, offset, 1).messages[0].stored_ms or 0
                for offset in range(at.first, at.end, 9)
            ]
            assert ranges.offset_at(at, 0) == at.first
            assert ranges.offset_at(at, stored[-1] + 3_600_000) == at.end
            for record_ms in stored:
                matching = ranges.offset_at(at, record_ms)
                assert (ranges.read(at.topic, at.queue, matching, 1).messages[0].stored_ms or 0) >= record_ms
                if matching > at.first:
                    before = ranges.read(at.topic, at.queue, matching - 1, 1).messages[0]
                    assert (before.stored_ms or 0) < record_ms


def test_a_missing_proxy_is_skipped(server: RealServer) -> None:
    with reserved() as dead:
        addresses = [f"127.0.0.1:{port_of(dead)}", f"127.0.0.1:{server.ports['consumer']}"]
        with RangeReader(addresses, "archive", ["shelf"]) as ranges:
            assert sum(at.end - at.first for at in ranges.bounds()) == COUNT
        with (
            RangeReader(addresses[:1], "archive", ["shelf"], timeout_ms=300) as ranges,
            pytest.raises(PullError, match=r"no proxy of 127\.0\.0\.1"),
        ):
            ranges.bounds()


def test_a_group_with_shared_queues_is_rejected(server: RealServer) -> None:
    server.admin("POST", "groups", "workers", body={"topics": ["shelf"]})
    with reader(server, "shelf", group="workers") as ranges, pytest.raises(PullError, match="as clustering"):
        ranges.bounds()


def test_a_range_is_completed_although_its_proxy_is_killed(
    installation: Installation, tmp_path: Path
) -> None:
    mortal = RealServer(tmp_path, installation=installation)
    try:
        mortal.start()
        send(mortal, "shelf", COUNT)
        with RangeReader(
            f"127.0.0.1:{mortal.ports['consumer']}", "archive", ["shelf"], timeout_ms=60_000
        ) as ranges:
            at = ranges.bounds()[0]
            first = everything(ranges, at)
            mortal.kill()
            mortal.launch()
            assert everything(ranges, at) == first
            assert ranges.bounds()[0] == at
    finally:
        mortal.end()
