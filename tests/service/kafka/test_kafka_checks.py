"""A real cluster that is set so that promises break: doctor and the start of a process say so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq.trial.cluster import TrialCluster
from ddmq.trial.jars import broker_version
from tests.scenarios.real_server import ddmq
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster
from tests.support.waits import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialCluster]:
    with own_cluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


def list_findings(server: KafkaServer) -> list[dict[str, str]]:
    """What doctor finds of the cluster."""
    result = ddmq("doctor", "--config", str(server.config), "--json")
    return [row for row in json.loads(result.stdout) if row["check"].startswith("kafka")]


def test_a_broken_promise_is_reported_at_the_start_and_by_doctor(
    tmp_path: Path, cluster: TrialCluster
) -> None:
    server, tools = KafkaServer(tmp_path, cluster.bootstrap), Tools(cluster.bootstrap)
    try:
        server.start()
        server.cli("topic", "create", "orders")
        tools.set_topic("ddmq.progress", cleanup_policy="delete")
        tools.set_topic("orders", unclean_leader_election_enable="true", message_timestamp_type="CreateTime")
        tools.make("theirs", message_timestamp_type="CreateTime")
        server.kill()
        server.start()
        lines = [line for line in until(lambda: warnings(server)) if "compact" in line]
        assert "topic ddmq.progress: cleanup.policy=delete" in lines[0]
        assert "--entity-name ddmq.progress --add-config cleanup.policy=compact" in lines[0]
        until(lambda: "topic orders: unclean.leader.election.enable=true" in server.log)
        until(lambda: "topic orders: message.timestamp.type=CreateTime" in server.log)
        assert "topic theirs" not in server.log
        findings = {row["found"].partition(": ")[2].partition(": ")[0]: row for row in list_findings(server)}
        assert findings["cleanup.policy=delete"]["status"] == "failed"
        assert findings["message.timestamp.type=CreateTime"]["status"] == "warning"
        assert "cleanup.policy=compact" in findings["cleanup.policy=delete"]["remedy"]
        assert findings["flush.messages=9223372036854775807"]["status"] == "warning"
        release = tuple(map(int, broker_version().split(".")))
        assert ("Kafka 4.3 or newer" in findings) == (release >= (4, 3, 0))
        tools.set_topic("ddmq.progress", cleanup_policy="compact")
        assert not [row for row in list_findings(server) if "ddmq.progress: cleanup" in row["found"]]
    finally:
        server.end()


def warnings(server: KafkaServer) -> list[str]:
    """The lines about settings, once there are some."""
    return [line for line in server.log.splitlines() if "breaks a promise" in line]
