"""One topic's only broker is away: what the other topics of the same proxy notice of it.

`python -m tests.service.kafka.test_kafka_dead_partition --seconds 45 [--tree DIR]` prints the table.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import NewTopic

from backend.kafka.targets import UNREACHABLE
from ddmq.trial.cluster import TrialCluster
from ddmq_client.errors import ClientError
from tests.crash.kafka.cluster import ClusterWithSpareBroker
from tests.service.kafka.away_kit import (
    PAUSE_S,
    ClientLoad,
    create_topics,
    kill_leader,
    print_table,
    quantiles_ms,
    three_brokers,
)
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster, pulled, served_while
from tests.support.waits import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
DEAD, LIVE, GROUP = "dead", "live", "readers"
DELAYS = 40
CALLS = 50  # of each kind, by which the healthy latency is known
CALM_S = 2.0
LATE_S = 5.0  # on a busy machine; where one partition stops all, none of them fires
SEND_MS = 10_000  # of a delayed message, on a busy machine
UNNOTICED = {"broker.session.timeout.ms": "20000"}  # how long the cluster does not know of a lost broker


class ClientCall(NamedTuple):
    """One call of a client: when it began, and how long it took. `error`: empty if it was answered well."""

    at: float
    took_s: float
    error: str


class LiveLoad(ClientLoad):
    """Two clients that send to LIVE, and two that pull and acknowledge there."""

    def __init__(self, server: KafkaServer) -> None:
        super().__init__((self._send, self._send, self._pull, self._pull))
        self._server = server
        self.sends: list[ClientCall] = []
        self.acks: list[ClientCall] = []
        self.got: dict[bytes, float] = {}

    def is_calm(self) -> bool:
        """Whether both kinds of calls were answered well for CALM_S."""
        now = time.monotonic()
        latest = [within(calls, now - CALM_S, now) for calls in (self.sends, self.acks)]
        return all(calls and not any(call.error for call in calls) for calls in latest)

    def _send(self) -> None:
        number = 0
        with self._server.producer(attempts_max=1) as producer:
            while not self.over.wait(PAUSE_S):
                number += 1
                began, error = time.monotonic(), ""
                try:
                    producer.send(LIVE, b"%d" % number, timeout_ms=2_000)
                except ClientError as failed:
                    error = repr(failed)
                self.sends.append(ClientCall(began, time.monotonic() - began, error))

    def _pull(self) -> None:
        with self._server.consumer(GROUP, LIVE) as consumer:
            while not self.over.is_set():
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


def p99_s(calls: list[ClientCall]) -> float:
    return quantiles_ms([call.took_s for call in calls], [0.99])[0] / 1000


def format_calls(name: str, calls: list[ClientCall]) -> str:
    errors = Counter(call.error for call in calls if call.error)
    p50, p99 = quantiles_ms([call.took_s for call in calls])
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
            format_calls("sends, healthy", self.sends[0]), format_calls("sends, one is away", self.sends[1]),
            format_calls("pull and ack, healthy", self.acks[0]),
            format_calls("pull and ack, one is away", self.acks[1]),
            f"delays of {LIVE} fired: {self.fired} of {DELAYS}"
            + (f", late by p50 {late[len(late) // 2]:.3f} s, at most {late[-1]:.3f} s" if late else ""),
            f"set aside: {self.set_aside}",
        ]  # fmt: skip


def measure(cluster: TrialCluster, server: KafkaServer, seconds: float) -> Measured:
    """The table; the broker is back when it is made."""
    tools = Tools(cluster.bootstrap)
    create_topics(tools, server, DEAD, LIVE)
    server.subscribe(GROUP, LIVE)
    with LiveLoad(server) as load:
        until(load.is_calm, "the load runs")
        began = time.monotonic()
        until(
            lambda: (
                min(len(within(calls, began, time.monotonic())) for calls in (load.sends, load.acks)) >= CALLS
            ),
            "calls while all brokers are there",
        )
        healthy = began, time.monotonic()
        kill_leader(cluster, tools, DEAD)
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
        began = time.monotonic() + max(0.0, due.timestamp() - time.time())
        last = max(due_at.values()) + LATE_S
        until(
            lambda: due_at.keys() <= load.got.keys() or time.time() > last,
            "the delays have fired, or are too late",
            seconds=PATIENCE_S + seconds + LATE_S,
        )
        away = began, time.monotonic()
        set_aside = server.request("GET", "/delay")[1].get("set_aside", {})
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
    with three_brokers(tmp_path) as (cluster, server):
        table = measure(cluster, server, 15.0)
        table_text = "\n".join(table.lines())
        sends, acks = table.sends[1], table.acks[1]
        assert not any(call.error for call in (*sends, *acks)), table_text
        for calls in (table.sends, table.acks):
            assert p99_s(calls[1]) < max(1.0, 1.5 * p99_s(calls[0])), table_text
        assert table.fired == DELAYS, table_text
        assert max(table.late_s) < LATE_S, table_text
        assert DEAD in table.set_aside, table_text
        assert "releasing and re-acquiring" not in table.log, table_text
        with server.consumer("late", DEAD) as consumer:
            settings = {"topics": [DEAD], "start": "first"}
            until(lambda: server.request("POST", "/groups/late", settings)[0] == 200, "it has a leader")
            bodies: list[bytes] = []

            def is_all() -> bool:
                for message in consumer.pull(10):
                    bodies.append(message.body)
                    message.ack()
                return len(bodies) >= 10

            until(is_all, lambda: f"they fire once the broker is back, so far {len(bodies)}")
        assert len(bodies) == 10
        until(lambda: not server.request("GET", "/delay")[1]["set_aside"])


def create_healthy_topic(cluster: ClusterWithSpareBroker, server: KafkaServer) -> None:
    """Create LIVE and deliver a delayed message, so that all inner topics are on the first broker."""
    server.admin("POST", "topics", LIVE, body={"create": True, "queues": 4})
    server.subscribe(GROUP, LIVE)
    with server.producer() as producer, server.consumer(GROUP, LIVE) as consumer:
        producer.send(LIVE, b"first", delay=timedelta(milliseconds=1))
        assert pulled(consumer, 1) == [b"first"]
    tools = Tools(cluster.bootstrap)
    until(lambda: tools.count("__consumer_offsets") > 0, "the group's offset is committed")


def create_topic_on_spare_broker(cluster: ClusterWithSpareBroker, server: KafkaServer) -> None:
    """Start the spare broker and create DEAD there."""
    cluster.start([cluster.spare])
    tools = Tools(cluster.bootstrap)
    new_topic = NewTopic(DEAD, 2, replica_assignment=[[cluster.spare]] * 2)
    [created] = tools.admin.create_topics([new_topic]).values()
    created.result()
    until(lambda: server.request("GET", f"/topics/{DEAD}")[0] == 200)


@pytest.mark.timeout(300)
def test_a_lost_broker_costs_other_topics_nothing_before_the_cluster_knows_it(tmp_path: Path) -> None:
    with own_cluster(tmp_path / "kafka", 2, UNNOTICED, start=False, kind=ClusterWithSpareBroker) as cluster:
        cluster.start([1])
        with served_while(KafkaServer(tmp_path / "server", cluster.bootstrap)) as server:
            create_healthy_topic(cluster, server)
            create_topic_on_spare_broker(cluster, server)
            due = datetime.now(UTC) + timedelta(seconds=3)
            late_s: dict[bytes, float] = {}
            with server.producer() as producer, server.consumer(GROUP, LIVE) as consumer:
                for number in range(DELAYS):
                    at = due + timedelta(milliseconds=150 * number)
                    for topic in (DEAD, LIVE):
                        producer.send(topic, b"%d" % number, deliver_at=at, timeout_ms=SEND_MS)
                    late_s[b"%d" % number] = at.timestamp()
                until(lambda: datetime.now(UTC) >= due, "the first is due")
                cluster.signal(cluster.spare, signal.SIGKILL)
                fired: dict[bytes, float] = {}

                def has_fired() -> bool:
                    for message in consumer.pull(10, timeout_ms=200):
                        fired[message.body] = time.time() - late_s[message.body]
                        message.ack()
                    return len(fired) == DELAYS

                until(has_fired, lambda: f"{DELAYS} delays, so far {fired}")
                set_aside = server.request("GET", "/delay")[1]["set_aside"]
            assert set_aside == {DEAD: UNREACHABLE}, server.log
            assert max(fired.values()) < LATE_S, fired
            assert "switching to new transactional ids" not in server.log
            cluster.start([cluster.spare])
            until(lambda: not server.request("GET", "/delay")[1]["set_aside"], "the broker is back")
            tools = Tools(cluster.bootstrap)
            until(lambda: sum(len(tools.read(DEAD, number)) for number in range(2)) == DELAYS)


if __name__ == "__main__":
    print_table(lambda cluster, server, seconds: measure(cluster, server, seconds).lines())
