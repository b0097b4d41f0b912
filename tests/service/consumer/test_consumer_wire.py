"""The consumer proxy over loopback, seen by Apache's own Thrift library in both protocols, and the
frames that real clients recorded."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from thrift.Thrift import TApplicationException

from tests.interop.apache_client import Client, ConsumeResult, PullError, PullRequest
from tests.interop.recorded import Exchange, Raw, exchanges
from tests.service.consumer.consumer_server import ConsumerServer
from tests.support.waits import until

METHODS = ("pull", "submit", "getConsumeStats", "fetch", "ack")
RECORDED = [one for one in exchanges() if any(f"_{method}" in one.name for method in METHODS)]
EMPTY_PULL = bytes.fromhex("0c001c00190c0000")


@pytest.fixture(scope="module")
def server() -> Iterator[ConsumerServer]:
    server = ConsumerServer()
    yield server
    server.stop()


@pytest.fixture(params=["compact", "binary"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(protocol: str, server: ConsumerServer) -> Iterator[Client]:
    with Client(server.port, protocol) as client:
        yield client


def prepared(server: ConsumerServer, name: str, values: list[bytes]) -> None:
    server.topic(name)
    server.subscribe("G" + name, name)
    server.send(name, values)


def test_pull_acknowledge_and_be_done(server: ConsumerServer, client: Client, protocol: str) -> None:
    topic = f"job-{protocol}"
    values = [b"", b"\x00\xff binary", "ünicode".encode() * 50] + [b"v%d" % n for n in range(200)]
    prepared(server, topic, values)
    result, got = None, []
    while True:
        answer = client.pull("G" + topic, topic, maxBatchSize=16, maxLingerTime=50, result=result)
        if not answer.messages:
            break
        got += [message.value for message in answer.messages]
        assert set(answer.messages[0].set_fields()) == {"key", "value", "offset", "properties"}
        assert answer.messages[0].properties == {"n": "é"}
        offsets = [message.offset for message in answer.messages]
        result = ConsumeResult(context=answer.context, successOffsets=offsets, failOffsets=[])
    assert got == values
    assert answer.context.set_fields() == {}
    assert server.committed("G" + topic, topic) == len(values)


def test_linked_results_and_submit(server: ConsumerServer, client: Client, protocol: str) -> None:
    topic = f"submit-{protocol}"
    prepared(server, topic, [b"a", b"b", b"c"])
    answer = client.pull("G" + topic, topic, maxLingerTime=5000)
    last = ConsumeResult(context=answer.context, successOffsets=[2])
    middle = ConsumeResult(context=answer.context, successOffsets=[0, 1], nextResult=last)
    assert client.submit(middle) is True
    assert server.committed("G" + topic, topic) == 3
    assert client.submit(middle) is True


def test_our_clients_see_leases(server: ConsumerServer, client: Client, protocol: str) -> None:
    topic = f"ours-{protocol}"
    prepared(server, topic, [b"a"])
    (message,) = client.pull("G" + topic, topic, maxLingerTime=5000, clientId="me").messages
    assert message.leaseId > 0
    assert message.attempt == 1
    assert message.messageId == "00" * 16
    assert message.bornMs == 1
    assert message.storedMs > 1_600_000_000_000
    assert message.nextOffset == 1


def test_consume_stats(server: ConsumerServer, client: Client, protocol: str) -> None:
    topic = f"stats-{protocol}"
    prepared(server, topic, [b"a", b"b"])
    (stats,) = client.stats("G" + topic, topic)
    assert stats.consumeOffsets == {"R_default_a_0": 0}
    assert stats.produceOffsets == {"R_default_a_0": 2}
    assert client.stats("nobody") == []


@pytest.mark.parametrize("method", ["fetch", "ack"])
def test_fetch_and_ack_without_their_argument_are_a_protocol_error(client: Client, method: str) -> None:
    with pytest.raises(TApplicationException) as raised:
        client.call(method)
    assert raised.value.type == TApplicationException.PROTOCOL_ERROR


def test_negative_sizes_get_a_pull_exception(client: Client) -> None:
    with pytest.raises(PullError, match="maxBatchSize is -1") as raised:
        client.pull("G", "T", maxBatchSize=-1)
    assert raised.value.code == 11


def test_a_pull_without_a_group_is_a_protocol_error(client: Client) -> None:
    with pytest.raises(TApplicationException) as raised:
        client.call("pull", request=PullRequest(topic="T"))
    assert raised.value.type == TApplicationException.PROTOCOL_ERROR


def test_a_waiting_client_is_woken_by_an_append(
    server: ConsumerServer, client: Client, protocol: str
) -> None:
    topic = f"wake-{protocol}"
    prepared(server, topic, [])
    client.pull("G" + topic, topic)
    answers: list[Any] = []

    def wait() -> None:
        answers.append(client.pull("G" + topic, topic, maxLingerTime=30_000))

    started = time.monotonic()
    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: server.do(lambda: sum(group.waiters for group in server.proxy.groups())))
    server.send(topic, [b"now"])
    waiting.join(20)
    assert [message.value for message in answers[0].messages] == [b"now"]
    assert time.monotonic() - started < 20


def test_a_thousand_pulls_sent_without_waiting_are_all_answered(server: ConsumerServer) -> None:
    prepared(server, "pipe", [b"%d" % number for number in range(1000)])
    pull = b"\x82\x21\x01\x04pull\x1c\x18\x05Gpipe\x18\x04pipe\x85\x02\x15\x02\x00\x00"
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        sender = threading.Thread(
            target=connection.sendall, args=((len(pull).to_bytes(4, "big") + pull) * 1000,)
        )
        sender.start()
        answers = 0
        while answers < 1000:
            received += connection.recv(1 << 16)
            while len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4], "big"):
                received = received[4 + int.from_bytes(received[:4], "big") :]
                answers += 1
        sender.join(20)
    assert received == b""


def test_a_waiting_client_that_goes_leaves_the_line(server: ConsumerServer) -> None:
    prepared(server, "gone", [])
    pull = b"\x82\x21\x01\x04pull\x1c\x18\x05Ggone\x95\x40\x15\xc0\xa9\x07\x00\x00"
    frame = len(pull).to_bytes(4, "big") + pull
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(frame)
        until(lambda: _waiting(server, "Ggone") == 1)
    until(lambda: _waiting(server, "Ggone") == 0)


def _waiting(server: ConsumerServer, group: str) -> int:
    return server.do(lambda: next(each.waiters for each in server.proxy.groups() if each.name == group))


@pytest.mark.parametrize("exchange", RECORDED, ids=lambda exchange: exchange.name)
def test_recorded_requests_get_answers_of_the_recorded_shape(
    server: ConsumerServer, exchange: Exchange
) -> None:
    name, request, reply = exchange
    with Raw(server.port) as raw:
        answer = raw.exchange(request)
    assert answer[4] == 0x82
    sequence = request[6:].split(b"\x04pull")[0] if b"\x04pull" in request else None
    if "fetch" in name:
        assert answer.endswith(b"fetch" + bytes.fromhex("0c00a90c0000")), "an empty list, without code"
    elif "lowlevel_ack" in name:
        assert answer == reply
    elif sequence is not None:
        assert answer[5:] == b"\x41" + sequence + b"\x04pull" + EMPTY_PULL
    elif "submit" in name:
        assert reply is not None
        assert answer == reply
    else:
        assert answer.endswith(b"getConsumeStats" + bytes.fromhex("09000c00")), "an empty list"
