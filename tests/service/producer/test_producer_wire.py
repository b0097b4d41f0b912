"""The producer proxy over loopback, seen by Apache's own Thrift library in both protocols."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from thrift.Thrift import TApplicationException

from backend.records import AppendStatus, TopicInfo
from ddmq_common.delivery import decode
from ddmq_common.errors import DdmqError, DiskFullError, StorageError, UnknownTopicError
from tests.interop.apache_client import DelayMessage, Message
from tests.interop.recorded import Exchange, Raw, exchanges
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer
from tests.service.proxy_server import PATIENCE_S
from tests.support.waits import until

TOPICS = (
    TopicInfo("orders", 0, 4),
    TopicInfo("only", 0, 4, delay="only"),
    TopicInfo("none", 0, 4, delay="none"),
    TopicInfo("closed", 0, 4, writable=False),
)
SENDS = [one for one in exchanges() if "_send" in one.name]
DELAY_ID = "1795289273-2-1795462073-0-0-0-7-a4207970-e5e1-11f1-a4e0-02fc00000001"


@pytest.fixture(scope="module")
def server() -> Iterator[ProducerServer]:
    server = ProducerServer(TOPICS)
    yield server
    server.stop()


def test_a_message_is_stored_as_it_was_sent(server: ProducerServer, client: Client, topic: str) -> None:
    result = client.send(topic=topic, key="kéy", tags="A||B", body=b"\x00\xff", properties={"p": "ü"})
    assert result.set_fields() == {"code": 0, "msg": "OK"}, "absent fields stay absent"
    (record,) = server.stored(topic)
    assert decode(record.delivery) == ("kéy".encode(), b"\x00\xff", b"A||B", {b"p": "ü".encode()})


def test_send_async_waits_for_the_store(server: ProducerServer, client: Client) -> None:
    before = len(server.stored("orders"))
    result = client.call("sendAsync", message=Message(topic="orders", body=b"x"))
    assert result.set_fields() == {"code": 0, "msg": "OK"}
    assert len(server.stored("orders")) == before + 1


def test_extended_clients_get_the_extended_fields(client: Client) -> None:
    answer = client.send(clientId="me", partitionId=2).set_fields()
    assert set(answer) == {"code", "msg", "messageId", "queueId", "offset", "durability"}
    assert (answer["code"], answer["queueId"], len(answer["messageId"])) == (0, 2, 32)


def test_batches(server: ProducerServer, client: Client, topic: str) -> None:
    messages = [Message(topic=topic, key=str(n), body=b"x", partitionId=-2) for n in range(50)]
    assert client.call("sendBatchSync", messages=messages).set_fields() == {"code": 0, "msg": "OK"}
    records = server.stored(topic)
    assert [decode(record.delivery).key for record in records] == [b"%d" % n for n in range(50)]
    assert client.call("sendBatchSync", messages=[]).set_fields() == {"code": 0, "msg": "OK"}
    mixed = client.call("sendBatch", messages=[messages[0], Message(topic=topic)], timeout=5_000)
    assert [result.code for result in mixed] == [0, 11]
    assert mixed[0].offset is not None


def test_oneway_is_stored_and_the_connection_stays_usable(
    server: ProducerServer, client: Client, topic: str
) -> None:
    for number in range(20):
        client.call("sendOneway", message=Message(topic=topic, key=str(number), body=b"x"))
    client.call("sendOneway", message=Message(topic=topic))
    assert client.send(topic=topic).code == 0
    assert len(server.stored(topic)) == 21


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": ""}, 11),
        ({"topic": "a/../b"}, 11),
        ({"topic": "x" * 128}, 11),
        ({"topic": "%RETRY%g"}, 11),
        ({"key": "é" * 256}, 11),
        ({"tags": "t" * 256}, 11),
        ({"body": b""}, 11),
        ({"body": b"x" * ((2 << 20) + 1)}, 11),
        ({"properties": {"KEYS": "x"}}, 11),
        ({"properties": {"p": ""}}, 11),
        ({"properties": {"": "v"}}, 11),
        ({"properties": {"DELAY": "1h"}}, 11),
        ({"topic": "closed"}, 13),
        ({"topic": "none", "properties": {"DELAY": "1"}}, 18),
        ({"topic": "only"}, 19),
    ],
)
def test_a_rejected_message_has_its_code(client: Client, fields: dict[str, object], code: int) -> None:
    answer = client.send(**fields).set_fields()
    assert set(answer) == {"code", "msg"}
    assert answer["code"] == code
    assert answer["msg"].startswith("FAILED: ")
    assert client.send().code == 0, "the connection goes on"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StorageError("the disk said no"), AppendStatus.NOT_STORED, 10),
        (StorageError("silence"), AppendStatus.UNKNOWN, 12),
        (UnknownTopicError("topic orders is gone"), AppendStatus.REFUSED, 14),
        (DiskFullError("1 GiB free; 2 GiB are needed"), AppendStatus.REFUSED, 15),
    ],
)
def test_codes_of_a_backend_that_fails(
    server: ProducerServer, client: Client, error: DdmqError, status: AppendStatus, code: int
) -> None:
    server.do(lambda: server.backend.fail_next(error, status))
    result = client.send()
    assert result.code == code
    assert str(error) in result.msg
    assert client.send().code == 0


@pytest.mark.parametrize(
    ("fields", "code", "echoed"),
    [
        ({}, 21, ""),
        ({"action": 7}, 32, ""),
        ({"timestamp": 1}, 33, ""),
        ({"dmsgtype": 9}, 31, ""),
        ({"times": 1}, 35, ""),
        ({"dmsgtype": 3, "times": 1, "expire": 1}, 36, ""),
        ({"dmsgtype": 3, "times": 1, "expire": 9_999_999_999, "interval": 2}, 37, ""),
        ({"dmsgtype": 4, "times": 1, "expire": 9_999_999_999, "interval": 1}, 38, ""),
        ({"action": 2, "uniqDelayMsgId": "x"}, 30, "x"),
        (
            {"action": 2, "uniqDelayMsgId": DELAY_ID.replace("-7-", "-77-")},
            34,
            DELAY_ID.replace("-7-", "-77-"),
        ),
        ({"action": 2, "uniqDelayMsgId": DELAY_ID}, 21, ""),
        ({"topic": "none"}, 18, ""),
        ({"topic": "closed"}, 13, ""),
        ({"body": b""}, 11, ""),
    ],
)
def test_codes_of_delay_requests(client: Client, fields: dict[str, object], code: int, echoed: str) -> None:
    arguments = {
        "topic": "orders",
        "body": b"b",
        "action": 1,
        "timestamp": int(time.time()) + 60,
        "dmsgtype": 2,
    }
    answer = client.call("sendDelaySync", delayMessage=DelayMessage(**{**arguments, **fields}), timeout=5_000)
    assert set(answer.set_fields()) == {"code", "msg", "uniqDelayMsgId"}
    assert (answer.code, answer.uniqDelayMsgId) == (code, echoed)
    assert answer.msg.startswith("FAILED: ")


def test_heartbeat(client: Client) -> None:
    assert client.send(topic="carrera_heartbeat", body=b"").set_fields() == {"code": 0, "msg": "OK"}


def test_strings_that_are_not_utf_8_are_11(server: ProducerServer) -> None:
    """The library cannot write them, so this frame is by hand: sendSync, compact, seq 1, bad key."""
    message = b"\x18\x06orders" + b"\x18\x02\xff\xfe" + b"\x58\x01b" + b"\x00"
    body = b"\x82\x21\x01\x08sendSync" + b"\x1c" + message + b"\x00"
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as raw:
        raw.sendall(len(body).to_bytes(4, "big") + body)
        answer = raw.recv(65_536)
    assert b"key is not UTF-8: byte 0xff at position 0" in answer


def test_a_message_that_is_missing_is_a_protocol_error(client: Client) -> None:
    with pytest.raises(TApplicationException) as caught:
        client.call("sendSync", timeout=5_000)
    assert caught.value.type == TApplicationException.PROTOCOL_ERROR
    assert client.send().code == 0


def test_one_connection_a_message(server: ProducerServer) -> None:
    for number in range(30):
        with Client(server.port) as client:
            assert client.send(key=str(number)).code == 0


def test_a_silent_backend_is_answered_12_within_the_time() -> None:
    server = ProducerServer(TOPICS)
    try:
        with Client(server.port) as client:
            assert client.send().code == 0
            server.do(server.backend.pause_writes)
            started = time.monotonic()
            result = client.send(timeout=200)
            assert result.code == 12
            assert time.monotonic() - started < 9.5, "not only at the cap of 10 s"
            server.do(server.backend.resume_writes)
            assert client.send().code == 0
    finally:
        server.stop()


def test_without_auto_creation_unknown_topics_are_13() -> None:
    server = ProducerServer(TOPICS, auto_create_topics=False)
    try:
        with Client(server.port) as client:
            assert client.send(topic="fresh").code == 13
            assert client.send().code == 0
    finally:
        server.stop()


def test_a_full_proxy_answers_15_at_once() -> None:
    server = ProducerServer(TOPICS, inflight_requests_max=1)
    try:
        with Client(server.port) as first, Client(server.port) as second:
            server.do(server.backend.pause_writes)
            waiting = threading.Thread(target=first.send, daemon=True)
            waiting.start()
            until(lambda: server.do(lambda: server.proxy.flow.inflight))
            assert second.send().code == 15
            server.do(server.backend.resume_writes)
            waiting.join(PATIENCE_S)
            assert second.send().code == 0
    finally:
        server.stop()


def test_draining_answers_20_and_finishes_what_is_pending() -> None:
    server = ProducerServer(TOPICS)
    try:
        with Client(server.port) as client:
            assert client.send().code == 0
            drained = server.do(lambda: server.proxy.drain(server.clock.monotonic() + 5))
            assert client.send().code == 20
            assert drained.done
    finally:
        server.stop()


@pytest.mark.parametrize("exchange", SENDS, ids=lambda exchange: exchange.name)
def test_recorded_clients_get_what_ddmq_gave(server: ProducerServer, exchange: Exchange) -> None:
    """Byte for byte, where the recording's reply is to this request and not refused on purpose. Delay
    sends are refused: there is no delay service (or, long after the recording, their time is wrong)."""
    with Raw(server.port) as raw:
        answer = raw.exchange(exchange.request)
    if b"sendDelaySync" in exchange.request:
        assert b"FAILED: " in answer
        return
    reply = exchange.reply
    assert reply is not None
    assert answer.endswith(b"\x0c\x00\x15\x00\x18\x02OK\x00\x00")
    if reply[6:8] == exchange.request[6:8] and b"refused on purpose" not in reply:
        assert answer == reply
