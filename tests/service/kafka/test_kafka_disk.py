"""A broker whose disk is full: it ends, as Kafka does, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from ddmq.trial.cluster import TrialCluster
from tests.service.kafka.cluster_kit import (
    KafkaServer,
    Tools,
    bodies,
    is_refused,
    is_stored,
    own_cluster,
    store_next,
)
from tests.support.waits import until

pytestmark = pytest.mark.slow
SMALL, LARGER = "size=48m", "size=256m"
FULL_S = 240.0  # until a disk is full, on a busy machine


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A file system of its own, which is soon full."""
    folder.mkdir(parents=True)
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", SMALL, "none", folder]).returncode:
        pytest.skip("NO FULL DISK IS TESTED: this user may mount nothing")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "kafka") as folder:
        yield folder


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path, small_disk: Path) -> None:
    bytes_of = random.Random(1)
    with own_cluster(small_disk, more={"log.segment.bytes": str(8 << 20)}) as cluster:
        server = KafkaServer(tmp_path / "server", cluster.bootstrap)
        try:
            server.start()
            with server.producer(attempts_max=1) as producer:
                new_bodies = (b"%d " % number + bytes_of.randbytes(500_000) for number in count())
                until(lambda: is_stored(producer, b"the topic is made"))
                stored: list[bytes] = []

                def is_full() -> bool:
                    body = next(new_bodies)
                    if is_stored(producer, body):
                        stored.append(body)
                    return cluster.pid(1) is None

                until(is_full, "the broker has ended", seconds=FULL_S)
                assert stored
                until(lambda: not server.ready)
                refused = {body for body in (b"while %d" % n for n in range(3)) if is_refused(producer, body)}
                subprocess.run(["mount", "-o", f"remount,{LARGER}", small_disk], check=True)
                cluster.start()
                until(lambda: server.ready)
                last = store_next(producer, new_bodies)
            stored_now = bodies(cluster)
            assert {*stored, last} <= set(stored_now)
            assert not refused & set(stored_now)
        finally:
            server.end()


def test_other_brokers_go_on_when_the_disk_of_one_is_full(tmp_path: Path) -> None:
    """Sends are stored by two brokers of three; the third one copies what it missed when it has space."""
    folder = tmp_path / "cluster"
    with mounted(folder / "broker-3"), own_cluster(folder, 3, {"log.segment.bytes": str(8 << 20)}) as cluster:
        servers = [KafkaServer(tmp_path / name, cluster.bootstrap) for name in ("one", "other")]
        try:
            for server in servers:
                server.start()
            producers = [server.producer() for server in servers]
            until(lambda: is_stored(producers[0], b"the topic is made"))
            stored = [b"the topic is made"]
            bytes_of = random.Random(2)
            number = 0
            while cluster.pid(3) is not None:
                body = b"%d " % (number := number + 1) + bytes_of.randbytes(500_000)
                producers[number % 2].send("orders", body, idempotency_key=str(number))
                stored.append(body)
            for _ in range(10):
                body = b"%d " % (number := number + 1)
                producers[number % 2].send("orders", body, idempotency_key=str(number))
                stored.append(body)
            assert all(server.ready for server in servers)
            subprocess.run(["mount", "-o", f"remount,{LARGER}", folder / "broker-3"], check=True)
            cluster.start([3])
            until(lambda: min_in_sync(cluster) == 3, "all copies are in sync", seconds=FULL_S)
            assert sorted(bodies(cluster)) == sorted(stored), "each once"
            for producer in producers:
                producer.close()
        finally:
            for server in servers:
                server.end()


def min_in_sync(cluster: TrialCluster) -> int:
    """The fewest copies in sync of a partition."""
    topics = Tools(cluster.bootstrap).admin.list_topics(timeout=10).topics
    return min(len(partition.isrs) for topic in topics.values() for partition in topic.partitions.values())
