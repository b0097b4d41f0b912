"""Producer proxies and messages for the tests of sends that are stored once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from backend.records import TopicInfo
from ddmq_common.names import DELAY_TOPIC
from ddmq_rpc.api import Service
from proxy_producer.config import DelayLimits, RateLimit
from tests.interop.apache_client import Message, Result
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer
from tests.service.proxy_server import PATIENCE_S
from tests.support.waits import until
from tests.unit.producer.producer_delay_rig import Shards

TOPICS = (TopicInfo("orders", 0, 4), TopicInfo("slow", 0, 4), TopicInfo(DELAY_TOPIC, 0, 4))
NUMBERS = itertools.count()
PRODUCER = b"\x07" * 16
OLD_KEY = "idempotency-key"
TIMEOUT_MS = PATIENCE_S * 1_000
PATIENT = {"timeout_ms_max": TIMEOUT_MS, "defer_ms_max": 0}


class DelayingServer(ProducerServer):
    """One beside which a delay service seems to run."""

    def open(self) -> Service:
        service = super().open()
        shards = Shards(self.backend)
        until(lambda: len(shards.queues) == 4)
        return service


class KeylessServer(ProducerServer):
    """One over an engine that does not recognise messages."""

    def open(self) -> Service:
        self.backend.capabilities = replace(self.backend.capabilities, idempotent=False)
        return super().open()


class KeysServer(ProducerServer):
    """One over an engine that recognises keys, but no sequences."""

    def open(self) -> Service:
        self.backend.recognises_numbers = False
        return super().open()


@pytest.fixture(scope="module")
def server() -> Iterator[ProducerServer]:
    server = DelayingServer(
        TOPICS,
        delay=DelayLimits(dialects={"orders": ("amq", "ddmq", "rabbit")}),
        topic_rates={"slow": RateLimit(messages_per_s=0.001, burst_ms=1_000)},
        **PATIENT,
    )
    yield server
    server.stop()


@pytest.fixture
def key() -> str:
    return f"key-{next(NUMBERS)}"


def numbered(topic: str, sequence: int, below: int = 0, **fields: Any) -> Message:
    """With a sequence of PRODUCER."""
    arguments = {"topic": topic, "body": b"%d" % sequence, "partitionId": -2, **fields}
    return Message(producerId=PRODUCER, sequence=sequence, answeredBelow=below, **arguments)


def keyed(topic: str, key: str, body: bytes = b"body") -> Message:
    return Message(topic=topic, body=body, idempotencyKey=key, partitionId=-2)


def sent(client: Client, message: Message) -> Result:
    """By sendSync, stored."""
    result: Result = client.call("sendSync", message=message, timeout=TIMEOUT_MS)
    assert result.code == 0, result
    return result


def position_of(result: Result) -> tuple[str, int, int]:
    return result.messageId, result.queueId, result.offset
