"""make_message: a handler's message without a broker, and what the handler made of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddmq_client import ClientError, JsonSerializer, Message, OptionError, Outcome
from ddmq_client.outgoing import OutgoingMessage
from ddmq_client.testing import make_message, read_outcome


def test_it_has_what_was_given() -> None:
    sent_at = datetime(2026, 1, 2, tzinfo=UTC)
    message = make_message(
        "grün", topic="orders", key="k", tags="t", properties={"a": "b"}, group="g", attempt=3, offset=7,
        sent_at=sent_at, message_id="ab",
    )  # fmt: skip
    assert (message.body, message.text(), message.topic, message.key) == (
        "grün".encode(), "grün", "orders", "k"
    )  # fmt: skip
    assert (message.tags, message.properties, message.group, message.offset) == ("t", {"a": "b"}, "g", 7)
    assert (message.attempt, message.message_id, message.outcome) == (3, "ab", None)
    assert message.born_ms == message.stored_ms == int(sent_at.timestamp() * 1000)


def test_a_message_without_arguments_is_complete() -> None:
    first, second = make_message(), make_message()
    assert second.offset == first.offset + 1
    assert first.message_id != second.message_id
    assert repr(first).startswith("Message(topic/0/")
    assert first.attempt == 1


@dataclass
class Parcel:
    number: int


PARCELS = JsonSerializer(into=lambda fields: Parcel(**fields))


def test_with_a_serializer_it_has_a_value_as_a_consumer_gives_it() -> None:
    message = make_message(Parcel(17), serializer=PARCELS)
    assert (message.body, message.value) == (b'{"number":17}', Parcel(17))
    assert make_message(b'{"number": 18}', serializer=PARCELS).value == Parcel(18)
    with message.replies() as replies:
        replies.send("bills", {"order": 17})
    assert read_outcome(message).replies[0].body == b'{"order":17}'
    with pytest.raises(ValueError, match="Expecting property name"):
        make_message(b"{broken", serializer=PARCELS)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"body": {"number": 17}}, "body is dict; allowed: bytes or str, or with serializer= any value"),
        ({"key": 17}, "key is int 17; allowed: str"),
        ({"tags": ["a"]}, "tags is list"),
        ({"properties": {"a": 1}}, "property 'a' is int 1; allowed: str"),
        ({"lease": 5}, "lease=5 is int; allowed: a timedelta"),
        ({"serializer": JsonSerializer}, "serializer=.* allowed: an object with the methods serialize"),
    ],
)
def test_what_no_message_can_have_is_rejected(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make_message(**arguments)


@pytest.mark.parametrize(
    ("settle", "outcome"),
    [
        (Message.ack, Outcome.ACKED),
        (Message.skip, Outcome.SKIPPED),
        (Message.fail, Outcome.FAILED),
        (Message.hand_back, Outcome.HANDED_BACK),
    ],
)
def test_it_is_settled_once(settle, outcome) -> None:
    message = make_message()
    assert settle(message)
    assert message.outcome is outcome
    assert read_outcome(message).outcome is outcome
    assert not message.ack()
    assert not message.extend()
    assert message.outcome is outcome


def test_a_fail_keeps_its_reason_and_its_delay() -> None:
    message = make_message()
    message.fail(delay_ms=1_500, reason=ValueError("no such order"))
    found = read_outcome(message)
    assert (found.delay, found.reason) == (timedelta(seconds=1.5), "ValueError: no such order")
    assert not found.is_dead_letter


def test_a_dead_letter_is_one() -> None:
    message = make_message()
    message.dead_letter("for good")
    assert read_outcome(message).is_dead_letter
    assert read_outcome(message).delay is None


def test_extensions_are_counted() -> None:
    message = make_message(lease=timedelta(seconds=30))
    before = message.expires_at
    assert message.extend()
    assert message.expires_at >= before
    assert read_outcome(message).extensions == 1


def test_replies_are_kept_and_acknowledge() -> None:
    message = make_message(key="k")
    with message.replies() as replies:
        replies.send("bills", b"one", key="k", tags="t", properties={"a": "b"})
        replies.send("bills", "two")
    assert message.outcome is Outcome.ACKED
    assert read_outcome(message).replies == [
        OutgoingMessage("bills", b"one", "k", "t", {"a": "b"}),
        OutgoingMessage("bills", b"two"),
    ]
    assert [result.code for result in replies.results] == [0, 0]


def test_replies_of_a_failed_block_are_not_sent() -> None:
    message = make_message()
    with suppress(ZeroDivisionError), message.replies() as replies:
        replies.send("bills", b"one")
        raise ZeroDivisionError
    assert (message.outcome, read_outcome(message).replies) == (None, [])


def test_an_asyncio_handler_awaits_its_replies() -> None:
    message = make_message(inline=False)

    async def handle() -> None:
        async with message.replies() as replies:
            replies.send("bills", b"one")

    asyncio.run(handle())
    assert [reply.topic for reply in read_outcome(message).replies] == ["bills"]


def test_only_its_own_messages_have_a_settlement() -> None:
    message = make_message()
    message.delivery.settling = None
    with pytest.raises(ClientError, match="not made by make_message"):
        read_outcome(message)
