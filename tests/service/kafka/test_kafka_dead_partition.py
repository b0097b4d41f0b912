"""One topic's only broker is away: what the other topics of the same proxy notice of it.

`python -m tests.service.kafka.test_kafka_dead_partition --seconds 45 [--tree DIR]` prints the table.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import NewTopic

from ddmq.trial.cluster import TrialCluster
from ddmq_client.errors import ClientError
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster
from tests.support.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
DEAD, LIVE, GROUP, AWAY = "dead", "live", "readers", 3
DELAYS = 40
BEFORE_S = 5.0
PAUSE_S = 0.02
CALM_S = 2.0
SEND_MS = 10_000  # of a delayed message, on a busy machine


class ClientCall(NamedTuple):
    """One call of a client: when it began, and how long it took. `error`: empty if it was answered well."""

    at: float
    took_s: float
    error: str


class LiveLoad:
    """Two clients that send to LIVE, and two that pull and acknowledge there."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._over = threading.Event()
        self.sends: list[ClientCall] = []
        self.acks: list[ClientCall] = []
        self.got: dict[bytes, float] = {}
        targets = (self._send, self._send, self._pull, self._pull)
        self._threads = [threading.Thread(target=target) for target in targets]

    def __enter__(self) -> LiveLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def is_calm(self) -> bool:
        """Whether both kinds of calls were answered well for CALM_S."""
        now = time.monotonic()
        latest = [within(calls, now - CALM_S, now) for calls in (self.sends, self.acks)]
        return all(calls and not any(call.error for call in calls) for calls in latest)

    def _send(self) -> None:
        number = 0
        with self._server.producer(attempts_max=1) as producer:
            while not self._over.wait(PAUSE_S):
                number += 1
                began, error = time.monotonic(), ""
                try:
                    producer.send(LIVE, b"%d" % number, timeout_ms=2_000)
                except ClientError as failed:
                    error = repr(failed)
                self.sends.append(ClientCall(began, time.monotonic() - began, error))

    def _pull(self) -> None:
        with self._server.consumer(GROUP, LIVE) as consumer:
            while not self._over.is_set():
                began, error = time.monotonic(), ""
                try:
                    messages = consumer.pull(8, timeout_ms=200)
                    for message in messages:
                        self.got.setdefault(message.body, time.time())
                        message.ack()
                except ClientError as failed:
                    error, messages = repr(failed), []
                if messages or error:
                    self.acks.append(ClientCall(began, time.monotonic() - began, error))


def within(calls: list[ClientCall], start: float, end: float) -> list[ClientCall]:
    return [call for call in list(calls) if start <= call.at < end]


def quantile(calls: list[ClientCall], share: float) -> float:
    """In seconds."""
    return sorted(call.took_s for call in calls)[int((len(calls) - 1) * share)]


def told(name: str, calls: list[ClientCall]) -> str:
    errors = Counter(call.error for call in calls if call.error)
    p50, p99 = (quantile(calls, share) * 1000 for share in (0.5, 0.99))
    return (
        f"{name}: {len(calls)} calls, p50 {p50:.0f} ms, p99 {p99:.0f} ms, not answered well: {dict(errors)}"
    )


class Measured(NamedTuple):
    """What was measured, before and while messages fall due on the topic whose broker is away."""

    sends: tuple[list[ClientCall], list[ClientCall]]
    acks: tuple[list[ClientCall], list[ClientCall]]
    fired: int
    late_s: list[float]
    set_aside: dict[str, str]
    log: str

    def lines(self) -> list[str]:
        late = sorted(self.late_s)
        return [
            told("sends, healthy", self.sends[0]), told("sends, one is away", self.sends[1]),
            told("pull and ack, healthy", self.acks[0]), told("pull and ack, one is away", self.acks[1]),
            f"delays of {LIVE} fired: {self.fired} of {DELAYS}"
            + (f", late by p50 {late[len(late) // 2]:.3f} s, at most {late[-1]:.3f} s" if late else ""),
            f"set aside: {self.set_aside}",
        ]  # fmt: skip


def measure(cluster: TrialCluster, server: KafkaServer, seconds: float) -> Measured:
    """The table; the broker is back when it is made."""
    tools = Tools(cluster.bootstrap)
    new = [NewTopic(DEAD, 2, replica_assignment=[[AWAY], [AWAY]]), NewTopic(LIVE, 4, 3)]
    for answer in tools.admin.create_topics(new).values():
        answer.result()
    until(lambda: all(server.ask("GET", f"/topics/{name}")[0] == 200 for name in (DEAD, LIVE)))
    server.subscribe(GROUP, LIVE)
    with LiveLoad(server) as load:
        time.sleep(2)
        began = time.monotonic()
        time.sleep(BEFORE_S)
        healthy = began, time.monotonic()
        cluster.signal(AWAY, signal.SIGKILL)
        metadata = tools.admin
        until(
            lambda: metadata.list_topics(DEAD, timeout=5).topics[DEAD].partitions[0].leader < 0,
            "the cluster knows that the broker is away",
        )
        until(lambda: server.ready and load.is_calm(), "the other brokers lead what it led")
        due = datetime.now(UTC) + timedelta(seconds=12)
        due_at: dict[bytes, float] = {}
        with server.producer() as producer:
            for _ in range(10):
                producer.send(DEAD, b"x", deliver_at=due, timeout_ms=SEND_MS)
            for number in range(DELAYS):
                at = due + timedelta(seconds=(number // 2) * (seconds / DELAYS))
                producer.send(LIVE, b"delay %d" % number, deliver_at=at, timeout_ms=SEND_MS)
                due_at[b"delay %d" % number] = at.timestamp()
        time.sleep(max(0.0, due.timestamp() - time.time()))
        began = time.monotonic()
        time.sleep(seconds)
        away = began, time.monotonic()
        set_aside = server.ask("GET", "/delay")[1].get("set_aside", {})
        late = [load.got[body] - at for body, at in due_at.items() if body in load.got]
    cluster.start()
    return Measured(
        (within(load.sends, *healthy), within(load.sends, *away)),
        (within(load.acks, *healthy), within(load.acks, *away)),
        len(late),
        late,
        set_aside,
        server.log,
    )


@pytest.mark.timeout(300)
def test_a_partition_without_a_leader_costs_other_topics_nothing(tmp_path: Path) -> None:
    with own_cluster(tmp_path / "kafka", 3) as cluster:
        server = KafkaServer(tmp_path / "server", cluster.bootstrap)
        server.start()
        try:
            table = measure(cluster, server, 15.0)
            said = "\n".join(table.lines())
            print(said)
            sends, acks = table.sends[1], table.acks[1]
            assert not any(call.error for call in (*sends, *acks)), said
            assert quantile(acks, 0.99) < 1, said
            assert quantile(sends, 0.99) < 1, said
            assert table.fired == DELAYS, said
            assert max(table.late_s) < 2, said
            assert DEAD in table.set_aside, said
            assert "releasing and re-acquiring" not in table.log, said
            with server.consumer("late", DEAD) as consumer:
                settings = {"topics": [DEAD], "start": "first"}
                until(lambda: server.ask("POST", "/groups/late", settings)[0] == 200, "it has a leader")
                bodies: list[bytes] = []

                def is_all() -> bool:
                    for message in consumer.pull(10):
                        bodies.append(message.body)
                        message.ack()
                    return len(bodies) >= 10

                until(is_all, lambda: f"they fire once the broker is back, so far {len(bodies)}")
            assert len(bodies) == 10
            until(lambda: not server.ask("GET", "/delay")[1]["set_aside"])
        finally:
            server.kill()


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 45.0
    with tempfile.TemporaryDirectory() as folder, own_cluster(Path(folder) / "kafka", 3) as cluster:
        server = KafkaServer(Path(folder) / "server", cluster.bootstrap)
        if "--tree" in sys.argv:
            server.tree = Path(sys.argv[sys.argv.index("--tree") + 1])
        server.start()
        try:
            table = measure(cluster, server, seconds)
            print("\n".join(table.lines()))
            print("\n".join(line for line in table.log.splitlines() if "warning" in line.lower())[-6000:])
        finally:
            server.kill()


if __name__ == "__main__":
    main()
