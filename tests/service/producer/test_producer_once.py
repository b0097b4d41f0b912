"""Sends that are stored once, at the wire: who is answered what, and what is stored."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from backend import idempotency
from backend.records import AppendStatus
from ddmq_client import Producer, UnknownOutcomeError
from ddmq_common.delivery import decode
from ddmq_common.errors import StorageError
from tests.interop.apache_client import Message, Result
from tests.service.producer.once_kit import NUMBERS, OLD_KEY, TIMEOUT_MS, keyed, numbered, position_of, sent
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer
from tests.service.proxy_server import PATIENCE_S
from tests.support.lossy_relay import LossyRelay
from tests.support.waits import until


class TestKeys:
    def test_an_old_client_has_only_properties(self, server: ProducerServer, client: Client, topic: str):
        for _ in range(3):
            assert client.send(topic=topic, properties={OLD_KEY: "a"}).set_fields() == {
                "code": 0,
                "msg": "OK",
            }
        client.send(topic=topic, properties={OLD_KEY: "b"})
        assert len(server.stored(topic)) == 2

    def test_the_second_hears_of_the_first(self, server: ProducerServer, client: Client, topic: str):
        first = sent(client, keyed(topic, "a"))
        assert set(first.set_fields()) == {
            "code", "msg", "messageId", "queueId", "offset", "durability", "duplicate",
        }  # fmt: skip
        repeated = sent(client, keyed(topic, "a"))
        assert (first.duplicate, repeated.duplicate, position_of(repeated)) == (0, 1, position_of(first))
        (record,) = server.stored(topic)
        assert record.message_id.hex() == first.messageId

    def test_another_body_is_reported_and_not_stored(
        self, server: ProducerServer, client: Client, topic: str
    ):
        first = sent(client, keyed(topic, "a", b"ten"))
        other = sent(client, keyed(topic, "a", b"eleven"))
        assert (other.duplicate, position_of(other)) == (2, position_of(first))
        (record,) = server.stored(topic)
        assert decode(record.delivery).value == b"ten"

    def test_the_field_goes_before_the_property(self, server: ProducerServer, client: Client, topic: str):
        both = {"idempotencyKey": "field", "properties": {OLD_KEY: "property"}}
        assert client.send(topic=topic, **both).duplicate == 0
        assert sent(client, keyed(topic, "field")).duplicate == 1
        assert sent(client, keyed(topic, "property")).duplicate == 0
        assert len(server.stored(topic)) == 2

    def test_a_key_goes_before_a_sequence(self, server: ProducerServer, client: Client, topic: str, key: str):
        first = sent(client, numbered(topic, 1, idempotencyKey=key))
        other = sent(client, numbered(topic, 2, idempotencyKey=key))
        assert (other.duplicate, position_of(other)) == (2, position_of(first))
        assert sent(client, numbered(topic, 1)).duplicate == 0, "its sequence was not looked at"
        assert len(server.stored(topic)) == 2

    def test_a_key_in_a_property_goes_before_a_sequence(self, client: Client, topic: str, key: str):
        first = sent(client, numbered(topic, 11, properties={OLD_KEY: key}))
        repeated = sent(client, numbered(topic, 12, properties={OLD_KEY: key}))
        assert (first.duplicate, repeated.duplicate, position_of(repeated)) == (0, 2, position_of(first))

    def test_keys_may_be_long_and_in_any_script(self, server: ProducerServer, client: Client, topic: str):
        for text in ("x" * 255, "ключ" * 63, "𝄞" * 255, " a ", "a\x00b"):
            assert [sent(client, keyed(topic, text)).duplicate for _ in range(2)] == [0, 1]
        assert len(server.stored(topic)) == 5

    def test_a_rejected_message_leaves_no_record_of_its_key(
        self, server: ProducerServer, client: Client, topic: str
    ):
        assert client.call("sendSync", message=keyed(topic, "a", b""), timeout=TIMEOUT_MS).code == 11
        sent(client, keyed(topic, "before"))
        server.do(lambda: server.backend.fail_next(StorageError("no"), AppendStatus.NOT_STORED))
        assert client.call("sendSync", message=keyed(topic, "a"), timeout=TIMEOUT_MS).code == 10
        assert sent(client, keyed(topic, "a")).duplicate == 0

    def test_two_that_make_the_topic_together(self, server: ProducerServer, topic: str):
        with Client(server.port) as one, Client(server.port) as two:
            for each in (one, two):
                each.send_request("sendSync", message=keyed(topic, "a"), timeout=TIMEOUT_MS)
            results = [each.answer("sendSync") for each in (one, two)]
        assert sorted(result.duplicate for result in results) == [0, 1]
        assert position_of(results[0]) == position_of(results[1])
        assert len(server.stored(topic)) == 1

    def test_two_while_the_engine_is_silent(self, server: ProducerServer, topic: str):
        """Both are on their way when the first is stored."""
        with Client(server.port) as one, Client(server.port) as two:
            sent(one, keyed(topic, "before"))
            server.do(server.backend.pause_writes)
            for each in (one, two):
                each.send_request("sendSync", message=keyed(topic, "a"), timeout=TIMEOUT_MS)
            until(lambda: server.do(lambda: server.proxy.flow.inflight) >= 2)
            server.do(server.backend.resume_writes)
            results = [each.answer("sendSync") for each in (one, two)]
        assert sorted(result.duplicate for result in results) == [0, 1]
        assert position_of(results[0]) == position_of(results[1])
        assert len(server.stored(topic)) == 2


class AnyMessage(Message):
    """One whose key may be any bytes."""

    fields = Message.fields.replace("idempotencyKey text", "idempotencyKey binary")


class TestIllegal:
    @pytest.mark.parametrize(
        ("key", "shown"),
        [
            (b"", "''"),
            (b"   ", "'   '"),
            ("\u2003\t".encode(), "bytes"),
            (b"x" * 256, "256 bytes"),
            ("é".encode() * 256, "512 bytes"),
            (b"a\xff", "xff"),
        ],
    )
    def test_keys(self, server: ProducerServer, client: Client, key: bytes, shown: str):
        before = len(server.stored("orders"))
        arguments = {"topic": "orders", "body": b"b", "idempotencyKey": key}
        result = client.call("sendSync", message=AnyMessage(**arguments), timeout=TIMEOUT_MS)
        assert set(result.set_fields()) == {"code", "msg"}
        assert result.code == 11
        assert result.msg.startswith("FAILED: ")
        assert shown in result.msg
        assert "1 to 255 characters" in result.msg
        fresh = AnyMessage(**{**arguments, "topic": f"never-{next(NUMBERS)}"})
        assert client.call("sendSync", message=fresh, timeout=TIMEOUT_MS).msg == result.msg, (
            "nor makes it a topic"
        )
        assert server.stored(fresh.topic) == []
        (first, second) = client.call(
            "sendBatch",
            messages=[AnyMessage(**arguments), Message(topic="orders", body=b"x")],
            timeout=TIMEOUT_MS,
        )
        assert (first.msg, second.code) == (result.msg, 0)
        assert len(server.stored("orders")) == before + 1

    @pytest.mark.parametrize("text", [" ", "x" * 256, "\u00a0"])
    def test_keys_in_properties(self, client: Client, text: str):
        result = client.send(properties={OLD_KEY: text})
        assert (result.code, "allowed: " in result.msg, "idempotency" in result.msg) == (11, True, True)

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"producerId": b""}, ("producerId of 0 bytes", "1 to 32 bytes")),
            ({"producerId": None}, ("producerId of 0 bytes", "1 to 32 bytes")),
            ({"producerId": b"x" * 33}, ("producerId of 33 bytes", "1 to 32 bytes")),
            ({"sequence": -1}, ("sequence -1", "0 <= answeredBelow <= sequence")),
            ({"sequence": -(1 << 63)}, (f"sequence {-(1 << 63)}", "0 <= answeredBelow <= sequence")),
            ({"answeredBelow": 8}, ("sequence 7", "answeredBelow 8", "0 <= answeredBelow <= sequence")),
            ({"answeredBelow": -1}, ("sequence 7", "answeredBelow -1", "0 <= answeredBelow <= sequence")),
            ({"underWayMs": -1}, ("sequence 7", "underWayMs -1", "0 or more")),
        ],
    )
    def test_sequences(self, client: Client, topic: str, fields: dict[str, Any], words: tuple[str, ...]):
        message = numbered("orders", 7)
        for name, value in fields.items():
            setattr(message, name, value)
        for name in ("orders", topic):
            message.topic = name
            result = client.call("sendSync", message=message, timeout=TIMEOUT_MS)
            assert (result.code, set(result.set_fields())) == (11, {"code", "msg"})
            assert all(text in result.msg for text in words), result.msg
            assert client.call("sendBatchSync", messages=[message]).code == 11

    def test_all_that_is_allowed(self, client: Client, topic: str):
        message = numbered(topic, (1 << 63) - 1, (1 << 63) - 1)
        for producer in (b"x", b"x" * 32, bytes(32)):
            message.producerId = producer
            assert [sent(client, message).duplicate for _ in range(2)] == [0, 1]

    def test_a_producer_without_a_sequence_says_nothing(self, client: Client, topic: str):
        unnumbered = Message(topic=topic, body=b"b", producerId=b"x" * 99, answeredBelow=-5)
        for _ in range(2):
            assert sent(client, unnumbered).set_fields() == {"code": 0, "msg": "OK"}


class TestSequences:
    def test_a_resend_of_a_forgotten_producer_is_rejected(
        self, server: ProducerServer, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(idempotency, "PRODUCERS_MAX", 1)
        sequence = next(NUMBERS) << 20
        first = numbered(topic, sequence)
        assert sent(client, first).duplicate == 0
        first.underWayMs = 1_000
        assert sent(client, first).duplicate == 1
        sent(client, Message(topic=topic, body=b"other", producerId=b"other", sequence=sequence))
        result = client.call("sendSync", message=first, timeout=TIMEOUT_MS)
        assert (result.code, set(result.set_fields())) == (11, {"code", "msg"})
        assert f"sequence {sequence} of producer {first.producerId.hex()} is sent again" in result.msg
        assert len(server.stored(topic)) == 2

    def test_the_library_reports_an_unknown_outcome(
        self, server: ProducerServer, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
    ):
        """Its answers are lost, and others push it out before one of them comes."""
        monkeypatch.setattr(idempotency, "PRODUCERS_MAX", 1)
        relay, failures = LossyRelay(server.port), list[UnknownOutcomeError]()

        def send() -> None:
            with pytest.raises(UnknownOutcomeError) as caught:
                producer.send(topic, "second")
            failures.append(caught.value)

        with Producer(relay.address, timeout_ms=TIMEOUT_MS) as producer:
            assert producer.send(topic, "first").stored
            relay.every = 1
            thread = threading.Thread(target=send, daemon=True)
            thread.start()
            until(lambda: relay.lost)
            sent(client, Message(topic=topic, body=b"other", producerId=b"other", sequence=next(NUMBERS)))
            relay.every = 0
            thread.join(PATIENCE_S)
        relay.close()
        assert [failure.code for failure in failures] == [11]
        assert "not known any more whether it was stored" in failures[0].text
        bodies = sorted(decode(record.delivery).value for record in server.stored(topic))
        assert bodies == [b"first", b"other", b"second"]

    def test_once_each_in_any_order(self, server: ProducerServer, client: Client, topic: str):
        start = next(NUMBERS) << 20
        order = [3, 1, 3, 0, 0, 2, 1]
        results = [sent(client, numbered(topic, start + at)) for at in order]
        assert [result.duplicate for result in results] == [0, 0, 1, 0, 1, 0, 1]
        assert position_of(results[6]) == position_of(results[1])
        assert len(server.stored(topic)) == 4

    def test_an_abandoned_sequence_is_rejected(self, server: ProducerServer, client: Client, topic: str):
        start = next(NUMBERS) << 20
        message = numbered(topic, start + 5, start + 5)
        message.producerId = old = numbered(topic, start + 4)
        message.producerId = old.producerId = b"gave-up-%d" % start
        sent(client, message)
        result = client.call("sendSync", message=old, timeout=TIMEOUT_MS)
        assert result.code == 11
        assert f"sequence {start + 4}" in result.msg
        assert f"below {start + 5}" in result.msg
        assert len(server.stored(topic)) == 1


class TestBatches:
    def test_inside_one_and_across(self, server: ProducerServer, client: Client, topic: str):
        own = {"producerId": b"batches-%d" % next(NUMBERS)}

        def batch(*messages: Message) -> list[Result]:
            for message in messages:
                if message.sequence is not None:
                    message.producerId = own["producerId"]
            results: list[Result] = client.call("sendBatch", messages=list(messages), timeout=TIMEOUT_MS)
            assert [result.code for result in results] == [0] * len(messages)
            return results

        plain = Message(topic=topic, body=b"plain", clientId="me")
        first = batch(
            keyed(topic, "a"), numbered(topic, 1), plain, keyed(topic, "a"), keyed(topic, "a", b"other"),
            numbered(topic, 1), keyed(topic, "b"),
        )  # fmt: skip
        assert [result.duplicate for result in first] == [0, 0, None, 1, 2, 1, 0]
        assert position_of(first[0]) == position_of(first[3]) == position_of(first[4])
        assert position_of(first[1]) == position_of(first[5])
        assert len(server.stored(topic)) == 4
        second = batch(numbered(topic, 1), numbered(topic, 2), keyed(topic, "b"), keyed(topic, "a", b"x"))
        assert [result.duplicate for result in second] == [1, 0, 1, 2]
        assert [position_of(second[at]) for at in (0, 2, 3)] == [position_of(first[at]) for at in (1, 6, 0)]
        assert len(server.stored(topic)) == 5
        records = {record.message_id.hex(): record for record in server.stored(topic)}
        for result in (*first, *second):
            record = records[result.messageId]
            assert (record.queue_id, record.offset) == (result.queueId, result.offset)

    def test_the_methods_know_each_others(self, server: ProducerServer, client: Client, topic: str, key: str):
        message, old = keyed(topic, key), Message(topic=topic, body=b"body", properties={OLD_KEY: key})
        assert client.call("sendBatchSync", messages=[old, message, old]).set_fields() == {
            "code": 0,
            "msg": "OK",
        }
        assert client.call("sendAsync", message=old).set_fields() == {"code": 0, "msg": "OK"}
        assert client.call("sendAsync", message=message).duplicate == 1
        for _ in range(2):
            client.call("sendOneway", message=message)
            client.call("sendOneway", message=old)
        assert sent(client, message).duplicate == 1
        assert len(server.stored(topic)) == 1

    def test_oneway_comes_first(self, server: ProducerServer, client: Client, topic: str):
        client.call("sendOneway", message=keyed(topic, "a"))
        assert sent(client, keyed(topic, "a")).duplicate == 1
        assert len(server.stored(topic)) == 1

    def test_to_topics_that_do_not_exist(self, server: ProducerServer, client: Client, topic: str):
        messages = [keyed(f"{topic}-{name}", "a") for name in "xyxy"]
        results = client.call("sendBatch", messages=messages, timeout=TIMEOUT_MS)
        assert [result.duplicate for result in results] == [0, 0, 1, 1]
        assert [len(server.stored(f"{topic}-{name}")) for name in "xy"] == [1, 1]

    def test_a_member_that_fails_leaves_the_others(self, server: ProducerServer, client: Client, topic: str):
        sent(client, keyed(topic, "a"))
        results = client.call(
            "sendBatch",
            messages=[keyed(topic, "a"), keyed(topic, "b", b""), numbered(topic, -1), keyed(topic, "c")],
            timeout=TIMEOUT_MS,
        )
        assert [(result.code, result.duplicate) for result in results] == [
            (0, 1), (11, None), (11, None), (0, 0),
        ]  # fmt: skip
