"""Sends of an independent Thrift client, in both protocols, against the real server."""

from __future__ import annotations

import threading

import pytest

from tests.interop.apache_client import Client, Message, done
from tests.scenarios.real_server import RealServer

OK = {"code": 0, "msg": "OK"}


def receive(consumer: Client, group: str, count: int) -> list[tuple[str, dict[str, object]]]:
    """(qid, fields) of so many messages, acknowledged as they come."""
    deliveries: list[tuple[str, dict[str, object]]] = []
    result = None
    for _ in range(count + 20):
        answer = consumer.pull(group, maxLingerTime=200, result=result)
        deliveries += [(answer.context.qid, message.set_fields()) for message in answer.messages]
        result = done(answer) if answer.messages else None
        if len(deliveries) >= count and result is None:
            break
    return deliveries


def test_a_message_is_delivered_unchanged(producer: Client, consumer: Client, topic: str, group: str) -> None:
    properties = {"p": "ü", "traceId": "7"}
    sent = producer.send(topic, b"\x00\xff\x80", key="kéy", tags="A||B", properties=properties)
    assert sent.set_fields() == OK, "no field that DDMQ did not send"
    ((_, fields),) = receive(consumer, group, 1)
    assert fields == {
        "key": "kéy",
        "value": b"\x00\xff\x80",
        "tag": "A||B",
        "offset": 0,
        "properties": properties,
    }


def test_send_async_is_stored_before_its_answer(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    for number in range(3):
        message = Message(topic=topic, body=b"%d" % number, partitionId=2)
        assert producer.call("sendAsync", message=message).set_fields() == OK
    deliveries = receive(consumer, group, 3)
    assert [fields["value"] for _, fields in deliveries] == [b"0", b"1", b"2"]
    assert len({qid for qid, _ in deliveries}) == 1


def test_send_batch_keeps_its_order_in_one_queue(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    messages = [Message(topic=topic, key=str(n), body=b"%d" % n, partitionId=-2) for n in range(150)]
    assert producer.call("sendBatchSync", messages=messages).set_fields() == OK
    deliveries = receive(consumer, group, 150)
    assert len({qid for qid, _ in deliveries}) == 1, "members of partitionId < -1 go to one queue"
    assert [fields["key"] for _, fields in deliveries] == [str(n) for n in range(150)]


def test_send_batch_without_keys_keeps_its_order_in_one_queue(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    messages = [Message(topic=topic, body=b"%d" % n, partitionId=-2) for n in range(150)]
    assert producer.call("sendBatchSync", messages=messages).set_fields() == OK
    deliveries = receive(consumer, group, 150)
    assert len({qid for qid, _ in deliveries}) == 1
    assert [fields["value"] for _, fields in deliveries] == [b"%d" % n for n in range(150)]


def test_a_batch_may_mix_topics(producer: Client, consumer: Client, topic: str, group: str) -> None:
    other = f"{topic}-2"
    messages = [Message(topic=name, body=b"b", partitionId=-2) for name in (topic, other, topic)]
    assert producer.call("sendBatchSync", messages=messages).set_fields() == OK
    assert len(receive(consumer, group, 2)) == 2


def test_a_batch_of_ddmq_answers_each_message(producer: Client, topic: str) -> None:
    messages = [Message(topic=topic, body=b"b", partitionId=1), Message(topic=topic, body=b"")]
    first, second = producer.call("sendBatch", messages=messages, timeout=10_000)
    assert (first.code, first.queueId, first.offset, first.durability) == (0, 1, 0, 1)
    assert len(first.messageId) == 32
    assert (second.code, second.messageId) == (11, None)


def test_oneway_sends_are_stored_and_not_answered(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    for number in range(10):
        message = Message(topic=topic, body=b"%d" % number, partitionId=0)
        producer.call("sendOneway", message=message)
    assert producer.send(topic, b"last", partitionId=0).code == 0
    assert len(receive(consumer, group, 11)) == 11


@pytest.mark.parametrize(
    ("fields", "queue"),
    [
        ({"partitionId": 6}, 2),
        ({"partitionId": -1, "hashId": 7}, 3),
        ({"partitionId": -1, "hashId": -7}, 3),
        ({"partitionId": -1, "hashId": -(1 << 63)}, 0),
        ({"partitionId": None, "hashId": 5}, 1),
        ({"partitionId": None, "hashId": None}, 0),
    ],
)
def test_queue_choice_of_moving_applications(
    producer: Client, topic: str, fields: dict[str, int | None], queue: int
) -> None:
    assert producer.send(topic, clientId="me", **fields).queueId == queue


def test_sequence_ids_are_echoed(server: RealServer, protocol: str, topic: str) -> None:
    """The client asserts it: always 0 on the first connection, counted on the second."""
    for counted in (False, True):
        with Client(server.ports["producer"], protocol, counted=counted) as client:
            assert [client.send(topic).code for _ in range(3)] == [0, 0, 0]


def test_both_protocols_share_the_port(server: RealServer, topic: str) -> None:
    ports = server.ports["producer"]
    with Client(ports, "compact") as compact, Client(ports, "binary") as binary:
        assert [client.send(topic).code for client in (compact, binary, compact)] == [0, 0, 0]


def test_a_connection_for_every_message(server: RealServer, topic: str) -> None:
    codes: list[int] = []

    def send_some() -> None:
        for _ in range(25):
            with Client(server.ports["producer"]) as client:
                codes.append(client.send(topic).code)

    threads = [threading.Thread(target=send_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 100
