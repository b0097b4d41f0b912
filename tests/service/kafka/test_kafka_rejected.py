"""What Kafka does not take, and what others wrote that is no record of ours: it costs no other message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from ddmq.trial.cluster import TrialCluster
from ddmq_client import OutgoingMessage, Producer
from ddmq_client.errors import InvalidMessageError
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster, pulled, served_while
from tests.support.waits import until

pytestmark = pytest.mark.slow
SOON = timedelta(seconds=1)
MANY = 20  # so that every shard of delays has some


def as_user(name: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": name,
        "sasl.password": f"{name}-secret",
    }  # fmt: skip


WITH_ACCESS_CONTROL = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required username="
        '"admin" password="admin-secret" user_admin="admin-secret" user_ddmq="ddmq-secret";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialCluster]:
    with own_cluster(tmp_path_factory.mktemp("kafka"), more=WITH_ACCESS_CONTROL) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tools(cluster: TrialCluster) -> Tools:
    return Tools(cluster.bootstrap, **as_user("admin"))


def served(folder: Path, cluster: TrialCluster) -> KafkaServer:
    return KafkaServer(folder, cluster.bootstrap, librdkafka=as_user("ddmq"))


@pytest.fixture(scope="module")
def server(cluster: TrialCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with served_while(served(tmp_path_factory.mktemp("server"), cluster), KafkaServer.end) as server:
        yield server


@pytest.fixture
def producer(server: KafkaServer) -> Iterator[Producer]:
    with server.producer(attempts_max=1) as producer:
        yield producer


def await_topic(server: KafkaServer, topic: str) -> None:
    """Wait until the server knows a topic that others made."""
    until(lambda: server.request("GET", f"/topics/{topic}")[0] == 200)


def costs_nobody_else(server: KafkaServer, producer: Producer, topic: str) -> None:
    """A delayed message without a key that `topic` never takes: others come, and it is a dead letter."""
    group, other = f"{topic}-readers", f"{topic}-other"
    producer.send(other, b"there")
    server.subscribe(group, other)
    dead = server.metric("ddmq_delay_dead_total")
    with server.consumer(group, other) as client:
        producer.send(topic, b"never", delay=SOON)
        bodies = [b"%d" % number for number in range(MANY)]
        for body in bodies:
            producer.send(other, body, delay=SOON)
        assert sorted(pulled(client, MANY + 1)) == sorted([b"there", *bodies])
        until(lambda: server.metric("ddmq_delay_dead_total") == dead + 1)
    assert "under another name" not in server.log, "nobody has lost a queue"


def test_a_compacted_topic_takes_nothing_without_a_key(
    server: KafkaServer, tools: Tools, producer: Producer
) -> None:
    tools.make("latest", cleanup_policy="compact")
    await_topic(server, "latest")
    messages = [OutgoingMessage("latest", b"%d" % number, key="k") for number in range(MANY)]
    sends = [producer.send_async(each) for each in messages]
    with pytest.raises(InvalidMessageError, match=r"without a key.*compact"):
        producer.send("latest", b"none")
    for send in sends:
        assert send.result(30).code == 0
    costs_nobody_else(server, producer, "latest")


def test_a_topic_that_others_may_write_to(server: KafkaServer, tools: Tools, producer: Producer) -> None:
    """A transaction with such a record cannot even be aborted: it is refused before."""
    tools.make("theirs")
    await_topic(server, "theirs")
    acls = [
        AclBinding(
            ResourceType.TOPIC, "theirs", ResourcePatternType.LITERAL, "User:ddmq", "*", operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    ]  # fmt: skip
    for answer in tools.admin.create_acls(acls).values():
        answer.result()

    def refused() -> bool:
        with pytest.raises(Exception) as caught:  # until the change is seen: what Kafka says
            producer.send("theirs", b"x")
        return "allow it Write on topic theirs" in str(caught.value)

    until(refused)
    costs_nobody_else(server, producer, "theirs")


def test_headers_of_ddmq_with_any_content(server: KafkaServer, tools: Tools, producer: Producer) -> None:
    """One answer has several messages: what a client cannot read in it costs it all of them."""
    tools.make("foreign")
    await_topic(server, "foreign")
    server.subscribe("readers", "foreign")
    headers: list[tuple[str, bytes | None]] = [
        ("ddmq-raw", b"\xff"), ("ddmq-raw", b"\0"), ("ddmq-raw", None),
        ("ddmq-s-retry-deliveries", b"9" * 18),
        ("ddmq-born", b"9" * 18), ("ddmq-flags", b"8" * 18), ("ddmq-due", b"-" + b"9" * 18),
        ("ddmq-id", b"1"),
        ("ddmq-tag", b"\xff"), ("ddmq-b-_w==", b"\xff"), ("ddmq-b-%", b"x"), ("ddmq-s-", None), ("", b"\xff"),
    ]  # fmt: skip
    tools.send_all("foreign", [(b"%d" % number, [header]) for number, header in enumerate(headers)])
    with server.consumer("readers", "foreign") as client:
        assert pulled(client, len(headers)) == [b"%d" % number for number in range(len(headers))]


def test_records_of_others_in_the_system_s_topics(
    server: KafkaServer, cluster: TrialCluster, tools: Tools, producer: Producer, tmp_path: Path
) -> None:
    """Each is passed over, and nothing that stands behind it."""
    for topic in ("ddmq.settings", "ddmq.progress", "ddmq.coordination"):
        for key in (b"s/\xff", b"t/\xff", b"\x01\x90", b"none"):
            tools.send_all(topic, [(b"\x01x", None)], key)
    server.subscribe("behind", "garbage")
    producer.send("garbage", b"x")
    another = served(tmp_path, cluster)
    try:
        another.start()
        assert another.request("GET", "/groups/behind")[0] == 200
        with another.consumer("behind", "garbage") as client:
            assert pulled(client, 1) == [b"x"]
        assert "Traceback" not in another.log
    finally:
        another.end()
