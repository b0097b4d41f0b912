"""Another cluster than the one that a directory or the settings belong to is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.kafka.coordination.feature_level import CLUSTER_SETTING, LEVEL
from backend.kafka.opening import FILE
from backend.kafka.state.tables import setting_key, wrap_value
from ddmq.trial.cluster import TrialCluster
from tests.scenarios.real_server import NotReady, ddmq
from tests.service.kafka.cluster_kit import KafkaServer, Tools, own_cluster
from tests.support.waits import until

pytestmark = pytest.mark.slow
OTHER = "another-cluster-0000000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialCluster]:
    with own_cluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


def cluster_id(cluster: TrialCluster) -> str:
    return str(Tools(cluster.bootstrap).admin.list_topics(timeout=10).cluster_id)


def test_a_directory_of_another_cluster_is_rejected(tmp_path: Path, cluster: TrialCluster) -> None:
    server, own_id = KafkaServer(tmp_path, cluster.bootstrap), cluster_id(cluster)
    recorded = server.data_dir / FILE
    try:
        server.start()
        assert recorded.read_text().strip() == own_id
        server.terminate()
        server.wait()
        server.start()  # the same cluster: nothing is said
        server.terminate()
        server.wait()
        recorded.write_text(OTHER)
        with pytest.raises(NotReady) as refused:
            server.start()
        assert OTHER in str(refused.value)
        assert own_id in str(refused.value)
        assert "choose another data directory" in str(refused.value)
        terms = ("--config", str(server.config), "--data-dir", str(server.data_dir))
        assert f"belongs to Kafka cluster {OTHER}" in ddmq("doctor", *terms, "--json").stdout
    finally:
        server.end()


def test_settings_of_another_cluster_are_rejected(tmp_path: Path, cluster: TrialCluster) -> None:
    terms = {"namespace": "copied"}
    first, second = (KafkaServer(tmp_path / name, cluster.bootstrap, **terms) for name in ("one", "two"))
    try:
        first.start()
        first.kill()
        tools = Tools(cluster.bootstrap)
        [recorded] = [
            each.value()
            for each in tools.read("copied.settings")
            if each.key() == setting_key(CLUSTER_SETTING)
        ]
        assert recorded == wrap_value(f"{cluster_id(cluster)} (feature level {LEVEL})".encode())
        tools.send("copied.settings", [(setting_key(CLUSTER_SETTING), wrap_value(OTHER.encode()))])
        with pytest.raises(NotReady) as refused:
            second.start()
        assert OTHER in str(refused.value)
        assert cluster_id(cluster) in str(refused.value)
        assert "another namespace" in str(refused.value)
        assert not (second.data_dir / FILE).exists()
    finally:
        first.end()
        second.end()


def test_a_higher_feature_level_is_rejected(tmp_path: Path, cluster: TrialCluster) -> None:
    terms = {"namespace": "later"}
    first, second = (KafkaServer(tmp_path / name, cluster.bootstrap, **terms) for name in ("one", "two"))
    try:
        first.start()
        first.kill()
        record = f"{cluster_id(cluster)} (feature level {LEVEL + 1})".encode()
        tools = Tools(cluster.bootstrap)
        tools.send("later.settings", [(setting_key(CLUSTER_SETTING), wrap_value(record))])
        with pytest.raises(NotReady) as refused:
            second.start()
        assert f"start a version that supports level {LEVEL + 1}" in str(refused.value)
        words = ("--config", str(second.config), "--data-dir", str(second.data_dir))
        assert f"the installation is at feature level {LEVEL + 1}" in ddmq("doctor", *words, "--json").stdout
    finally:
        first.end()
        second.end()


def test_the_level_can_be_held(tmp_path: Path, cluster: TrialCluster) -> None:
    held, free = (
        KafkaServer(tmp_path / f"{level}", cluster.bootstrap, namespace="held", feature_level=level)
        for level in (1, 0)
    )
    try:
        held.start()
        free.start()
        until(lambda: "stays at 1 until" in free.request("GET", "/health")[1].get("warning", ""))
        assert held.metric("ddmq_kafka_feature_level") == 1
        held.terminate()
        held.wait()
        until(lambda: free.metric("ddmq_kafka_feature_level") == LEVEL)
        with pytest.raises(NotReady) as refused:
            held.start()
        assert f"feature_level is 1; a level never falls; allowed: 0, or {LEVEL} or more" in str(
            refused.value
        )
    finally:
        held.end()
        free.end()
