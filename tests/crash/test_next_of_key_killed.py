"""kill -9 between the arrival of an acknowledgement and its commit: nothing of the key had followed it.

The process that writes the log is another one and is stopped (SIGSTOP): so the commit is under way for as
long as the test needs. Four clients ask for the next messages of the key meanwhile. The same on Kafka, whose
brokers are stopped, is tests/service/kafka/test_kafka_key_order.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.kit.key_watch import Acknowledging, KeyWatch
from tests.scenarios.real_server import RealServer

MESSAGES = 6


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RealServer, RealServer]]:
    """The process that writes, and the consumer proxy, over one directory."""
    producer, consumer = (RealServer(tmp_path, command=command) for command in ("producer", "consumer"))
    try:
        yield producer.start(), consumer.start()
    finally:
        for server in (consumer, producer):
            server.kill()
            server.end()


@pytest.mark.slow
def test_a_kill_before_the_commit_repeats_one_message_and_nothing_behind_it(
    servers: tuple[RealServer, RealServer],
) -> None:
    writer, proxy = servers
    watch = KeyWatch(lambda: proxy.ports["consumer"])
    watch.prepare(proxy, writer.ports["producer"], MESSAGES)
    with watch.client() as client:
        acknowledging = Acknowledging(client, watch.pull(client, 5_000))
        assert watch.indexes == [0]
        os.kill(writer.pid, signal.SIGSTOP)
        try:
            acknowledging.start()
            watch.pull_beside(4, linger_ms=400)
            assert watch.indexes == [0], "something followed a message that is not durably finished"
            assert not acknowledging.stored, "the writer is stopped"
            proxy.kill()
        finally:
            os.kill(writer.pid, signal.SIGCONT)
        acknowledging.join(60)
    proxy.start()
    watch.pull_all(MESSAGES)
    assert watch.returns == []
