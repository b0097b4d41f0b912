"""Values of the wrong kind: the error names the argument, its value and what is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

import pytest

from ddmq_client import (
    ClientError,
    Decision,
    FetchConsumer,
    InvalidMessageError,
    OptionError,
    OutgoingMessage,
    Producer,
)
from ddmq_client.aio import AsyncAdmin, AsyncConsumer, AsyncFetchConsumer, AsyncProducer
from ddmq_client.dramatiq import DdmqBroker
from ddmq_client.testing import TestBroker, read_outcome

NOWHERE = "127.0.0.1:9"
PROPERTIES: Any = ["colour"]
PROPERTIES_ALLOWED = r"properties is list \['colour'\]; allowed: a mapping of text to text, or None"


def send_in_transaction(producer: Producer, **options: Any) -> None:
    with producer.transaction(reference="order-17") as tx:
        tx.send("orders", b"x", properties=PROPERTIES, **options)


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send("orders", b"x", properties=PROPERTIES),
        lambda producer: producer.send("orders", b"x", properties=PROPERTIES, level=3),
        lambda producer: producer.send("orders", b"x", properties=PROPERTIES, delay=timedelta(hours=1)),
        lambda producer: producer.send_async(OutgoingMessage("orders", b"x", properties=PROPERTIES)),
        lambda producer: producer.send_oneway(OutgoingMessage("orders", b"x", properties=PROPERTIES)),
        send_in_transaction,
        lambda producer: send_in_transaction(producer, delay=timedelta(hours=1)),
    ],
)
def test_properties_that_are_no_mapping_are_named(send: Callable[[Producer], object]) -> None:
    with (
        Producer(NOWHERE, producer_group="bank", check=lambda transaction: Decision.COMMITTED) as producer,
        pytest.raises(InvalidMessageError, match=PROPERTIES_ALLOWED),
    ):
        send(producer)


@pytest.mark.parametrize("offsets", [{"orders": 5}, {"orders": {"R_default_a_0": -1}}, ["orders"]])
def test_offsets_of_another_form_are_not_acknowledged(offsets: Any) -> None:
    with (
        FetchConsumer(NOWHERE, "loader") as consumer,
        pytest.raises(OptionError, match=r"allowed: \{'TOPIC': \{QUEUE_ID: OFFSET\}\}"),
    ):
        consumer.ack(offsets)


@pytest.mark.parametrize("message", [None, 5])
def test_a_delayed_dramatiq_message_must_be_named_to_be_cancelled(message: Any) -> None:
    with pytest.raises(
        OptionError, match=rf"^{message} has no delay id; allowed: a message enqueued with a delay"
    ):
        DdmqBroker(NOWHERE).cancel(message)


def test_only_a_message_has_an_outcome() -> None:
    with pytest.raises(OptionError, match="message=None; allowed: a message of make_message"):
        read_outcome(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "text"),
    [("2026-01-01", "is str; allowed: a datetime"), (datetime(2026, 1, 1), "has no time zone")],
)
def test_the_time_of_a_test_broker_is_a_datetime_with_a_time_zone(now: Any, text: str) -> None:
    with pytest.raises(OptionError, match=rf"^now=.* {text}"):
        TestBroker(now=now)


def test_a_group_of_a_test_broker_may_have_several_topics() -> None:
    with TestBroker() as broker:
        broker.create_group("billing", ["orders", "returns"])
        assert broker.group_lag("billing", "returns") == 0
        assert {each.topic for each in broker.server.list_stats("billing")} == {"orders", "returns"}
        for topics in ([], 5):
            with pytest.raises(OptionError, match="allowed: a name, or a list of"):
                broker.create_group("billing", topics)  # type: ignore[arg-type]


async def send(producer: AsyncProducer) -> None:
    async with producer:
        await producer.send("orders", b"x")


@pytest.mark.parametrize("call", [send, lambda producer: producer.send("orders", b"x")])
def test_a_producer_in_another_event_loop_names_the_cause(
    call: Callable[[Any], Coroutine[Any, Any, Any]],
) -> None:
    with TestBroker() as broker:
        producer = broker.aio.producer()
        asyncio.run(producer.send("orders", b"x"))
        with pytest.raises(
            ClientError, match=r"this producer was used in another event loop .*one event loop per client"
        ):
            asyncio.run(call(producer))


async def call_all(clients: tuple[AsyncConsumer, AsyncFetchConsumer, AsyncAdmin]) -> list[BaseException]:
    consumer, fetching, admin = clients
    calls = (consumer.pull(timeout_ms=50), fetching.fetch(linger_ms=20), admin.list_topics())
    return [
        each
        for each in await asyncio.gather(*calls, return_exceptions=True)
        if isinstance(each, BaseException)
    ]


def test_every_asyncio_client_belongs_to_one_event_loop() -> None:
    clients = (
        AsyncConsumer(NOWHERE, "billing", "orders"),
        AsyncFetchConsumer(NOWHERE, "loader"),
        AsyncAdmin(NOWHERE),
    )
    assert not any("event loop" in str(each) for each in asyncio.run(call_all(clients)))
    errors = asyncio.run(call_all(clients))
    assert len(errors) == 3
    assert all("one event loop per client" in str(each) for each in errors)
