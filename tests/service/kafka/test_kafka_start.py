"""A cluster that is not there at the start, goes away for a while, and comes back."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from ddmq_client import OutgoingMessage, Producer
from ddmq_client.errors import ThrottledError
from tests.scenarios.real_server import ddmq
from tests.service.kafka.cluster_kit import (
    KafkaServer,
    bodies,
    is_refused,
    kill,
    own_cluster,
    pulled,
    store_next,
)
from tests.support.waits import until

pytestmark = pytest.mark.slow
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


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "processes"])
def test_a_cluster_that_is_not_there_is_waited_for(tmp_path: Path, processes: bool) -> None:
    with own_cluster(tmp_path / "kafka", start=False) as cluster:
        server = KafkaServer(tmp_path / "server", cluster.bootstrap, processes)
        try:
            server.launch()
            until(lambda: "does not answer" in server.reason())
            assert cluster.bootstrap in server.reason()
            assert server.request("GET", "/health")[1]["alive"] is True
            status, answer = server.request("GET", "/stats")
            assert (status, "starting" in answer["error"]) == (503, True)
            with server.producer(attempts_max=1) as producer:
                until(lambda: "does not answer" in why_rejected(producer))
                cluster.start()
                server.started()
                until(lambda: server.ready)
                producer.send("orders", b"one")
            assert bodies(cluster) == [b"one"]
            assert "%3|" not in server.log, "librdkafka says nothing past our log"
        finally:
            server.end()


def why_rejected(producer: Producer) -> str:
    """Why a send is refused while the server starts; empty while the port is not open."""
    results = producer.send_batch([OutgoingMessage("orders", b"no"), OutgoingMessage("orders", b"no")])
    errors = [each.error for each in results]
    if any(error is None or error.code is None for error in errors):
        return ""
    with pytest.raises(ThrottledError) as single:
        producer.send("orders", b"no")
    with pytest.raises(ThrottledError) as delayed:
        producer.send("orders", b"no", delay=timedelta(hours=1))
    codes = {error.code for error in (*errors, single.value, delayed.value) if error is not None}
    assert codes == {15}
    return delayed.value.text


def test_a_cluster_that_is_lost_for_a_minute_costs_time_alone(tmp_path: Path) -> None:
    """Sends are answered 12 or 15 in time, nothing acknowledged is lost, and it goes on by itself."""
    with own_cluster(tmp_path / "kafka") as cluster:
        server = KafkaServer(tmp_path / "server", cluster.bootstrap)
        try:
            server.start()
            server.subscribe("billing", "orders")
            with server.producer(attempts_max=1) as producer, server.consumer("billing", "orders") as client:
                stored = [b"before %d" % number for number in range(20)]
                for body in stored:
                    producer.send("orders", body)
                acked = pulled(client, 10, most=1)
                until(lambda: server.lag("billing") == 10)
                kill(cluster)
                until(lambda: not server.ready)
                for words in (("topic", "create", "new"), ("group", "show", "billing")):
                    result = ddmq(*words, "--admin", server.address("admin"))
                    assert result.returncode == 1
                    assert f"Kafka at {cluster.bootstrap}" in result.stderr, "the reason, not that time is up"
                refused = {
                    body for body in (b"while %d" % n for n in range(30)) if is_refused(producer, body)
                }
                lines = server.log.count("\n")
                cluster.start()
                until(lambda: server.ready)
                after = (b"after %d" % number for number in count())
                last = store_next(producer, after)
                stored_now = bodies(cluster)
                assert {*stored, last} <= set(stored_now)
                assert not refused & set(stored_now)
                assert len(stored_now) == len(set(stored_now))
                assert {*pulled(client, len(stored_now) - 10), *acked} == set(stored_now)
                until(lambda: server.lag("billing") == 0)
            assert server.log.count("does not answer") == server.log.count("the cluster answers again") == 1
            assert lines < 300, "a few lines, not thousands"
        finally:
            server.end()


def test_invalid_credentials_are_reported_and_the_password_never(tmp_path: Path) -> None:
    with own_cluster(tmp_path / "kafka", more=WITH_PASSWORD) as cluster:
        credentials = {**AS_ADMIN, "sasl.password": "wrong-secret"}
        server = KafkaServer(tmp_path / "server", cluster.bootstrap, librdkafka=credentials)
        try:
            server.launch()
            until(lambda: "Authentication failed" in server.reason())
            assert "wrong-secret" not in server.reason() + server.log
            output = ddmq("doctor", "--config", str(server.config), "--json").stdout
            assert "Authentication failed" in output
            assert "wrong-secret" not in output
        finally:
            server.end()
        server = KafkaServer(tmp_path / "another", cluster.bootstrap, librdkafka=AS_ADMIN)
        try:
            server.start()
            until(lambda: server.ready)
            assert "right-secret" not in server.log
        finally:
            server.end()
