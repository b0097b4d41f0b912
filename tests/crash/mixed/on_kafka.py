"""The mixed run on Kafka: brokers of its own, which stay; every process of ours has its own directory.

Kafka has no order over several queues, so every key goes to one queue of each topic and a chain is what it
has there; the group over two topics has one chain in each. In the end everything is read through the
backend port; when a message was finished is told by the progress topic, whose segments are too young to
have been compacted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from backend.kafka.opening import open_kafka
from backend.kafka.options import KafkaOptions
from backend.kafka.state.tables import Stamp, parse_progress_key
from backend.progress.ack_map import AckMap
from backend.progress.codec import decode_progress
from backend.progress.group_progress import Key
from ddmq.trial.cluster import Ports, TrialCluster, free_ports
from ddmq_common.clock import SystemClock
from tests.crash.mixed.clients import Load
from tests.crash.mixed.history import Ending, Finish, Plan
from tests.crash.mixed.reading import read_backend, read_losses
from tests.crash.mixed.rules import Violation
from tests.crash.mixed_run import ORDERED, PLANS, SETTINGS, MixedRun, configuration
from tests.scenarios.real_server import RealServer

READ_S = 60.0
OVER_BOTH = Plan("by-path", ("orders", "events"), "topic", *PLANS[0][3:])


class KafkaMixedRun(MixedRun):
    """One run. `brokers`: how many."""

    plans = (*PLANS[:2], OVER_BOTH, PLANS[-1])
    settings = {**SETTINGS, "by-path": {"order_key": "$.k", "order_scope": "topic", **ORDERED}}

    def __init__(
        self,
        folder: Path,
        seed: int,
        load: Load,
        seconds: float,
        proxies: int,
        processes: bool,
        print_line: Callable[[str], None],
        brokers: int,
    ) -> None:
        self.cluster = TrialCluster(folder / "kafka")
        self.cluster.make([Ports(*free_ports(2)) for _ in range(brokers)])
        super().__init__(folder, seed, load, seconds, proxies, processes, print_line)

    def configuration(self, folder: Path) -> Path:
        config = configuration(folder)
        tree = {"engine": "kafka", "kafka": {"bootstrap": self.cluster.bootstrap}}
        (config / "backend.yaml").write_text(json.dumps(tree))
        (config / "file_log.yaml").unlink()
        return config

    def server(self, folder: Path, config: Path, name: str) -> RealServer:
        server = super().server(folder, config, name)
        server.data_dir = folder / name
        return server

    def run(self) -> list[Violation]:
        try:
            self.cluster.start()
            return super().run()
        finally:
            self.cluster.stop()

    def read(self, logs: dict[str, Path], offset_s: float) -> Ending:
        options = KafkaOptions(self.cluster.bootstrap)
        backend = open_kafka(options, clock=SystemClock())
        try:
            ending = read_backend(backend, self.plans, offset_s)
        finally:
            backend.close()
        ending.finishes = list(_finishes(options))
        ending.losses = read_losses(logs, offset_s)
        return ending


def _finishes(options: KafkaOptions) -> Iterator[Finish]:
    """What each record of progress that counted has added to what the ones before it said."""
    progress_of: dict[Key, tuple[Stamp, AckMap]] = {}
    for message in _everything(options, options.names.system_topic("progress")):
        if message.value() is None:
            continue
        key, stamp = parse_progress_key(message.key())
        before, acks = progress_of.get(key, (stamp, AckMap()))
        if stamp < before:
            continue
        _, queue, progress = decode_progress(message.value())
        progress_of[key] = stamp, progress.acks
        view = progress.view()
        for start, end in [(acks.committed, view.committed or 0), *view.finished]:
            for offset in range(start, end):
                if not acks.is_finished(offset):
                    yield Finish(key[0], queue.topic, queue.queue_id, offset, offset + 1, message.offset())


def _everything(options: KafkaOptions, topic: str) -> Iterator[Any]:
    client = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "the-truth",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        unread_partitions = set(client.list_topics(topic, timeout=READ_S).topics[topic].partitions)
        client.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread_partitions])
        while unread_partitions:
            message = client.poll(READ_S)
            assert message is not None, f"{topic} cannot be read to its end"
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                unread_partitions.discard(message.partition())
    finally:
        client.close()
