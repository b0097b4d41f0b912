"""Kafka as a queue: one broker that syncs each record, and confluent-kafka, which is its own load."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from bench.harness import CLIENT_CORE, SERVER_CORE, pin
from bench.kafka.rig import QUEUES, Rig, rig
from bench.peers.queued import BODY, GROUP, Queued
from ddmq.trial import jars
from ddmq_common.errors import ConfigError


class Kafka(Queued):
    """Sends: as many messages under way as with the others. Pulls: one consumer that commits each 100."""

    name = "Kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pin(SERVER_CORE)  # what the brokers start with
        self._entered = rig(fsync=True)
        self._rig: Rig = self._entered.__enter__()
        pin(CLIENT_CORE)
        self._topic = self._rig.name("peers")
        self._rig.make_topic(self._topic)
        self._consumed = [0] * QUEUES

    @classmethod
    def missing(cls) -> str:
        try:
            jars.java()
            jars.libraries()
        except ConfigError as error:
            return str(error)
        return ""

    @classmethod
    def version(cls) -> str:
        return (
            f"Kafka {jars.broker_version()}, confluent-kafka {importlib.metadata.version('confluent-kafka')}"
        )

    def sessions(self) -> set[int]:
        cluster = self._rig.cluster
        return {pid for number in cluster.brokers if (pid := cluster.pid(number)) is not None}

    def sends(self, connections: int, batch: int, calls: int) -> dict[str, float]:
        arguments = (self._topic, QUEUES, connections, batch, len(BODY), calls * batch)
        return self._measured("produce", *arguments, count=calls * batch)

    def pulls(self, count: int) -> dict[str, float]:
        first = ",".join(map(str, self._consumed))
        figures = self._measured("consume", self._topic, QUEUES, GROUP, first, count, "sync", count=count)
        self._consumed = self._ends()
        return figures

    def _measured(self, *arguments: object, count: int) -> dict[str, float]:
        """With the brokers' processor time instead of the client's; that of its start is in it."""
        figures: dict[str, float] = {}

        def act() -> int:
            figures.update(self._rig.bare(str(arguments[0]), *arguments[1:], core=CLIENT_CORE))
            return count

        return figures | {"cpu_us": self.cpu_us(act)}

    def _ends(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self._rig.bootstrap, "group.id": "ends"})
        partitions = [TopicPartition(self._topic, number) for number in range(QUEUES)]
        ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
        consumer.close()
        return ends

    def stop(self) -> None:
        self._entered.__exit__(None, None, None)
