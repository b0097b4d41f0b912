"""Acknowledgements that carry messages, seen by Apache's own Thrift library in both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from backend.records import QueueRef
from ddmq_common.delivery import decode
from ddmq_rpc.api import Service
from proxy_consumer.service import ConsumerService
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.interop.apache_client import Client, Context, Delivered, ReplyMessage, ReplyRequest, ReplyResponse
from tests.service.consumer.consumer_server import ConsumerServer
from tests.service.proxy_server import PATIENCE_S


class ReplyServer(ConsumerServer):
    """With a sender of its own."""

    def open(self) -> Service:
        collaborators = (self.metrics, self.clock, Random())
        self.sends = ProducerService(self.backend, ProducerConfig(), *collaborators)
        self.proxy = ConsumerService(self.backend, self._config, *collaborators, replies=self.sends.replies)
        self.proxy.start()
        return self.proxy.service()

    def bodies(self, topic: str) -> list[bytes]:
        def read() -> list[bytes]:
            info = self.backend.topic(topic)
            bodies: list[bytes] = []
            for queue in () if info is None else info.refs():
                batch = self.backend.read(QueueRef(*queue), 0, 1_000, 1 << 24).wait(PATIENCE_S)
                bodies += [decode(delivery).value for delivery in batch.deliveries]
            return bodies

        return self.do(read)


@pytest.fixture(scope="module")
def server() -> Iterator[ReplyServer]:
    server = ReplyServer()
    yield server
    server.stop()


@pytest.fixture(params=["compact", "binary"])
def client(request: pytest.FixtureRequest, server: ReplyServer) -> Iterator[Client]:
    with Client(server.port, request.param) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest, server: ReplyServer) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    server.topic(name)
    server.topic(f"{name}-out", 2)
    server.subscribe("G", name)
    server.send(name, [b"one", b"two"])
    return name


def delivered(client: Client, topic: str) -> Delivered:
    answer = client.pull("G", topic, maxBatchSize=1, maxLingerTime=1_000, clientId="c")
    (message,) = answer.messages
    return message


def acknowledge(
    client: Client, topic: str, message: Delivered, *messages: ReplyMessage, **fields: object
) -> ReplyResponse:
    context = Context(groupId="G", topic=topic, qid="R_default_a_0")
    request = ReplyRequest(
        context=context, offset=message.offset, lease=message.leaseId, messages=list(messages), **fields
    )
    answer: ReplyResponse = client.call("reply", request=request)
    return answer


def test_a_stored_reply_is_answered(server: ReplyServer, client: Client, topic: str) -> None:
    message = delivered(client, topic)
    out = f"{topic}-out"
    replies = [
        ReplyMessage(
            topic=out, body=b"\x00\xff", key="ünicode", tags="t", properties={"a": "ü"}, partitionId=1
        ),
        ReplyMessage(topic=out, body=b"plain"),
    ]
    response = acknowledge(client, topic, message, *replies, clientId="c", timeout=5_000)
    assert (response.code, response.msg, response.outcome) == (0, "OK", 1)
    first, second = response.results
    assert (first.queueId, first.offset, first.durability, len(first.messageId)) == (1, 0, 1, 32)
    assert second.messageId != first.messageId
    assert sorted(server.bodies(out)) == [b"\x00\xff", b"plain"]
    assert server.committed("G", topic) == 1
    repeated = acknowledge(client, topic, message, *replies)
    assert (repeated.code, repeated.outcome) == (0, 2)
    assert [one.messageId for one in repeated.results] == [first.messageId, second.messageId]
    assert len(server.bodies(out)) == 2


def test_a_rejected_reply_is_answered(server: ReplyServer, client: Client, topic: str) -> None:
    message = delivered(client, topic)
    response = acknowledge(client, topic, message, ReplyMessage(topic="no/name", body=b"x"))
    assert (response.code, response.outcome, response.results) == (11, None, None)
    assert "no/name" in response.msg
    message.leaseId += 1
    over = acknowledge(client, topic, message, ReplyMessage(topic=f"{topic}-out", body=b"x"))
    assert (over.code, over.outcome) == (11, 3)
    assert server.bodies(f"{topic}-out") == []
    assert server.committed("G", topic) in (None, 0)


def test_an_empty_request_is_answered(client: Client) -> None:
    for request in (ReplyRequest(), ReplyRequest(context=Context(), messages=[ReplyMessage()])):
        response = client.call("reply", request=request)
        assert (response.code, response.outcome) == (11, None), response
