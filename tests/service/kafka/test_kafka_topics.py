"""Kafka's own settings of a topic, through the same commands as all others; every process hears of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ddmq.trial.cluster import TrialCluster
from tests.scenarios.real_server import RealServer, ddmq
from tests.service.kafka.cluster_kit import SPARE_S, KafkaServer, Tools, own_cluster
from tests.support.waits import until

pytestmark = pytest.mark.slow
NOTIFIED_S = 1.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialCluster]:
    with own_cluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def servers(cluster: TrialCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KafkaServer]]:
    """Two processes over one cluster."""
    servers = [KafkaServer(tmp_path_factory.mktemp(name), cluster.bootstrap) for name in ("one", "two")]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.end()


def refused(server: RealServer, *words: str) -> str:
    """What a command says that the server does not do."""
    result = ddmq(*words, "--admin", f"127.0.0.1:{server.ports['admin']}")
    assert result.returncode == 1, result
    return result.stderr


def keeps(server: KafkaServer, topic: str, retention_ms: int) -> bool:
    """Whether it knows of that."""
    return bool(server.request("GET", f"/topics/{topic}")[1].get("retention_ms") == retention_ms)


def test_a_topic_is_created_and_changed_with_kafkas_settings(
    cluster: TrialCluster, servers: list[KafkaServer]
) -> None:
    one, two = servers
    tools = Tools(cluster.bootstrap)
    one.cli(
        "topic",
        "create",
        "orders",
        "--replication-factor",
        "1",
        "--min-insync",
        "1",
        "--retention-ms",
        "600000",
    )
    config = tools.config("orders")
    assert (config["retention.ms"], config["min.insync.replicas"]) == ("600000", "1")
    shown = json.loads(one.cli("topic", "show", "orders", "--json"))
    assert (shown["replication_factor"], shown["min_insync"], shown["retention_ms"]) == (1, 1, 600_000)
    until(partial(keeps, two, "orders", 600_000))
    for retention_ms in (700_000, -1):
        one.cli("topic", "set", "orders", "--retention-ms", str(retention_ms))
        began = time.monotonic()
        until(partial(keeps, two, "orders", retention_ms))
        assert time.monotonic() - began < NOTIFIED_S + SPARE_S
        assert tools.config("orders")["retention.ms"] == str(retention_ms)
    one.cli("topic", "set", "orders", "--not-writable")
    assert tools.config("orders")["retention.ms"] == "-1", "what is not named stays"


def test_impossible_settings_are_rejected(servers: list[KafkaServer]) -> None:
    one = servers[0]
    one.cli("topic", "create", "kept")
    assert "kafka-reassign-partitions.sh" in refused(one, "topic", "set", "kept", "--replication-factor", "2")
    assert "min_insync is 2; allowed: at most 1" in refused(one, "topic", "set", "kept", "--min-insync", "2")
    assert "min_insync is 2; allowed: at most 1" in refused(one, "topic", "create", "no", "--min-insync", "2")
    assert "replication factor" in refused(one, "topic", "create", "no", "--replication-factor", "3")
    assert one.request("GET", "/topics/no")[0] == 404


def test_a_file_says_them_too(cluster: TrialCluster, tmp_path: Path) -> None:
    server, tools = KafkaServer(tmp_path, cluster.bootstrap, namespace="filed"), Tools(cluster.bootstrap)
    assert server.config is not None
    file = server.config / "topics.yaml"
    try:
        file.write_text(json.dumps({"topics": {"filed": {"queues": 2, "retention_ms": 500_000}}}))
        server.start()
        assert tools.config("filed")["retention.ms"] == "500000"
        file.write_text(json.dumps({"topics": {"filed": {"queues": 2, "retention_ms": 400_000}}}))
        server.kill()
        server.start()
        assert tools.config("filed")["retention.ms"] == "400000"
        file.write_text(json.dumps({"topics": {"filed": {"queues": 2}}}))
        server.kill()
        server.start()
        assert tools.config("filed")["retention.ms"] == "400000"
    finally:
        server.end()


@pytest.mark.parametrize("option", ["--replication-factor", "--min-insync", "--retention-ms"])
def test_the_file_log_has_no_such_settings(tmp_path: Path, option: str) -> None:
    server = RealServer(tmp_path)
    try:
        server.start()
        error = refused(server, "topic", "create", "orders", option, "1")
        assert f"{option[2:].replace('-', '_')} is 1" in error
        assert "file_log has no such setting" in error
        assert server.request("GET", "/topics/orders")[0] == 404
    finally:
        server.end()
