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
        ({"attempt": 0}, "attempt=0; allowed: 1 to "),
        ({"attempt": "1"}, "attempt='1'; allowed: a whole number from 1"),
        ({"attempt": True}, "attempt=True; allowed: a whole number"),
        ({"attempt": None}, "attempt=None; allowed: a whole number"),
        ({"offset": -1}, "offset=-1; allowed: 0 to "),
        ({"offset": 2**63 - 1}, "offset=9223372036854775807; allowed: 0 to "),
        ({"offset": 1.5}, r"offset=1\.5; allowed: a whole number from 0"),
        ({"topic": ""}, "topic is ''; allowed: 1 to 127 ASCII letters"),
        ({"topic": "orders.new"}, r"topic is 'orders\.new'; allowed: 1 to 127 ASCII letters"),
        ({"topic": "o" * 128}, "topic has 128 bytes: .*; allowed: 1 to 127"),
        ({"topic": None}, "topic is NoneType None; allowed: 1 to 127"),
        ({"group": ""}, "group is ''; allowed: 1 to 119 ASCII letters"),
        ({"group": b"billing"}, "group is bytes b'billing'; allowed: 1 to 119"),
        ({"group": "g" * 120}, "group has 120 bytes: .*; allowed: 1 to 119"),
        ({"queue": ""}, "queue=''; allowed: text of 1 to 255 characters"),
        ({"queue": 3}, "queue=3; allowed: text of 1 to 255 characters"),
        ({"message_id": ""}, "message_id=''; allowed: text of 1 to 255 characters"),
        ({"key": "k" * 256}, "key has 256 characters; allowed: at most 255"),
        ({"tags": "\udc80"}, "tags is .*; allowed: text that UTF-8 can carry"),
        ({"body": "\udc80"}, "body is .*; allowed: text that UTF-8 can carry"),
        ({"properties": {1: "b"}}, "the name of a property is int 1; allowed: str"),
        ({"properties": {" ": "b"}}, "the name of a property is ' '; allowed: text that is not blank"),
        ({"properties": {"a": ""}}, "property 'a' is ''; allowed: text that is not blank"),
        ({"properties": ["a"]}, "properties=.*; allowed: a mapping of text to text"),
        ({"sent_at": datetime(2026, 1, 2)}, "sent_at=2026-01-02T00:00:00 has no time zone"),
        ({"sent_at": 1_700_000_000}, "sent_at=1700000000 is int; allowed: a datetime with a time zone"),
        ({"sent_at": datetime(1969, 1, 2, tzinfo=UTC)}, "sent_at=1969.*; allowed: a time since 1970"),
        ({"lease": timedelta(0)}, "lease=0:00:00 is 0 ms; allowed: at least 1 ms"),
        ({"lease": timedelta(seconds=-1)}, "lease=-1 day, 23:59:59 is -1000 ms; allowed: at least 1 ms"),
        ({"inline": None}, "inline=None; allowed: True, or False"),
    ],
)
def test_what_no_message_can_have_is_rejected(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make_message(**arguments)


def test_what_a_message_can_have_is_accepted() -> None:
    message = make_message(
        b"", topic="%DLQ%billing", group="g" * 119, attempt=2**31 - 1, offset=0, key="", tags="t" * 255,
        queue="%RETRY%_a_0", lease=timedelta(milliseconds=1),
    )  # fmt: skip
    assert (message.topic, message.attempt, message.offset, message.queue_id) == (
        "%DLQ%billing", 2**31 - 1, 0, -1
    )  # fmt: skip


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


def test_a_message_states_when_its_lease_ends_as_a_datetime() -> None:
    created_at = datetime.now(UTC)
    expires_at = make_message(lease=timedelta(seconds=30)).expires_at
    assert expires_at is not None
    assert expires_at.utcoffset() == timedelta()
    assert timedelta(seconds=29.9) < expires_at - created_at < timedelta(seconds=60)
    assert make_message().expires_at is None, "its lease lasts for ever"


def test_extensions_are_counted() -> None:
    message = make_message(lease=timedelta(seconds=30))
    before = message.expires_at
    assert before is not None
    assert message.extend()
    assert message.expires_at is not None
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
