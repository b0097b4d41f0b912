"""A threaded Consumer and the real server: wrong starts, run and its end, slow handlers on small leases."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddmq_client import Consumer, FetchConsumer, Message, Producer, PullError
from tests.scenarios.real_server import RealServer, running
from tests.support.installations import Installation
from tests.support.waits import until

RUN = """
import sys
from ddmq_client import Consumer
print("stopped", Consumer(sys.argv[1], "g", "t", handler=lambda message: print("seen", flush=True)).run())
"""


def address(server: RealServer, component: str) -> str:
    return f"127.0.0.1:{server.ports[component]}"


def test_a_consumers_life(installation: Installation, tmp_path: Path) -> None:
    with running(tmp_path, installation=installation) as server:
        server.admin("POST", "topics", "t", body={"create": True})
        settings = {"topics": ["t"], "start": "first", "ack_timeout_ms": 3_000, "max_timeout_redeliveries": 0}
        server.admin("POST", "groups", "g", body=settings)
        reject_invalid_starts(server)
        slow_handlers(server)
        runs_until_a_signal(server)
        a_closed_fetcher_leaves(server)


def reject_invalid_starts(server: RealServer) -> None:
    errors: list[Exception] = []
    with Consumer(address(server, "producer"), "g", "t", on_error=errors.append) as consumer:
        with pytest.raises(PullError, match="9713"):
            consumer.pull(1, 5_000)
        assert errors
    with Consumer("127.0.0.1:1", "g", "t") as consumer, pytest.raises(PullError, match="refused"):
        consumer.pull(1, 5_000)
    mistyped = Consumer(address(server, "consumer"), "mistyped", handler=print)
    with pytest.raises(PullError, match="mistyped does not exist"):
        mistyped.run()


def slow_handlers(server: RealServer) -> None:
    """More waits here than one thread takes within a lease."""
    attempts: dict[int, list[int | None]] = {}
    done = threading.Event()

    def handle(message: Message) -> None:
        attempts.setdefault(message.offset, []).append(message.attempt)
        until(lambda: consumer.counts().returned > 0, "those that wait here too long have gone back")
        if len(attempts) == 12:
            done.set()

    with Producer(address(server, "producer")) as producer:
        for number in range(12):
            producer.send("t", b"%d" % number, queue=0)
    consumer = Consumer(address(server, "consumer"), "g", "t", handler=handle, threads=1)
    with consumer:
        assert done.wait(60)
    assert consumer.counts().returned > 0
    assert list(attempts.values()) == [[1]] * 12
    (queue,) = [each for each in server.admin("GET", "groups", "g")["subscriptions"] if each["topic"] == "t"]
    assert queue["lag"] == 0


def runs_until_a_signal(server: RealServer) -> None:
    with Producer(address(server, "producer")) as producer:
        producer.send("t", b"x")
    command = [sys.executable, "-c", RUN, address(server, "consumer")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "seen\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "stopped True\n"
        assert process.wait(30) == 0


def a_closed_fetcher_leaves(server: RealServer) -> None:
    server.admin("POST", "topics", "f", body={"create": True, "queues": 4})
    server.admin("POST", "groups", "fetchers", body={"topics": ["f"], "start": "first"})
    first, second = (FetchConsumer(address(server, "consumer"), "fetchers") for _ in range(2))
    with first:
        until(lambda: first.fetch(1, 20) is not None and len(first.assignments) == 4, "all")
        until(lambda: second.fetch(1, 20) is not None and len(second.assignments) == 2, "half")
        second.close()
        until(lambda: first.fetch(1, 20) is not None and len(first.assignments) == 4, "all again")
