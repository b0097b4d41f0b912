"""A broker comes back as another cluster with an empty disk while servers run; later the old one is back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from backend.kafka.coordination.events import Joined, decode_event
from ddmq.trial.cluster import TrialCluster
from ddmq_client.errors import NotStoredError
from tests.service.kafka.cluster_kit import KafkaServer, Tools, bodies, kill, own_cluster, pulled
from tests.support.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
OTHER_ID = "AnotherClusterIdAAAAAA"
DELAY_MS = 1_000


@contextmanager
def replaced(cluster: TrialCluster) -> Iterator[TrialCluster]:
    """The broker's address belongs to an empty cluster with another id, until the end of the block."""
    kill(cluster)
    state_file, broker = cluster.folder / "cluster.json", cluster.folder / "broker-1"
    state = state_file.read_text()
    (broker / "data").rename(broker / "data-old")
    state_file.write_text(json.dumps({**json.loads(state), "id": OTHER_ID}))
    other = TrialCluster(cluster.folder)
    other.start()
    yield other
    kill(other)
    (broker / "data").rename(broker / "data-other")
    (broker / "data-old").rename(broker / "data")
    state_file.write_text(state)
    cluster.start()


def test_a_server_takes_no_part_in_another_cluster_and_goes_on_in_its_own(tmp_path: Path) -> None:
    with own_cluster(tmp_path / "kafka") as cluster:
        own_id = Tools(cluster.bootstrap).admin.list_topics(timeout=10).cluster_id
        servers = [KafkaServer(tmp_path / name, cluster.bootstrap) for name in ("one", "two")]
        newcomer = KafkaServer(tmp_path / "newcomer", cluster.bootstrap)
        try:
            for server in servers:
                server.start()
            first = servers[0]
            with first.producer() as producer:
                for number in range(10):
                    producer.send("orders", b"%d" % number)
                first.subscribe("billing", "orders")
                with first.consumer("billing", "orders") as consumer:
                    consumed = pulled(consumer, 4, most=1)
                producer.send("orders", b"late", delay=timedelta(milliseconds=DELAY_MS * 30))
            with replaced(cluster) as other:
                for server in servers:
                    until(lambda: OTHER_ID in server.reason(), lambda: f"it is noticed: {server.reason()}")  # noqa: B023
                    assert str(own_id) in server.reason()
                    assert not server.ready
                    assert f"is cluster {OTHER_ID} now" in server.log
                newcomer.start()
                with newcomer.producer() as producer:
                    producer.send("orders", b"of the newcomer")
                for server in servers:
                    with server.producer(attempts_max=1) as producer, pytest.raises(NotStoredError) as told:
                        producer.send("orders", b"for nobody")
                    assert OTHER_ID in str(told.value)
                assert bodies(other) == [b"of the newcomer"]
                log = Tools(other.bootstrap).read("ddmq.coordination")
                joined = [decode_event(record.value()) for record in log if record.value() is not None]
                assert len({event.process for event in joined if isinstance(event, Joined)}) == 1
                newcomer.kill()
            for server in servers:
                until(lambda: server.ready, lambda: f"it goes on: {server.reason()}")  # noqa: B023
            with servers[1].producer() as producer:
                producer.send("orders", b"again")
            with servers[1].consumer("billing", "orders") as consumer:
                rest = pulled(consumer, 8)
            assert sorted(consumed + rest) == sorted([*(b"%d" % n for n in range(10)), b"again", b"late"])
        finally:
            for server in (*servers, newcomer):
                server.end()
