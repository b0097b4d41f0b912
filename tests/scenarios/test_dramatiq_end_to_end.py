"""Dramatiq on real servers: workers that are killed, order by key, dead letters, delays, a graceful stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest

from ddmq_client import DelayStatus
from ddmq_client.dramatiq import DdmqBroker
from tests.scenarios.real_server import PATIENCE_S, RealServer, ddmq, running
from tests.support.waits import until

REPOSITORY = Path(__file__).resolve().parents[2]
HOUR_MS = 3_600_000
PIPELINES = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("dramatiq")) as started:
        yield started


class DramatiqApplication:
    """A namespace on the server, with a broker here and any number of worker processes."""

    def __init__(self, server: RealServer, folder: Path) -> None:
        self.server = server
        self.namespace = f"app-{uuid.uuid4().hex[:8]}"
        self.output = folder / "output"
        self.log_path = folder / "workers.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.broker = self.make_broker()
        for queue in ("default", "first", "second", "gate"):
            self.broker.declare_queue(queue)
        dramatiq.set_broker(self.broker)
        self.workers: list[dramatiq.Worker] = []

    def make_broker(self) -> DdmqBroker:
        addresses = [self.server.address(component) for component in ("producer", "consumer", "admin")]
        return DdmqBroker(*addresses[:2], admin=addresses[2], namespace=self.namespace)

    def topic(self, queue: str) -> str:
        return f"{self.namespace}-{queue}"

    def set_ack_timeout(self, queue: str, milliseconds: int) -> None:
        """Create the group before its workers do."""
        topic = self.topic(queue)
        self.server.admin("POST", "topics", topic, body={})
        settings = {"start": "first", "order_key": "KEY", "order_scope": "topic"}
        self.server.admin(
            "POST", "groups", topic, "topics", topic, body={**settings, "ack_timeout_ms": milliseconds}
        )

    def start_process(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a worker process: `python -m COMMAND`."""
        addresses = [self.server.address(component) for component in ("producer", "consumer", "admin")]
        environment = os.environ | {
            "DRAMATIQ_APP": ",".join([*addresses, self.namespace, str(self.output)]),
            "PYTHONPATH": str(REPOSITORY),
        }
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_worker(self, threads: int = 4) -> dramatiq.Worker:
        """Start a worker in this process."""
        worker = dramatiq.Worker(self.broker, worker_timeout=100, worker_threads=threads)
        worker.start()
        self.workers.append(worker)
        return worker

    def send(self, queue: str, actor: str, *args: Any, **options: Any) -> dramatiq.Message[Any]:
        return self.broker.enqueue(self.message(queue, actor, *args, **options))

    @staticmethod
    def message(queue: str, actor: str, *args: Any, **options: Any) -> dramatiq.Message[Any]:
        return dramatiq.Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options=options)

    def lines(self) -> list[str]:
        """What the actors of the processes have done."""
        return self.output.read_text().splitlines() if self.output.exists() else []

    def stored(self, queue: str) -> list[dramatiq.Message[Any]]:
        """Every message that is in the topic of a queue."""
        return [
            dramatiq.Message.decode(each["body"].encode()) for each in self.server.messages(self.topic(queue))
        ]

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.broker.close()
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@pytest.fixture
def app(server: RealServer, tmp_path: Path) -> Iterator[DramatiqApplication]:
    application = DramatiqApplication(server, tmp_path)
    yield application
    application.close()


@pytest.mark.timeout(900)
def test_killed_workers_lose_nothing_and_store_each_retry_and_each_next_step_once(
    app: DramatiqApplication,
) -> None:
    for queue in ("first", "second"):
        app.set_ack_timeout(queue, 2_000)
    victim = app.start_process("tests.scenarios.dramatiq_app")
    app.start_process("tests.scenarios.dramatiq_app")
    for number in range(PIPELINES):
        step = app.message("second", "second")
        app.send("first", "first", number, pipe_target=step.asdict())
    for kill in range(1, 4):
        until(lambda kill=kill: len(app.lines()) >= kill * PIPELINES // 3, "actors run")  # type: ignore[misc]
        victim.kill()  # SIGKILL, in the middle of its messages
        victim.wait()
        victim = app.start_process("tests.scenarios.dramatiq_app")
    expected = {f"second {number}" for number in range(PIPELINES)}
    until(lambda: expected <= set(app.lines()), "every pipeline has ended", 300)
    for queue in ("first", "second"):
        app.broker.join(queue, timeout=120_000)
    tries = Counter((message.args[0], message.options.get("retries", 0)) for message in app.stored("first"))
    assert tries == {(number, retries): 1 for number in range(PIPELINES) for retries in (0, 1)}
    assert sorted(message.args[0] for message in app.stored("second")) == list(range(PIPELINES))


def test_a_rejected_message_is_a_dead_letter_that_operators_see(app: DramatiqApplication) -> None:
    @dramatiq.actor(max_retries=0)
    def refuse(number: int) -> None:
        raise ValueError(f"{number} is out of stock")

    sent = refuse.send(17)
    app.send("default", "nobody", 18)
    app.start_worker()
    app.broker.join("default", timeout=60_000)
    admin = app.server.address("admin")
    listed = ddmq("dlq", "list", "--admin", admin, "--json")
    assert app.topic("default") in listed.stdout, listed.stderr
    letters = app.server.admin("GET", "dlq", app.topic("default"))["shown"]
    by_actor = {letter["tags"]: letter for letter in letters}
    assert sorted(by_actor) == ["nobody", "refuse"]
    assert "ValueError: 17 is out of stock" in str(by_actor["refuse"])
    assert "ActorNotFound" in str(by_actor["nobody"])
    bodies = app.server.bodies(f"%DLQ%{app.topic('default')}")
    assert sent.message_id in {dramatiq.Message.decode(body.encode()).message_id for body in bodies}


def test_messages_of_a_key_keep_their_order_through_retries(app: DramatiqApplication) -> None:
    began: list[tuple[str, int]] = []
    done: list[tuple[str, int]] = []

    @dramatiq.actor(ddmq_key=lambda key, number: key, min_backoff=10, max_backoff=50)
    def step(key: str, number: int) -> None:
        began.append((key, number))
        if key == "a" and number == 1 and began.count((key, number)) < 4:
            raise ValueError("not yet")
        done.append((key, number))

    for number in range(4):
        for key in ("a", "b", "c"):
            step.send(key, number)
    app.start_worker()
    app.broker.join("default", timeout=60_000)
    assert [call for call in began if call[0] == "a"] == [
        ("a", 0), ("a", 1), ("a", 1), ("a", 1), ("a", 1), ("a", 2), ("a", 3),
    ]  # fmt: skip
    for key in ("a", "b", "c"):
        assert [number for of, number in done if of == key] == [0, 1, 2, 3]


def test_a_keyed_message_is_retried_as_often_as_its_actor_allows(app: DramatiqApplication) -> None:
    calls: list[int] = []

    @dramatiq.actor(max_retries=2, min_backoff=1, max_backoff=10)
    def fail(number: int) -> None:
        calls.append(number)
        raise ValueError("never")

    fail.send_with_options(args=(1,), ddmq_key="a")
    app.start_worker()
    app.broker.join("default", timeout=60_000)
    assert calls == [1, 1, 1]
    assert app.server.admin("GET", "dlq", app.topic("default"))["letters"] == 1


def test_a_delayed_message_waits_at_the_server_and_can_be_cancelled(app: DramatiqApplication) -> None:
    calls: list[int] = []

    @dramatiq.actor
    def take(number: int) -> None:
        calls.append(number)

    app.start_worker()
    later = take.send_with_options(args=(1,), delay=HOUR_MS)
    by_eta = take.message_with_options(args=(2,), eta=later.options["eta"])
    cancelled_too = app.broker.enqueue(by_eta)
    counts = app.server.request("GET", f"/delay/count?topic={app.topic('default')}")
    assert counts[1]["count"] == 2
    assert app.broker.cancel(later).status is DelayStatus.CANCELLED
    assert app.broker.cancel(cancelled_too).status is DelayStatus.CANCELLED
    soon = take.send_with_options(args=(3,), delay=50)
    app.broker.join("default", timeout=60_000)
    assert calls == [3]
    assert app.broker.cancel(soon).status is DelayStatus.FIRED


def test_an_actor_that_takes_longer_than_a_lease_keeps_its_message(app: DramatiqApplication) -> None:
    app.set_ack_timeout("default", 1_000)
    may_end = threading.Event()
    calls: list[int] = []

    @dramatiq.actor
    def work(number: int) -> None:
        calls.append(number)
        assert may_end.wait(PATIENCE_S)

    for number in (1, 2):
        work.send_with_options(args=(number,), ddmq_key="a")
    app.start_worker()

    def leased_ms() -> int:
        keys = app.server.admin("GET", "groups", app.topic("default"), "keys")
        return max((key.get("until_ms", 0) - key.get("leased_ms", 0) for key in keys), default=0)

    until(lambda: leased_ms() > 4_000, "the lease is extended past its end")
    may_end.set()
    app.broker.join("default", timeout=60_000)
    assert calls == [1, 2]


def test_a_stopping_worker_ends_its_actor_and_returns_prefetched_messages(
    app: DramatiqApplication, tmp_path: Path
) -> None:
    app.set_ack_timeout("gate", 600_000)  # so that only a returned message comes again in time
    gates = [str(tmp_path / f"gate-{number}") for number in range(2)]
    worker = app.start_process("dramatiq", "tests.scenarios.dramatiq_app", "-p1", "-t1", "-Qgate")
    app.send("gate", "wait_for", gates[0])
    until(lambda: f"began {gates[0]}" in app.lines(), "the actor runs")
    app.send("gate", "wait_for", gates[1])
    group = ("GET", "groups", app.topic("gate"))
    until(
        lambda: app.server.admin(*group)["subscriptions"][0]["in_flight"] == 2, "the second one is prefetched"
    )
    worker.send_signal(signal.SIGTERM)
    until(lambda: "Shutting down" in app.log_path.read_text(), "the worker stops")
    Path(gates[0]).touch()
    assert worker.wait(PATIENCE_S) == 0
    assert app.lines() == [f"began {gates[0]}", f"ended {gates[0]}"]
    Path(gates[1]).touch()
    app.start_process("dramatiq", "tests.scenarios.dramatiq_app", "-p1", "-t1", "-Qgate")
    until(lambda: f"ended {gates[1]}" in app.lines(), "another worker has the message that went back")
    app.broker.join("gate", timeout=60_000)
    assert len(app.lines()) == 4


def test_a_flushed_queue_is_empty(app: DramatiqApplication) -> None:
    @dramatiq.actor(max_retries=0)
    def refuse(number: int) -> None:
        raise ValueError("no")

    refuse.send(1)
    worker = app.start_worker()
    app.broker.join("default", timeout=60_000)
    worker.stop()
    app.workers.remove(worker)
    refuse.send(2)
    refuse.send_with_options(args=(3,), delay=HOUR_MS)
    with pytest.raises(dramatiq.QueueJoinTimeout):
        app.broker.join("default", timeout=300)
    app.broker.flush("default")
    app.broker.join("default", timeout=60_000)
    assert app.server.admin("GET", "dlq", app.topic("default"))["letters"] == 1
    app.broker.flush_all()
    assert app.server.admin("GET", "dlq", app.topic("default"))["letters"] == 0


def test_a_group_that_keeps_no_order_is_reported(
    app: DramatiqApplication, caplog: pytest.LogCaptureFixture
) -> None:
    topic = app.topic("default")
    app.server.admin("POST", "topics", topic, body={})
    app.server.admin("POST", "groups", topic, body={"topics": [topic], "start": "first"})
    app.broker.consume("default").close()
    assert "without order_key KEY" in caplog.text
    assert f"ddmq group set {topic} --topic {topic} --order-key KEY" in caplog.text


FORK = """
import os, sys
import dramatiq
from ddmq_client.dramatiq import DdmqBroker
broker = DdmqBroker(*sys.argv[1:3], namespace=sys.argv[3])
dramatiq.set_broker(broker)

@dramatiq.actor
def add(x): ...

add.send(1)
child = os.fork()
add.send(2 if child else 3)
if child:
    assert os.waitpid(child, 0)[1] == 0
    add.send(4)
"""


def test_a_broker_that_was_used_before_a_fork_sends_in_both_processes(app: DramatiqApplication) -> None:
    addresses = [app.server.address(component) for component in ("producer", "consumer")]
    subprocess.run([sys.executable, "-c", FORK, *addresses, app.namespace], check=True, timeout=PATIENCE_S)
    assert sorted(message.args[0] for message in app.stored("default")) == [1, 2, 3, 4]


def test_workers_continue_when_the_server_returns(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        app = DramatiqApplication(server, tmp_path)
        calls: list[int] = []

        @dramatiq.actor
        def take(number: int) -> None:
            calls.append(number)

        try:
            app.start_worker()
            take.send(1)
            app.broker.join("default", timeout=60_000)
            server.kill()
            with pytest.raises((dramatiq.ConnectionFailed, dramatiq.ConnectionClosed)):
                take.send(2)
            server.start()
            take.send(3)
            until(lambda: 3 in calls, "the worker goes on")
            assert calls.count(1) == 1
        finally:
            app.close()
