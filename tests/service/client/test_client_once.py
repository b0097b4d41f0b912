"""What is sent twice is stored once: the library against a real server, answers of which are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import OutgoingMessage, Producer
from ddmq_client.aio import AsyncProducer
from tests.scenarios.real_server import RealServer, ddmq, running
from tests.support.lossy_relay import LossyRelay
from tests.support.waits import until

pytestmark = pytest.mark.slow

PATIENCE_MS = 60_000
COUNT = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("once")) as started:
        yield started


@pytest.fixture
def relay(server: RealServer) -> Iterator[LossyRelay]:
    lossy_relay = LossyRelay(server.ports["producer"])
    yield lossy_relay
    lossy_relay.close()


@pytest.fixture
def topic(server: RealServer, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-").replace("[", "-").strip("]")
    server.admin("POST", "topics", name, body={"create": True})
    return str(name)


def expected_bodies(count: int = COUNT) -> list[str]:
    return sorted(f"m{at}" for at in range(count))


def messages(topic: str, count: int = COUNT, **fields: Any) -> list[OutgoingMessage]:
    return [OutgoingMessage(topic, f"m{at}", **fields) for at in range(count)]


def test_answers_that_are_lost_make_no_second_message(
    server: RealServer, topic: str, relay: LossyRelay
) -> None:
    with Producer(relay.address, timeout_ms=PATIENCE_MS) as producer:
        assert not producer.send(topic, "m0").duplicate
        relay.every = 4
        results = [producer.send_message(message) for message in messages(topic)[1:]]
        relay.every = 0
        positions = {(result.queue_id, result.offset) for result in results}
        assert sum(result.duplicate for result in results) == relay.lost > 10
    assert server.bodies(topic) == expected_bodies()
    assert len(positions) == COUNT - 1, "each has the place of its own"


def test_lost_answers_of_batches_and_background_sends_make_no_second_message(
    server: RealServer, topic: str, relay: LossyRelay
) -> None:
    with Producer(relay.address, timeout_ms=PATIENCE_MS, batch_messages=7) as producer:
        first, *others = messages(topic)
        assert producer.send_message(first).stored
        relay.every = 3
        half = len(others) // 2
        results = producer.send_batch(others[:half])
        futures = [producer.send_async(message) for message in others[half:]]
        assert all(result.stored for result in results)
        assert all(future.result(60).stored for future in futures)
        assert relay.lost > 3
    assert server.bodies(topic) == expected_bodies()


def test_lost_answers_of_tasks_make_no_second_message(
    server: RealServer, topic: str, relay: LossyRelay
) -> None:
    async def test() -> None:
        async with AsyncProducer(relay.address, timeout_ms=PATIENCE_MS) as producer:
            first, *others = messages(topic)
            assert (await producer.send_message(first)).stored
            relay.every = 4
            results = await asyncio.gather(*[producer.send_message(message) for message in others])
            assert any(result.duplicate for result in results)
            assert relay.lost > 10

    asyncio.run(test())
    assert server.bodies(topic) == expected_bodies()


def test_a_key_holds_for_whoever_sends(server: RealServer, topic: str) -> None:
    first = None
    for attempt in range(3):
        with Producer(server.address("producer")) as producer:
            result = producer.send(topic, "m0", idempotency_key="order/17")
            first = first or result
            assert result.duplicate == bool(attempt)
            assert (result.message_id, result.queue_id, result.offset) == (
                first.message_id, first.queue_id, first.offset,
            )  # fmt: skip
    with Producer(server.address("producer")) as producer:
        other = producer.send(topic, "another", properties={"idempotency-key": "order/17"})
        assert (other.duplicate, other.body_differs, other.offset) == (True, True, first and first.offset)
        results = producer.send_batch(
            [OutgoingMessage(topic, "m1", idempotency_key="order/18")] * 2 + messages(topic, 3)[2:]
        )
        assert [result.duplicate for result in results] == [False, True, False]
    assert server.bodies(topic) == expected_bodies(3)


def test_a_run_of_the_command_that_is_repeated(server: RealServer, topic: str, tmp_path: Path) -> None:
    command = (
        "send",
        topic,
        "--producer",
        server.address("producer"),
        "--idempotency-key-prefix",
        "run-1",
        "--json",
    )
    lines = tmp_path / "lines"
    for count in (40, COUNT):
        lines.write_text("".join(f"m{at}\n" for at in range(count)))
        assert ddmq(*command, "--lines", str(lines)).returncode == 0
    assert server.bodies(topic) == expected_bodies()


def test_a_server_that_is_killed_stores_nothing_twice(tmp_path: Path) -> None:
    """kill -9 in the middle of sends: each is stored once, without `retry_unknown`. Keys hold, too."""
    with running(tmp_path) as server:
        server.admin("POST", "topics", "t", body={"create": True})
        with Producer(server.address("producer"), timeout_ms=PATIENCE_MS, batch_messages=3) as producer:
            first, *others = messages("t")
            assert producer.send_message(first).stored
            assert not producer.send("u", "keyed", idempotency_key="k").duplicate
            futures = [producer.send_async(message) for message in others[:60]]
            until(lambda: any(future.done() for future in futures), "the first answers")
            server.kill()
            futures += [producer.send_async(message) for message in others[60:]]
            server.start()
            assert all(future.result(60).stored for future in futures)
            assert producer.send("u", "keyed", idempotency_key="k").duplicate
        assert server.bodies("t") == expected_bodies()
        assert server.bodies("u") == ["keyed"]
