"""Sends that are stored once where something else plays a part: delays, limits, other engines, counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from backend.records import AppendStatus
from ddmq_client.idl.codes import FROM_CHRONOS
from ddmq_common.delays.command import COMMAND_PROPERTY, decode_command
from ddmq_common.errors import StorageError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.metric import Metric
from ddmq_common.names import DELAY_TOPIC, SCHEDULE_TOPIC
from proxy_producer.config import RateLimit
from tests.interop.apache_client import Message, Result
from tests.service.producer.once_kit import (
    NUMBERS,
    OLD_KEY,
    PATIENT,
    TIMEOUT_MS,
    TOPICS,
    KeylessServer,
    KeysServer,
    keyed,
    numbered,
    position_of,
    sent,
)
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer
from tests.service.proxy_server import PATIENCE_S
from tests.support.waits import until


def cell(server: ProducerServer, metric: Metric, *labels: str) -> float:
    return server.do(lambda: server.metrics.cell(metric, *labels).value)


class TestDelayed:
    @pytest.mark.parametrize("how", ["key", "property", "sequence"])
    def test_levels(self, server: ProducerServer, client: Client, topic: str, key: str, how: str):
        def message() -> Message:
            properties = {"DELAY": "3"}
            if how == "property":
                properties[OLD_KEY] = key
            arguments = {"properties": properties, "clientId": "me", "body": b"later"}
            if how == "sequence":
                arguments |= {"producerId": key.encode(), "sequence": 0}
            return Message(topic=topic, idempotencyKey=key if how == "key" else None, **arguments)

        before = len(server.stored(SCHEDULE_TOPIC))
        first, repeated = sent(client, message()), sent(client, message())
        assert (first.duplicate, repeated.duplicate) == (0, 1)
        assert repeated.messageId == first.messageId
        assert (repeated.offset, repeated.queueId) == (None, None)
        assert len(server.stored(SCHEDULE_TOPIC)) == before + 1

    def test_a_level_with_another_body(self, client: Client, topic: str, key: str):
        arguments = {"topic": topic, "idempotencyKey": key, "properties": {"DELAY": "3"}}
        first = client.send(body=b"ten", **arguments)
        other = client.send(body=b"eleven", **arguments)
        assert (first.duplicate, other.duplicate, other.messageId) == (0, 2, first.messageId)

    def test_a_key_with_a_level_and_without(self, server: ProducerServer, client: Client, topic: str):
        """They are two, and neither makes the other be forgotten."""
        for duplicate in (0, 1, 1):
            assert sent(client, keyed(topic, "a")).duplicate == duplicate
            later = Message(topic=topic, body=b"body", idempotencyKey="a", properties={"DELAY": "3"})
            assert sent(client, later).duplicate == duplicate
        assert len(server.stored(topic)) == 1

    @pytest.mark.parametrize(
        "delay", [{"AMQ_SCHEDULED_DELAY": "60000"}, {"deliver-after": "60000"}, {"x-delay": "60000"}]
    )
    @pytest.mark.parametrize("how", ["key", "property", "sequence"])
    def test_dialects(
        self, server: ProducerServer, client: Client, key: str, delay: dict[str, str], how: str
    ):
        before = server.stored(DELAY_TOPIC)
        properties = {**delay, OLD_KEY: key} if how == "property" else delay
        arguments: dict[str, Any] = {"properties": properties, "clientId": "me"}
        if how == "sequence":
            arguments |= {"producerId": key.encode(), "sequence": 0}
        elif how == "key":
            arguments["idempotencyKey"] = key
        first, repeated = client.send(**arguments), client.send(**arguments)
        assert (first.code, repeated.code) == (0, 0)
        uuids = [result.delayId[-36:] for result in (first, repeated)]
        assert uuids[0] == uuids[1], "by which the delay service knows it, and a cancel names it"
        added = [record for record in server.stored(DELAY_TOPIC) if record not in before]
        commands = [decode_command(record.system[COMMAND_PROPERTY]) for record in added[-2:]]
        assert {command.uuid for command in commands} == {uuids[0]}
        assert len({command.shard for command in commands}) == 1, "one shard decides"
        other = client.send(**{**arguments, "idempotencyKey": f"{key}-other"})
        assert other.delayId[-36:] != uuids[0]


class TestOfDelayServers:
    """What an old one sends again and again has the properties that its client gave to a loop."""

    PROPERTIES: ClassVar = {OLD_KEY: "a", FROM_CHRONOS: FROM_CHRONOS}

    def test_each_is_a_message(self, server: ProducerServer, client: Client, topic: str):
        for _ in range(2):
            assert client.send(topic=topic, properties=self.PROPERTIES).code == 0
        message = Message(topic=topic, body=b"body", properties=self.PROPERTIES)
        assert client.call("sendBatchSync", messages=[message, message]).code == 0
        assert len(server.stored(topic)) == 4

    def test_an_engine_that_cannot_takes_them(self, keyless: ProducerServer):
        with Client(keyless.port) as client:
            assert client.send(topic="orders", properties=self.PROPERTIES).code == 0


class TestRefused:
    def test_a_send_over_a_rate_limit_leaves_no_record_of_its_key(
        self, server: ProducerServer, client: Client, key: str
    ):
        """It was refused, not stored, and not forgotten: nothing is known of it that was not before."""
        with Client(server.port) as other:
            until(lambda: other.send(topic="slow").code == 15)
        keyed_message = keyed("slow", key)
        assert [
            client.call("sendSync", message=keyed_message, timeout=TIMEOUT_MS).code for _ in range(2)
        ] == [15, 15]
        assert not [one for one in server.stored("slow") if key.encode() in one.delivery]

    def test_a_limit_takes_a_resend_as_a_send(self):
        server = ProducerServer(
            TOPICS, topic_rates={"slow": RateLimit(messages_per_s=2, burst_ms=1_000)}, **PATIENT
        )
        try:
            with Client(server.port) as client:
                first, message = sent(client, keyed("slow", "a")), keyed("slow", "a")
                repeated: list[Result] = []

                def answered(code: int) -> bool:
                    repeated.append(client.call("sendSync", message=message, timeout=TIMEOUT_MS))
                    return bool(repeated[-1].code == code)

                until(lambda: answered(15))
                until(lambda: answered(0))
                assert (repeated[-1].duplicate, position_of(repeated[-1])) == (1, position_of(first))
                assert len(server.stored("slow")) == 1
        finally:
            server.stop()

    def test_a_drained_proxy_says_so_before_all_else(self):
        server = ProducerServer(TOPICS, **PATIENT)
        try:
            with Client(server.port) as client:
                sent(client, keyed("orders", "a"))
                server.do(lambda: server.proxy.drain(server.clock.monotonic() + 5))
                for message in (keyed("orders", "a"), keyed("orders", " "), numbered("orders", -1)):
                    assert client.call("sendSync", message=message, timeout=TIMEOUT_MS).code == 20
                    (result,) = client.call("sendBatch", messages=[message], timeout=TIMEOUT_MS)
                    assert result.code == 20
        finally:
            server.stop()

    def test_a_resend_after_an_uncertain_outcome_is_recognised(
        self, server: ProducerServer, client: Client, topic: str
    ):
        """Code 12 or 10, and it was stored, or was not: the resend tells."""
        sent(client, keyed(topic, "before"))
        for stored in (True, False):
            server.do(
                lambda: server.backend.fail_next(
                    StorageError("silence"),
                    AppendStatus.UNKNOWN,
                    stored=stored,  # noqa: B023
                )
            )
            message = keyed(topic, f"a-{stored}")
            assert client.call("sendSync", message=message, timeout=TIMEOUT_MS).code == 12
            assert sent(client, message).duplicate == int(stored)
        assert len(server.stored(topic)) == 3


@pytest.fixture(scope="module")
def keyless() -> Iterator[ProducerServer]:
    server = KeylessServer(TOPICS, **PATIENT)
    yield server
    server.stop()


class TestAnEngineThatCannot:
    def test_a_key_is_rejected(self, keyless: ProducerServer):
        before = len(keyless.stored("orders"))
        with Client(keyless.port) as client:
            property_only = Message(topic="orders", body=b"b", properties={OLD_KEY: "order/17"})
            fresh = keyed(f"fresh-{next(NUMBERS)}", "order/17")
            for message in (keyed("orders", "order/17"), property_only, fresh):
                result = client.call("sendSync", message=message, timeout=TIMEOUT_MS)
                assert (result.code, set(result.set_fields())) == (11, {"code", "msg"})
                assert "'order/17'" in result.msg
                assert "cannot tell" in result.msg
                assert "allowed here: messages without one" in result.msg
                (member,) = client.call("sendBatch", messages=[message], timeout=TIMEOUT_MS)
                assert (member.code, member.msg) == (11, result.msg)
        assert len(keyless.stored("orders")) == before

    def test_a_sequence_is_stored_each_time(self, keyless: ProducerServer):
        before = len(keyless.stored("orders"))
        with Client(keyless.port) as client:
            for _ in range(2):
                result = sent(client, numbered("orders", 1))
                assert (result.duplicate, result.offset is not None) == (None, True)
            (member,) = client.call("sendBatch", messages=[numbered("orders", 1)], timeout=TIMEOUT_MS)
            assert (member.code, member.duplicate) == (0, None)
            assert client.call("sendSync", message=numbered("orders", -1), timeout=TIMEOUT_MS).code == 0
        assert len(keyless.stored("orders")) == before + 4


@pytest.fixture(scope="module")
def keys_alone() -> Iterator[ProducerServer]:
    server = KeysServer(TOPICS, **PATIENT)
    yield server
    server.stop()


class TestAnEngineThatRecognisesKeysAlone:
    def test_a_key_is_recognised_and_a_sequence_is_stored_each_time(self, keys_alone: ProducerServer):
        before = len(keys_alone.stored("orders"))
        with Client(keys_alone.port) as client:
            assert [sent(client, keyed("orders", "a")).duplicate for _ in range(2)] == [0, 1]
            assert [sent(client, numbered("orders", 1)).duplicate for _ in range(2)] == [None, None]
            batch = [numbered("orders", 2), keyed("orders", "a"), keyed("orders", "b")]
            answers = client.call("sendBatch", messages=batch, timeout=TIMEOUT_MS)
            assert [(answer.code, answer.duplicate) for answer in answers] == [(0, None), (0, 1), (0, 0)]
            assert client.call("sendSync", message=numbered("orders", -1), timeout=TIMEOUT_MS).code == 0
            blank = client.call("sendSync", message=keyed("orders", " "), timeout=TIMEOUT_MS)
            assert (blank.code, "idempotency key" in blank.msg) == (11, True)
        assert len(keys_alone.stored("orders")) == before + 6

    def test_a_key_goes_before_the_sequence_beside_it(self, keys_alone: ProducerServer):
        message = numbered("orders", 5, idempotencyKey="beside")
        with Client(keys_alone.port) as client:
            assert [sent(client, message).duplicate for _ in range(2)] == [0, 1]


class TestCounted:
    def test_duplicates_by_topic(self, server: ProducerServer, client: Client, topic: str):
        message = keyed(topic, "a", b"12345")
        old = Message(topic=topic, body=b"12345", properties={OLD_KEY: "a"})
        sent(client, message)
        sent(client, message)
        client.call("sendBatch", messages=[message, keyed(topic, "b", b"123"), message], timeout=TIMEOUT_MS)
        client.call("sendBatchSync", messages=[old])
        client.call("sendOneway", message=old)
        sent(client, Message(topic=topic, body=b"1"))
        assert cell(server, catalogue.SEND_DUPLICATES, topic) == 5
        assert cell(server, catalogue.SENDS, topic, "0") == 8, "each was answered 0"
        assert cell(server, catalogue.SEND_BYTES, topic) == 9, "what was stored before adds none"

    def test_the_answers_of_many_threads(self, server: ProducerServer, topic: str):
        """Twenty keys by four connections: one of each four is the first."""
        duplicates: list[int] = []

        def send_all() -> None:
            with Client(server.port) as client:
                for number in range(20):
                    duplicates.append(sent(client, keyed(topic, f"k{number}")).duplicate or 0)

        threads = [threading.Thread(target=send_all, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert (duplicates.count(0), duplicates.count(1)) == (20, 60)
        assert len(server.stored(topic)) == 20
        assert cell(server, catalogue.SEND_DUPLICATES, topic) == 60
