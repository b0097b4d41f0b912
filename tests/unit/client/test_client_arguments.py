"""Arguments that do not exist: the error names the one that is meant, and signatures stay as they are."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import pickle
from typing import Any
from unittest.mock import create_autospec

import pytest

from ddmq_client import Admin, Consumer, Decision, FetchConsumer, OutgoingMessage, Producer
from ddmq_client.aio import AsyncConsumer, AsyncProducer
from ddmq_client.application.arguments import explain_arguments
from ddmq_client.dramatiq import DdmqBroker
from ddmq_client.testing import make_message, read_outcome

NOWHERE = "127.0.0.1:9"


def consume(*arguments: Any, **options: Any) -> None:
    Consumer(NOWHERE, "billing", "orders", *arguments, **options)


def send(*arguments: Any, **options: Any) -> None:
    Producer(NOWHERE).send("orders", b"x", *arguments, **options)


def produce(**options: Any) -> None:
    Producer(NOWHERE, **options)


@pytest.mark.parametrize(
    ("call", "name", "text"),
    [
        (consume, "tag", "Consumer() has no argument 'tag'; did you mean tags? (docs/client.md#receiving)"),
        (consume, "group_id", "did you mean group?"),
        (consume, "bootstrap_servers", "did you mean proxies?"),
        (consume, "listener", "did you mean handler?"),
        (consume, "concurrency", "did you mean threads?"),
        (consume, "filter", "did you mean tags or sql?"),
        (consume, "on_dead_letter", "no function is called for a dead letter. `ddmq dlq show GROUP`"),
        (consume, "max_reconsume_times", "retry_intervals_ms, retry_steps and ordered_deliveries_max"),
        (
            consume,
            "ack_timeout",
            "ack_timeout_ms is a setting of the group: `ddmq group set GROUP --topic TOPIC",
        ),
        (
            consume,
            "order_scope",
            "--order-scope ...`, or Admin.update_subscription(GROUP, TOPIC, order_scope=...)",
        ),
        (consume, "ssl", "did you mean tls?"),
        (consume, "colour", "allowed: proxies, group, topics, handler,"),
        (produce, "group", "Producer() has no argument 'group'; did you mean producer_group?"),
        (produce, "retries", "did you mean attempts_max?"),
        (send, "tag", "send() has no argument 'tag'; did you mean tags? (docs/client.md#sending)"),
        (send, "delay_level", "did you mean level?"),
        (send, "eta", "did you mean deliver_at?"),
        (send, "countdown", "did you mean delay?"),
        (send, "partition", "did you mean queue?"),
        (send, "headers", "did you mean properties?"),
        (send, "priority", "there are no priorities"),
    ],
)
def test_an_argument_that_does_not_exist_names_the_one_that_is_meant(call: Any, name: str, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        call(**{name: 1})
    assert text in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tag", "OutgoingMessage() has no argument 'tag'; did you mean tags? (docs/client.md#sending)"),
        ("payload", "did you mean body?"),
        ("headers", "did you mean properties?"),
        ("partition_key", "did you mean shard_key?"),
        ("priority", "there are no priorities"),
        ("colour", "allowed: topic, body, key, tags, properties, shard_key, queue, idempotency_key"),
    ],
)
def test_an_outgoing_message_names_the_argument_that_is_meant(name: str, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        OutgoingMessage("orders", b"x", **{name: "new"})
    assert text in str(raised.value)


def pull(**options: Any) -> None:
    Consumer(NOWHERE, "billing", "orders").pull(**options)


def fail(**options: Any) -> None:
    make_message().fail(**options)


def administer(**options: Any) -> None:
    Admin(NOWHERE, **options)


def enqueue(**options: Any) -> None:
    DdmqBroker(**options)


def send_batch(**options: Any) -> None:
    Producer(NOWHERE).send_batch([], **options)


@pytest.mark.parametrize(
    ("call", "name", "text"),
    [
        (
            pull,
            "count",
            "pull() has no argument 'count'; did you mean max_messages? (docs/client.md#receiving)",
        ),
        (pull, "timeout", "did you mean timeout_ms?"),
        (fail, "delay", "fail() has no argument 'delay'; did you mean delay_ms? (docs/retries.md)"),
        (fail, "error", "did you mean reason?"),
        (administer, "timeout", "Admin() has no argument 'timeout'; did you mean timeout_ms?"),
        (administer, "ssl", "did you mean tls?"),
        (
            enqueue,
            "host",
            "DdmqBroker() has no argument 'host'; did you mean producer_proxies or consumer_proxies?",
        ),
        (enqueue, "url", "did you mean producer_proxies or consumer_proxies?"),
        (enqueue, "producers", "did you mean producer_proxies? (docs/dramatiq.md)"),
        (
            send_batch,
            "delay",
            "send_batch() has no argument 'delay'; a delay belongs to the call that sends one message",
        ),
    ],
)
def test_other_calls_name_the_argument_that_is_meant(call: Any, name: str, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        call(**{name: 1})
    assert text in str(raised.value)


@pytest.mark.parametrize("name", ["delay", "deliver_at", "level", "cron", "countdown"])
def test_an_outgoing_message_has_no_delay_and_names_the_call_that_has(name: str) -> None:
    with pytest.raises(TypeError) as raised:
        OutgoingMessage("orders", b"x", **{name: 5})
    assert f"OutgoingMessage() has no argument {name!r}; a delay belongs to the call" in str(raised.value)
    assert "producer.send(topic, body, delay=timedelta(minutes=5))" in str(raised.value)


def test_a_topic_and_a_body_in_place_of_a_message_name_the_method_for_them() -> None:
    text = r"send_message\(\) takes message by position, and got 2 arguments; for a topic and a body: send\("
    with pytest.raises(TypeError, match=text):
        Producer(NOWHERE).send_message("orders", b"x")  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match=text):
        asyncio.run(AsyncProducer(NOWHERE).send_message("orders", b"x"))  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match=text), make_message().replies() as replies:
        replies.send_message("orders", b"x")  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="a message is str 'orders'"), make_message().replies() as replies:
        replies.send_message("orders")  # type: ignore[arg-type]


def test_one_message_in_place_of_many_names_the_method_for_it() -> None:
    message: Any = OutgoingMessage("orders", b"x")
    text = r"messages is OutgoingMessage .*; allowed: a list .*; for one: send_message\(message\)"
    with pytest.raises(TypeError, match=text):
        Producer(NOWHERE).send_batch(message)
    producer = Producer(NOWHERE, producer_group="bank", check=lambda transaction: Decision.COMMITTED)
    with pytest.raises(TypeError, match=text), producer.transaction() as tx:
        tx.send_batch(message)
    producer.close()


@pytest.mark.parametrize("reason", ["out of stock", ValueError("out of stock")])
def test_a_reason_in_place_of_a_delay_is_named(reason: Any) -> None:
    message = make_message()
    with pytest.raises(
        ValueError, match=r"out of stock.* is not a whole number .*; for a reason: fail\(reason=\.\.\.\)"
    ):
        message.fail(reason)
    assert message.outcome is None


def test_an_outgoing_message_with_too_many_arguments_names_all_of_them() -> None:
    with pytest.raises(
        TypeError, match=r"takes topic, body, .*, idempotency_key by .* got 9 arguments; allowed: at most 8"
    ):
        OutgoingMessage(*"123456789")  # type: ignore[arg-type]


def test_an_outgoing_message_is_still_a_dataclass() -> None:
    message = OutgoingMessage("orders", b"x", tags="new")
    assert dataclasses.replace(message, key="17") == OutgoingMessage("orders", b"x", "17", "new")
    assert repr(message).startswith("OutgoingMessage(topic='orders', body=b'x', key=None")
    assert list(inspect.signature(OutgoingMessage).parameters)[:3] == ["topic", "body", "key"]
    assert pickle.loads(pickle.dumps(message)) == copy.copy(message) == message


def test_every_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError) as raised:
        Consumer(bootstrap_servers=NOWHERE, group_id="billing")  # type: ignore[call-arg]
    first, second = str(raised.value).splitlines()
    assert "'bootstrap_servers'; did you mean proxies?" in first
    assert "'group_id'; did you mean group?" in second


def test_an_argument_by_position_that_must_be_named() -> None:
    with pytest.raises(TypeError, match=r"Consumer\(\) takes proxies, group, topics by position, and got 4"):
        consume(print)
    with pytest.raises(TypeError, match=r"send\(\) takes topic, body by .* by name, as in key=\.\.\."):
        send("order-17")


def test_the_asyncio_classes_and_the_test_kit_explain_as_well() -> None:
    with pytest.raises(
        TypeError, match=r"AsyncConsumer\(\) has no argument 'threads'; did you mean concurrency"
    ):
        AsyncConsumer(NOWHERE, "billing", "orders", threads=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"AsyncProducer\(\) has no argument 'acks'; allowed: proxies"):
        AsyncProducer(NOWHERE, acks="all")  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"FetchConsumer\(\) has no argument 'client_id'; did you mean consumer_id"
    ):
        FetchConsumer(NOWHERE, "loader", client_id="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"make_message\(\) has no argument 'tag'; did you mean tags"):
        make_message(tag="new")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"send\(\) has no argument 'headers'; did you mean properties"):
        asyncio.run(AsyncProducer(NOWHERE).send("orders", b"x", headers={}))  # type: ignore[call-arg]
    message = make_message()
    with (
        pytest.raises(TypeError, match=r"send\(\) has no argument 'tag'; did you mean tags"),
        message.replies() as tx,
    ):
        tx.send("bills", b"x", tag="new")  # type: ignore[call-arg]
    assert read_outcome(message).outcome is None


def test_what_python_says_of_a_missing_argument_is_left_as_it_is() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'group'"):
        Consumer(NOWHERE)  # type: ignore[call-arg]


def test_a_message_given_to_send_as_an_object_names_the_method_for_it() -> None:
    with pytest.raises(
        TypeError, match=r"missing .* 'body'; for an OutgoingMessage: send_message\(message\)"
    ):
        Producer(NOWHERE).send(OutgoingMessage("orders", b"x"))  # type: ignore[call-arg, arg-type]


def test_a_text_in_place_of_a_message_object_is_named() -> None:
    producer = Producer(NOWHERE)
    for send_object in (producer.send_async, producer.send_oneway, producer.send_message):
        with pytest.raises(
            TypeError, match=r"a message is str 'orders'; allowed: OutgoingMessage\(topic, body"
        ):
            send_object("orders")  # type: ignore[operator]
    for messages in ("orders", [("orders", b"x")]):
        with pytest.raises(TypeError, match=r"allowed: OutgoingMessage\(topic, body"):
            producer.send_batch(messages)  # type: ignore[arg-type]
    producer.close()


def test_a_type_error_inside_the_function_is_left_as_it_is() -> None:
    inner = TypeError("unexpected keyword argument 'x'")

    @explain_arguments("page")
    def function(x: int) -> None:
        raise inner

    @explain_arguments("page")
    async def coroutine(x: int) -> None:
        raise inner

    for call in (lambda: function(1), lambda: asyncio.run(coroutine(1))):
        with pytest.raises(TypeError) as raised:
            call()
        assert raised.value is inner


def test_signatures_stay_as_they_are() -> None:
    parameters = inspect.signature(Consumer).parameters
    assert list(parameters)[:4] == ["proxies", "group", "topics", "handler"]
    assert parameters["threads"].default == 4
    assert list(inspect.signature(Producer(NOWHERE).send).parameters)[:3] == ["topic", "body", "key"]
    assert inspect.iscoroutinefunction(AsyncProducer.send)
    assert not inspect.iscoroutinefunction(Producer.send)
    mock = create_autospec(AsyncProducer, instance=True)
    assert asyncio.run(mock.send("orders", b"x")) is mock.send.return_value
    assert Producer.send.__doc__ is not None
