"""Order keys while Kafka answers no commit: the next message of a key waits, even if the proxy dies.

A commit takes as long as Kafka's answer, seconds while a broker is away: here it is stopped (SIGSTOP). The
same on the file log is tests/crash/test_next_of_key_killed.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.crash.kit.key_watch import Acknowledging, KeyWatch
from tests.service.kafka.cluster_kit import KafkaServer, own_cluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
MESSAGES = 10
CLIENTS = 5


def test_a_kill_before_the_commit_repeats_one_message_and_nothing_behind_it(tmp_path: Path) -> None:
    with own_cluster(tmp_path / "kafka") as cluster:
        proxies = [KafkaServer(tmp_path / name, cluster.bootstrap) for name in ("first", "second")]
        proxy = proxies[0].start()
        try:
            watch = KeyWatch(lambda: proxy.ports["consumer"])
            watch.prepare(proxy, proxy.ports["producer"], MESSAGES)
            with watch.client() as client:
                acknowledging = Acknowledging(client, watch.pull(client, 10_000))
                assert watch.indexes == [0]
                cluster.signal(1, signal.SIGSTOP)
                try:
                    acknowledging.start()
                    watch.pull_beside(CLIENTS, linger_ms=500)
                    assert watch.indexes == [0], "something followed a message that is not durably finished"
                    assert not acknowledging.stored, "Kafka is stopped"
                    proxy.kill()
                finally:
                    cluster.signal(1, signal.SIGCONT)
                acknowledging.join(60)
            proxy = proxies[1].start()
            watch.pull_all(MESSAGES)
            assert watch.returns == []
        finally:
            for each in proxies:
                each.kill()
                each.end()
