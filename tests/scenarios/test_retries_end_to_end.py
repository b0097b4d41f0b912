"""A failing message on real servers, in one process and in several: steps, dead letter, resend."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq_client import Consumer, Message, Producer
from tests.scenarios.real_server import RealServer, running, write_config
from tests.support.installations import Installation
from tests.support.waits import until

WAITS = [f"{100 * number}ms" for number in range(1, 19)]
SETTINGS = {"topics": ["T"], "start": "first", "retry_intervals_ms": [10], "retry_steps": 3}


def failing(server: RealServer, attempts: list[tuple[str, int | None]]) -> Consumer:
    """A client that fails everything and remembers (body, attempt)."""

    def handle(message: Message) -> None:
        attempts.append((message.body.decode(), message.attempt))
        raise RuntimeError("on purpose")

    return Consumer(f"127.0.0.1:{server.ports['consumer']}", "G", ["T"], handler=handle, linger_ms=50)


def letters(server: RealServer) -> int:
    rows = server.admin("GET", "dlq")
    return sum(int(row["letters"]) for row in rows if row["group"] == "G")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_steps_dead_letter_and_resend(installation: Installation, tmp_path: Path, processes: bool) -> None:
    config = write_config(tmp_path / "conf", delay_service={"levels": WAITS})
    with running(tmp_path, config, processes, installation) as server:
        server.admin("POST", "topics", "T", body={"create": True, "queues": 2})
        server.admin("POST", "groups", "G", body=SETTINGS)
        with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
            for number in range(10):
                producer.send("T", b"%d" % number, queue=number % 2)
        attempts: list[tuple[str, int | None]] = []
        with failing(server, attempts):
            until(lambda: letters(server) == 10, "all are dead letters")
        assert server.metric("ddmq_levels_lost_total") == 0
        assert sorted(attempts) == sorted((str(number), n) for number in range(10) for n in range(1, 6))
        dead_letters = server.admin("GET", "dlq", "G")["shown"]
        assert {row["attempts"] for row in dead_letters} == {5}
        assert sorted((row["topic_queue"], row["topic_offset"]) for row in dead_letters) == [
            (queue, offset) for queue in range(2) for offset in range(5)
        ]
        assert {row["reason"] for row in dead_letters} == {"failed"}
        server.admin("POST", "dlq", "G", "resend", body={"all": True})
        assert letters(server) == 0
        got: list[Message] = []
        with Consumer(f"127.0.0.1:{server.ports['consumer']}", "G", ["T"], linger_ms=50) as consumer:
            until(lambda: got.extend(consumer.pull(20, timeout_ms=200)) or len(got) >= 10, "they come again")
            for message in got:
                message.ack()
        assert {(each.attempt, each.properties["dead-letter-resent"]) for each in got} == {(1, "1")}
