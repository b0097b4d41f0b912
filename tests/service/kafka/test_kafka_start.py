"""A cluster that is not there at the start, goes away for a while, and comes back."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest
from cluster_kit import KafkaServer, Tools, kill, own_cluster

from ddmq.trial.cluster import TrialCluster
from ddmq_client import Producer
from ddmq_client.errors import NotStoredError, ProxyError, UnknownOutcomeError
from tests.scenarios.real_server import ddmq
from tests.support.waits import until

pytestmark = pytest.mark.slow
TIMEOUT_S = 2.0
SPARE_S = 3.0  # beside the time that the caller gave; the machine may be busy
AS_ADMIN = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "admin",
    "sasl.password": "right-secret",
}  # fmt: skip
WITH_PASSWORD = {  # of a cluster that lets `admin` in alone
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="admin" password="right-secret" user_admin="right-secret";'
    ),
}


def bodies(cluster: TrialCluster, topic: str = "orders") -> list[bytes]:
    """What is in the topic."""
    tools = Tools(cluster.bootstrap)
    return [message.value() for number in range(tools.count(topic)) for message in tools.read(topic, number)]


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "processes"])
def test_a_cluster_that_is_not_there_is_waited_for(tmp_path: Path, processes: bool) -> None:
    with own_cluster(tmp_path / "kafka", start=False) as cluster:
        server = KafkaServer(tmp_path / "server", cluster.bootstrap, processes)
        try:
            server.launch()
            until(lambda: "does not answer" in server.reason())
            assert cluster.bootstrap in server.reason()
            assert server.ask("GET", "/health")[1]["alive"] is True
            status, said = server.ask("GET", "/stats")
            assert (status, "starting" in said["error"]) == (503, True)
            cluster.start()
            server.started()
            until(lambda: server.ready)
            with server.producer() as producer:
                producer.send("orders", b"one")
            assert bodies(cluster) == [b"one"]
            assert "%3|" not in server.log, "librdkafka says nothing past our log"
        finally:
            server.end()


def test_a_cluster_that_is_lost_costs_time_alone(tmp_path: Path) -> None:
    """Sends are answered 12 or 15 in time, nothing acknowledged is lost, and it goes on by itself."""
    with own_cluster(tmp_path / "kafka") as cluster:
        server = KafkaServer(tmp_path / "server", cluster.bootstrap)
        try:
            server.start()
            with server.producer(attempts_max=1) as producer:
                stored = [b"before %d" % number for number in range(20)]
                for body in stored:
                    producer.send("orders", body)
                kill(cluster)
                until(lambda: not server.ready)
                refused = {body for body in (b"while %d" % n for n in range(5)) if is_refused(producer, body)}
                lines = server.log.count("\n")
                cluster.start()
                until(lambda: server.ready)
                after = (b"after %d" % number for number in count())
                until(lambda: is_stored(producer, next(after)))
                producer.send("orders", b"last")
            found = bodies(cluster)
            assert {*stored, b"last"} <= set(found)
            assert not refused & set(found)
            assert len(found) == len(set(found))
            assert server.log.count("does not answer") == server.log.count("the cluster answers again") == 1
            assert lines < 60, "a few lines, not thousands"
        finally:
            server.end()


def is_stored(producer: Producer, body: bytes) -> bool:
    """Whether it is certainly stored."""
    try:
        producer.send("orders", body, timeout_ms=round(TIMEOUT_S * 1000))
    except ProxyError:
        return False
    return True


def is_refused(producer: Producer, body: bytes) -> bool:
    """Answered 12 or 15, within the caller's time; whether it is certainly not stored."""
    began = time.monotonic()
    with pytest.raises((UnknownOutcomeError, NotStoredError)) as caught:
        producer.send("orders", body, timeout_ms=round(TIMEOUT_S * 1000))
    assert time.monotonic() - began < TIMEOUT_S + SPARE_S
    return isinstance(caught.value, NotStoredError)


def test_wrong_credentials_are_told_and_the_password_never(tmp_path: Path) -> None:
    with own_cluster(tmp_path / "kafka", more=WITH_PASSWORD) as cluster:
        wrong = {**AS_ADMIN, "sasl.password": "wrong-secret"}
        server = KafkaServer(tmp_path / "server", cluster.bootstrap, librdkafka=wrong)
        try:
            server.launch()
            until(lambda: "Authentication failed" in server.reason())
            assert "wrong-secret" not in server.reason() + server.log
            found = ddmq("doctor", "--config", str(server.config), "--json").stdout
            assert "Authentication failed" in found
            assert "wrong-secret" not in found
        finally:
            server.end()
        server = KafkaServer(tmp_path / "another", cluster.bootstrap, librdkafka=AS_ADMIN)
        try:
            server.start()
            until(lambda: server.ready)
            assert "right-secret" not in server.log
        finally:
            server.end()
