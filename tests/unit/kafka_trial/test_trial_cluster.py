"""The trial cluster's folder: what is laid out, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq.trial.cluster import Ports, TrialCluster
from ddmq.trial.jars import libraries
from ddmq_common.errors import ConfigError

THREE = [Ports(9092, 9093), Ports(9094, 9095), Ports(9096, 9097)]


def properties(folder: Path, number: int) -> dict[str, str]:
    text = (folder / f"broker-{number}" / "server.properties").read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def test_three_brokers_copy_to_each_other(tmp_path: Path) -> None:
    cluster = TrialCluster(tmp_path / "kafka")
    cluster.make(THREE)
    found = properties(tmp_path / "kafka", 2)
    assert found["controller.quorum.voters"] == "1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9097"
    assert (found["node.id"], found["default.replication.factor"], found["min.insync.replicas"]) == (
        "2",
        "3",
        "2",
    )
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9094"


def test_one_broker_copies_to_nobody(tmp_path: Path) -> None:
    TrialCluster(tmp_path, {"flush.messages": "1"}).make(THREE[:1])
    found = properties(tmp_path, 1)
    assert (found["offsets.topic.replication.factor"], found["transaction.state.log.min.isr"]) == ("1", "1")
    assert found["flush.messages"] == "1"


def test_a_cluster_is_started_again_as_it_was(tmp_path: Path) -> None:
    TrialCluster(tmp_path).make(THREE)
    again = TrialCluster(tmp_path)
    assert (list(again.brokers), again.bootstrap) == (
        [1, 2, 3],
        "127.0.0.1:9092,127.0.0.1:9094,127.0.0.1:9096",
    )
    again.make(THREE)
    with pytest.raises(ConfigError, match="holds a cluster of 3 brokers at 127"):
        again.make(THREE[:1])
    assert [again.pid(number) for number in again.brokers] == [None] * 3


def test_a_process_of_another_kind_is_no_broker(tmp_path: Path) -> None:
    cluster = TrialCluster(tmp_path)
    cluster.make(THREE[:1])
    (tmp_path / "broker-1" / "pid").write_text("1")
    assert cluster.pid(1) is None


def test_where_kafka_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    with pytest.raises(ConfigError, match=r"KAFKA_HOME is .* holds no Kafka"):
        libraries({"KAFKA_HOME": str(tmp_path)})
    (tmp_path / "libs" / "kafka_2.13-4.2.1.jar").touch()
    assert libraries({"KAFKA_HOME": str(tmp_path)}) == tmp_path / "libs"
    with pytest.raises(ConfigError, match=r"KAFKA_VERSION is 4; allowed: .* such as 4\.2\.1"):
        libraries({"KAFKA_VERSION": "4"})
    with pytest.raises(ConfigError, match=r"Kafka 3\.3\.2 is brought by Maven, and there is no mvn"):
        libraries({"KAFKA_VERSION": "3.3.2", "XDG_CACHE_HOME": str(tmp_path), "PATH": ""})
    with pytest.raises(ConfigError, match="no mvn on PATH"):
        libraries({"XDG_CACHE_HOME": str(tmp_path), "PATH": ""})
