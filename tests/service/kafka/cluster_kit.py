"""A cluster of a test's own, which may be started late, killed and set as it likes, and servers over it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from ddmq.trial.cluster import Ports, TrialCluster, free_ports
from ddmq.trial.jars import java
from ddmq_client import Consumer as OurConsumer
from ddmq_client import Message
from ddmq_client import Producer as OurProducer
from ddmq_client.errors import NotStoredError, ProxyError, UnknownOutcomeError
from ddmq_common.errors import ConfigError
from tests.scenarios.real_server import RealServer, ddmq, write_config
from tests.support.waits import until

ClusterKind = TypeVar("ClusterKind", bound=TrialCluster)
TIMEOUT_S = 2.0
SEND_MS = 20_000
SPARE_S = 3.0  # beside the time that the caller gave; the machine may be busy


@contextmanager
def own_cluster(
    folder: Path,
    brokers: int = 1,
    more: Mapping[str, str] | None = None,
    start: bool = True,
    kind: type[ClusterKind] = TrialCluster,  # type: ignore[assignment]
) -> Iterator[ClusterKind]:
    """Brokers that end with the test."""
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    cluster = kind(folder, more)
    ports = free_ports(2 * brokers)
    cluster.make([Ports(*ports[2 * number : 2 * number + 2]) for number in range(brokers)])
    try:
        if start:
            cluster.start()
        yield cluster
    finally:
        kill(cluster)


def kill(cluster: TrialCluster) -> None:
    """Every broker, at once."""
    for number in cluster.brokers:
        cluster.signal(number, signal.SIGKILL)
    until(lambda: all(cluster.pid(number) is None for number in cluster.brokers))


class KafkaServer(RealServer):
    """`ddmq serve` over Kafka, by a folder of configuration."""

    ready_s = 180.0  # brokers that have just begun may take long to answer

    def __init__(self, folder: Path, bootstrap: str, processes: bool = False, **kafka: Any) -> None:
        settings = {"engine": "kafka", "kafka": {"bootstrap": bootstrap, **kafka}}
        config = write_config(folder / "conf", backend=settings)
        super().__init__(folder, config, processes)

    @property
    def ready(self) -> bool:
        """Whether /ready says so."""
        try:
            return self.request("GET", "/ready")[0] == 200
        except OSError:
            return False

    def started(self) -> None:
        """Wait until it says so; it was launched."""
        assert self.process is not None
        self._read_ready(self.process)

    def reason(self) -> str:
        """Why it is not ready; empty while its admin port is not open."""
        try:
            return str(self.request("GET", "/ready")[1]["reason"])
        except OSError:
            return ""

    def cli(self, *words: str) -> str:
        """A command that asks the admin port, as programs read it."""
        result = ddmq(*words, "--admin", f"127.0.0.1:{self.ports['admin']}")
        assert result.returncode == 0, result.stderr
        return result.stdout

    def producer(self, **terms: Any) -> OurProducer:
        """A producer whose calls may take long: the machine may be busy."""
        return OurProducer(f"127.0.0.1:{self.ports['producer']}", **{"timeout_ms": SEND_MS, **terms})

    def consumer(self, group: str, topic: str) -> OurConsumer:
        return OurConsumer(f"127.0.0.1:{self.ports['consumer']}", group, topic)

    def subscribe(self, group: str, topic: str, **settings: object) -> None:
        """From the first message on."""
        self.admin("POST", "groups", group, body={"topics": [topic], "start": "first", **settings})

    def lag(self, group: str) -> int:
        return sum(row["lag"] for row in self.request("GET", f"/lag?group={group}")[1])


@contextmanager
def served_while(
    server: KafkaServer, stop: Callable[[KafkaServer], object] = KafkaServer.kill
) -> Iterator[KafkaServer]:
    """Start the server; after the block it is killed, or stopped by `stop`, however the block ends."""
    try:
        server.start()
        yield server
    finally:
        stop(server)


class Tools:
    """What an operator does with Kafka's own tools."""

    def __init__(self, bootstrap: str, **settings: str) -> None:
        self._settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": "2", **settings}
        self.admin = AdminClient(self._settings)

    def make(self, name: str, queues: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        [answer] = self.admin.create_topics([NewTopic(name, queues, config=settings)]).values()
        answer.result()
        until(lambda: self.count(name) == queues)

    def count(self, name: str) -> int:
        """Partitions of a topic, 0 when it is not there."""
        topic = self.admin.list_topics(timeout=5).topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def delete(self, name: str) -> None:
        [answer] = self.admin.delete_topics([name]).values()
        answer.result()
        until(lambda: self.count(name) == 0)

    def set(self, kind: Any, name: str, **settings: str) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        [answer] = self.admin.incremental_alter_configs([resource]).values()
        answer.result()

    def set_topic(self, name: str, **settings: str) -> None:
        self.set(ConfigResource.Type.TOPIC, name, **settings)

    def config(self, name: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        [answer] = self.admin.describe_configs([resource]).values()
        return {key: entry.value for key, entry in answer.result().items()}

    def send(self, topic: str, values: list[tuple[bytes | None, bytes]], **terms: Any) -> list[int]:
        """As any Kafka producer does; gives the partition of each."""
        placed: list[int] = []
        producer = Producer({**self._settings, **terms})
        for key, value in values:
            producer.produce(topic, value, key, on_delivery=lambda _, sent: placed.append(sent.partition()))
            producer.flush(30)
        return placed

    def send_all(
        self,
        topic: str,
        records: list[tuple[bytes, list[tuple[str, bytes | None]] | None]],
        key: bytes | None = None,
    ) -> None:
        """Values with their headers, to its first partition, all at once."""
        producer = Producer(self._settings)
        for value, headers in records:
            producer.produce(topic, value, key, 0, headers=headers)
        assert producer.flush(30) == 0

    def read(self, topic: str, partition: int = 0) -> list[Any]:
        """Everything committed in it."""
        consumer = Consumer({
            **self._settings, "group.id": "reader", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True,
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, partition, 0)])
        messages = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            messages.append(message)
        consumer.close()
        return messages


def pulled(
    consumer: OurConsumer, count: int, settle: Callable[[Message], object] = Message.ack, most: int = 10
) -> list[bytes]:
    """So many messages, settled; at most `most` at a time."""
    bodies: list[bytes] = []

    def more() -> bool:
        for message in consumer.pull(most):
            bodies.append(message.body)
            settle(message)
        return len(bodies) >= count

    until(more, lambda: f"{count} messages, so far {bodies}")
    return bodies


def bodies(cluster: TrialCluster, topic: str = "orders") -> list[bytes]:
    """What is in the topic."""
    tools = Tools(cluster.bootstrap)
    return [message.value() for number in range(tools.count(topic)) for message in tools.read(topic, number)]


def is_stored(producer: OurProducer, body: bytes) -> bool:
    """Whether it is certainly stored."""
    try:
        producer.send("orders", body, timeout_ms=round(TIMEOUT_S * 1000))
    except ProxyError:
        return False
    return True


def store_next(producer: OurProducer, new_bodies: Iterator[bytes]) -> bytes:
    """Send one message after the other until one is certainly stored; returns that one."""
    sent: list[bytes] = []

    def is_next_stored() -> bool:
        sent.append(next(new_bodies))
        return is_stored(producer, sent[-1])

    until(is_next_stored, "a message is stored")
    return sent[-1]


def is_refused(producer: OurProducer, body: bytes) -> bool:
    """Answered 12 or 15, within the caller's time; whether it is certainly not stored."""
    began = time.monotonic()
    with pytest.raises((UnknownOutcomeError, NotStoredError)) as caught:
        producer.send("orders", body, timeout_ms=round(TIMEOUT_S * 1000))
    assert time.monotonic() - began < TIMEOUT_S + SPARE_S
    return isinstance(caught.value, NotStoredError)
