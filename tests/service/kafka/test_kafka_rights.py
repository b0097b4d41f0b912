"""The rights of docs/kafka-security.md on a broker with an authorizer: they suffice, and each is needed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ddmq.trial.cluster import TrialCluster
from ddmq_client import Message
from tests.scenarios.real_server import ddmq
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster, pulled, served_while
from tests.support.waits import until

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[3] / "docs" / "kafka-security.md"
PREFIX = "teamb."
WITH_AUTHORIZER = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required username="
        '"admin" password="admin-secret" user_admin="admin-secret";'
    ),
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
}
ADMIN = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": "admin-secret"}
USER = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "ddmq", "sasl.password": "ddmq-secret"}
PROTOCOL = {"security.protocol": "SASL_PLAINTEXT"}
RESOURCES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
    "--cluster": ResourceType.BROKER,
}


def listed_rights() -> list[AclBinding]:
    """The rights that the commands of the page give."""
    text = PAGE.read_text().replace("\\\n", "")
    return [right for line in text.splitlines() if line.startswith("acls --") for right in parse(line)]


def parse(command: str) -> Iterator[AclBinding]:
    words = shlex.split(command)[1:]
    kind = RESOURCES[words[0]]
    name = "kafka-cluster" if kind is ResourceType.BROKER else words[1]
    pattern = ResourcePatternType.PREFIXED if "prefixed" in words else ResourcePatternType.LITERAL
    for operation in re.findall(r"--operation (\w+)", command):
        operation = AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()]
        yield AclBinding(kind, name, pattern, "User:ddmq", "*", operation, AclPermissionType.ALLOW)


def give(tools: Tools, rights: list[AclBinding]) -> None:
    for answer in tools.admin.create_acls(rights).values():
        answer.result()


def take(tools: Tools, right: AclBinding) -> None:
    terms = (right.restype, right.name, right.resource_pattern_type, right.principal, right.host)
    [answer] = tools.admin.delete_acls(
        [AclBindingFilter(*terms, right.operation, right.permission_type)]
    ).values()
    assert answer.result(), "it was there"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialCluster]:
    with own_cluster(tmp_path_factory.mktemp("kafka"), more=WITH_AUTHORIZER) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tools(cluster: TrialCluster) -> Tools:
    tools = Tools(cluster.bootstrap, **PROTOCOL, **ADMIN)
    secret = UserScramCredentialUpsertion(
        "ddmq", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"ddmq-secret"
    )
    for answer in tools.admin.alter_user_scram_credentials([secret]).values():
        answer.result()
    give(tools, listed_rights())
    return tools


def served(folder: Path, cluster: TrialCluster) -> KafkaServer:
    return KafkaServer(
        folder, cluster.bootstrap, topic_prefix=PREFIX, session_ms=10_000, librdkafka={**PROTOCOL, **USER}
    )


@pytest.fixture(scope="module")
def server(
    cluster: TrialCluster, tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaServer]:
    with served_while(served(tmp_path_factory.mktemp("server"), cluster), KafkaServer.end) as server:
        yield server


def test_the_listed_rights_suffice(server: KafkaServer, cluster: TrialCluster) -> None:
    server.cli("topic", "create", "orders", "--queues", "2")
    server.cli("topic", "set", "orders", "--queues", "3", "--retention-ms", "3600000")
    server.subscribe("billing", "orders", order_key="KEY", retry_intervals_ms=[50])
    server.subscribe("retriers", "retried", retry_intervals_ms=[], retry_steps=1)
    with server.producer() as producer, server.consumer("billing", "orders") as billing:
        producer.send("orders", b"plain")
        producer.send("orders", b"level", level=1)
        producer.send("orders", b"due", delay=timedelta(milliseconds=1500))
        for number in range(3):
            producer.send("orders", b"k%d" % number, key="k")
        bodies = pulled(billing, 6)
        assert [body for body in bodies if body[:1] == b"k"] == [b"k0", b"k1", b"k2"]
        assert sorted(bodies) == [b"due", b"k0", b"k1", b"k2", b"level", b"plain"]
        producer.send("retried", b"again")
        with server.consumer("retriers", "retried") as retriers:
            assert pulled(retriers, 1, Message.fail) == [b"again"]
            assert pulled(retriers, 1) == [b"again"], "over its delay level"
    until(lambda: mirrored(cluster) >= 6)
    server.admin("POST", "groups", "billing", "offsets", body={"topic": "orders", "to": "first"})
    server.cli("topic", "create", "gone")
    server.cli("topic", "delete", "gone", "--yes")
    checked = ddmq("doctor", "--config", str(server.config))
    assert "cluster " in checked.stdout
    assert "not to be seen" not in checked.stdout
    for word in ("denied", "authoriz", "Authoriz", "AUTHORIZ", "Traceback"):
        assert word not in server.log, server.log


def mirrored(cluster: TrialCluster) -> int:
    """The sum of the offsets that Kafka's own tools see for the group."""
    reader = Consumer({
        "bootstrap.servers": cluster.bootstrap, **PROTOCOL, **ADMIN, "group.id": f"{PREFIX}billing",
    })  # fmt: skip
    try:
        partitions = [TopicPartition(f"{PREFIX}orders", number) for number in range(3)]
        return sum(max(committed.offset, 0) for committed in reader.committed(partitions, 10))
    finally:
        reader.close()
