"""Dramatiq messages on their way to a topic and back, without a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq
import pytest

from ddmq_client.dramatiq.delivered import DeliveredMessage, decode
from ddmq_client.dramatiq.leases import LeaseKeeper
from ddmq_client.dramatiq.queued_message import QueuedMessage, queue_message, topic_name
from ddmq_client.errors import (
    ClosedError,
    InvalidMessageError,
    LeaseOverError,
    NotStoredError,
    OptionError,
    UnknownOutcomeError,
)
from ddmq_client.received import DeliveryContext, Message, Origin, Outcome
from tests.support.waits import until

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


class SettlementRecorder:
    """Records how messages were settled; `reply` raises `error` if there is one."""

    inline = True

    def __init__(self) -> None:
        self.settled: list[tuple[Outcome, int | None, str]] = []
        self.replied: list[int] = []
        self.extended = 0
        self.error: Exception | None = None

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str) -> bool:
        self.settled.append((outcome, delay_ms, reason))
        return True

    def extend(self, message: Message) -> bool:
        self.extended += 1
        message.extended_at = time.monotonic()
        return True

    def hand_back(self, message: Message) -> bool:
        self.settled.append((Outcome.HANDED_BACK, None, ""))
        return True

    def reply(self, message: Message, messages: Sequence[bytes], timeout_ms: int | None) -> Any:
        if self.error is not None:
            raise self.error
        self.replied.append(len(messages))
        return ()


class Sending:
    """A producer that records bodies, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.bodies: list[bytes] = []
        self.error = error

    def send(self, topic: str, body: bytes, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        self.bodies.append(body)


def make_message(**options: Any) -> dramatiq.Message[Any]:
    return dramatiq.Message(queue_name="mail", actor_name="welcome", args=(17,), kwargs={}, options=options)


def deliver(
    message: dramatiq.Message[Any] | bytes,
    settlement: SettlementRecorder,
    key: str | None = None,
    attempt: int = 1,
) -> Message:
    delivery = Message()
    delivery.body = message if isinstance(message, bytes) else message.encode()
    delivery.key, delivery.attempt, delivery.lease_id = key, attempt, 7
    origin = Origin("dramatiq-mail", "dramatiq-mail", "0")
    delivery.delivery = DeliveryContext(origin, time.monotonic(), None, settlement, 30.0, True)
    return delivery


def received(
    settlement: SettlementRecorder, key: str | None = None, attempt: int = 1, **options: Any
) -> DeliveredMessage:
    return decode(deliver(make_message(**options), settlement, key, attempt), "mail")


# --- to the topic


def test_a_queue_is_a_topic_of_the_namespace_and_no_two_queues_share_one() -> None:
    assert topic_name("dramatiq", "default") == "dramatiq-default"
    assert topic_name("shop", "mail.high") == "shop-mail%2Ehigh"


@pytest.mark.parametrize(
    ("options", "actor_option", "key"),
    [
        ({}, None, None),
        ({"ddmq_key": "order-17"}, None, "order-17"),
        ({"ddmq_key": 17}, None, "17"),
        ({}, "mailer", "mailer"),
        ({"ddmq_key": "mine"}, "mailer", "mine"),
        ({"ddmq_key": None}, "mailer", None),
        ({}, lambda order: f"order-{order}", "order-17"),
        ({}, lambda order: None, None),
    ],
)
def test_the_key_is_that_of_the_message_or_of_its_actor(
    options: dict[str, Any], actor_option: Any, key: str | None
) -> None:
    assert queue_message(make_message(**options), "t", actor_option, None, NOW).key == key


@pytest.mark.parametrize("key", ["", "x" * 256, True, 1.5, b"bytes"])
def test_a_key_that_cannot_be_stored_is_an_error(key: object) -> None:
    with pytest.raises(OptionError, match="ddmq_key"):
        queue_message(make_message(), "t", lambda order: key, None, NOW)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("delay_ms", "eta", "delay", "deliver_at"),
    [
        (None, None, None, None),
        (1_500, None, timedelta(milliseconds=1_500), None),
        (0, None, None, None),
        (-5, None, None, None),
        (None, NOW_MS + 2_000, None, NOW + timedelta(seconds=2)),
        (None, NOW_MS - 1, None, None),
        (None, "tomorrow", None, None),
        (1_000, NOW_MS + 1_000, timedelta(seconds=1), None),
    ],
)
def test_a_delay_and_an_eta_are_stored_by_the_server(
    delay_ms: int | None, eta: Any, delay: timedelta | None, deliver_at: datetime | None
) -> None:
    options = {} if eta is None else {"eta": eta}
    queued = queue_message(make_message(**options), "t", None, delay_ms, NOW)
    assert (queued.delay, queued.deliver_at) == (delay, deliver_at)


def test_a_retry_has_no_idempotency_key_and_is_stored() -> None:
    queued = queue_message(make_message(ddmq_idempotency_key="once"), "t", None, None, NOW)
    assert queued.idempotency_key == "once"
    assert "ddmq_idempotency_key" not in dramatiq.Message.decode(queued.body).options


# --- from the topic


def test_a_delivered_message_is_due_and_belongs_to_the_queue_it_came_from() -> None:
    body = make_message(eta=5).copy(queue_name="mail.DQ").encode()
    message = decode(deliver(body, SettlementRecorder()), "mail")
    assert (message.queue_name, message.args) == ("mail", (17,))
    assert "eta" not in message.options


def test_deliveries_of_a_keyed_message_are_its_retries() -> None:
    assert received(SettlementRecorder(), key="a", attempt=4).options["retries"] == 3
    assert received(SettlementRecorder(), key="a", attempt=2, retries=9).options["retries"] == 9
    assert "retries" not in received(SettlementRecorder(), key="a", attempt=1).options
    assert "retries" not in received(SettlementRecorder(), key=None, attempt=4).options


def test_another_programs_message_is_a_decode_error() -> None:
    with pytest.raises(dramatiq.DecodeError):
        decode(deliver(b"no message of Dramatiq", SettlementRecorder()), "mail")


# --- its end


def follow(message: DeliveredMessage) -> None:
    message.followers.append(QueuedMessage("t", b"next", "next"))


def test_a_message_that_is_done_is_acknowledged() -> None:
    settlement = SettlementRecorder()
    received(settlement).ack(Sending())  # type: ignore[arg-type]
    assert settlement.settled == [(Outcome.ACKED, None, "")]


def test_what_follows_goes_with_the_acknowledgement() -> None:
    settlement, producer = SettlementRecorder(), Sending()
    message = received(settlement)
    follow(message)
    follow(message)
    message.ack(producer)  # type: ignore[arg-type]
    assert settlement.replied == [2]
    assert (settlement.settled, producer.bodies) == ([], [])


@pytest.mark.parametrize(
    ("error", "settled"),
    [
        (NotStoredError("busy", 15), (Outcome.FAILED, None, "NotStoredError: busy (code 15)")),
        (UnknownOutcomeError("silence"), (Outcome.FAILED, None, "UnknownOutcomeError: silence")),
        (ClosedError("stopped"), (Outcome.FAILED, None, "ClosedError: stopped")),
        (
            InvalidMessageError("too large", 11),
            (Outcome.FAILED, -2, "InvalidMessageError: too large (code 11)"),
        ),
    ],
)
def test_a_message_whose_followers_are_not_stored_is_never_acknowledged(
    error: Exception, settled: tuple[Outcome, int | None, str]
) -> None:
    settlement = SettlementRecorder()
    settlement.error = error
    message = received(settlement)
    follow(message)
    message.ack(Sending())  # type: ignore[arg-type]
    assert settlement.settled == [settled]


def test_a_message_whose_lease_is_over_is_left_to_others() -> None:
    settlement = SettlementRecorder()
    settlement.error = LeaseOverError("late")
    message = received(settlement)
    follow(message)
    message.ack(Sending())  # type: ignore[arg-type]
    assert settlement.settled == []


@pytest.mark.parametrize(
    ("error", "delay_ms"),
    [(dramatiq.ConnectionFailed("no server"), None), (TypeError("no JSON"), -2)],
)
def test_an_enqueue_that_failed_after_the_actor_keeps_the_message(
    error: Exception, delay_ms: int | None
) -> None:
    settlement = SettlementRecorder()
    message = received(settlement)
    message.enqueue_error = error
    message.ack(Sending())  # type: ignore[arg-type]
    ((outcome, delay, _),) = settlement.settled
    assert (outcome, delay) == (Outcome.FAILED, delay_ms)


def test_a_keyed_message_is_retried_in_its_place() -> None:
    settlement = SettlementRecorder()
    message = received(settlement, key="a")
    message.retry_delay_ms = 15_000
    message.stuff_exception(ValueError("no stock"))
    message.ack(Sending())  # type: ignore[arg-type]
    assert settlement.settled == [(Outcome.FAILED, 15_000, "ValueError: no stock")]


def test_a_rejected_message_is_a_dead_letter_with_the_exception_as_its_reason() -> None:
    settlement, producer = SettlementRecorder(), Sending()
    message = received(settlement)
    follow(message)
    message.stuff_exception(ValueError("no stock"))
    message.nack(producer)  # type: ignore[arg-type]
    assert producer.bodies == [b"next"]
    assert settlement.settled == [(Outcome.FAILED, -2, "ValueError: no stock")]


def test_a_rejected_message_whose_callback_is_not_stored_is_redelivered() -> None:
    settlement = SettlementRecorder()
    message = received(settlement)
    follow(message)
    message.nack(Sending(NotStoredError("no server")))  # type: ignore[arg-type]
    assert settlement.settled == [(Outcome.FAILED, None, "NotStoredError: no server")]


# --- leases


def test_leases_are_extended_until_the_message_is_settled() -> None:
    settlement, leases = SettlementRecorder(), LeaseKeeper(60.0)
    delivery = deliver(make_message(), settlement)
    delivery.delivery.lease_s = 0.03
    leases.add(delivery)
    until(lambda: settlement.extended >= 3, "the lease is extended")
    leases.remove(delivery)
    extended = settlement.extended
    other = SettlementRecorder()
    second = deliver(make_message(), other)
    second.delivery.lease_s = 0.03
    leases.add(second)
    until(lambda: other.extended >= 3, "the next lease is extended")
    assert settlement.extended <= extended + 1  # one may have been under way
    leases.stop()


def test_a_lease_is_extended_no_longer_than_allowed_and_not_when_it_is_lost() -> None:
    settlement, leases = SettlementRecorder(), LeaseKeeper(0.0)
    leases.add(deliver(make_message(), settlement))
    lost, valid, keeper = SettlementRecorder(), SettlementRecorder(), LeaseKeeper(60.0)
    first, second = deliver(make_message(), lost), deliver(make_message(), valid)
    first.lost = True
    for delivery in (first, second):
        delivery.delivery.lease_s = 0.03
        keeper.add(delivery)
    until(lambda: valid.extended >= 3, "the other lease is extended")
    assert (settlement.extended, lost.extended) == (0, 0)
    keeper.stop()
