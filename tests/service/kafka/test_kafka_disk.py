"""A broker whose disk is full: it ends, as Kafka does, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.service.kafka.cluster_kit import (
    KafkaServer,
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which is soon full."""
    folder = tmp_path / "kafka"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", SMALL, "none", folder]).returncode:
        pytest.skip("NO FULL DISK IS TESTED: this user may mount nothing")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


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
