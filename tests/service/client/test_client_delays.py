"""Delayed sends and changes, blocking and asyncio, against a proxy that fails in every way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ddmq_client import (
    ClosedError,
    DelayResult,
    DelayStatus,
    InvalidMessageError,
    NotStoredError,
    OptionError,
    Producer,
)
from tests.service.client.either import Either
from tests.service.client.standin import AFTER, BEFORE, FAULT, GARBAGE, HALF, OTHER_SEQUENCE, Standin, refuse

HOUR = timedelta(hours=1)
REPEATED = [AFTER, BEFORE, HALF, GARBAGE, OTHER_SEQUENCE, FAULT, refuse(10), refuse(12), refuse(15)]


@pytest.fixture(params=["blocking", "asyncio"])
def producer(request: pytest.FixtureRequest, proxy: Standin) -> Any:
    either = Either(request.param, proxy.address)
    yield either
    either.end()


def test_what_goes_over_the_wire(producer: Any, proxy: Standin) -> None:
    sent = producer.send(
        "t",
        "grün",
        key="k",
        tags="a",
        properties={"p": "ü"},
        shard_key="user-7",
        delay=90 * timedelta(seconds=1),
    )
    assert isinstance(sent, DelayResult)
    ((uuid, message),) = proxy.delayed.items()
    assert (message.topic, message.body, message.key, message.tags) == ("t", "grün".encode(), "k", "a")
    assert (message.properties, message.clientId) == ({"p": "ü"}, "me")
    assert (message.action, message.dmsgtype, message.delayMs, message.dueMs) == (1, 5, 90_000, None)
    assert (message.partitionId, message.hashId) == (-1, 2537939745)
    assert sent.delay_id == f"1700000000-5-0000000000-0-0-0-0-{uuid}"
    assert sent.due_at == datetime.fromtimestamp(1_700_000_090, UTC)


def test_crons_and_series(producer: Any, proxy: Standin) -> None:
    producer.send("t", b"b", cron="0 9 * * 1-5", zone="Asia/Shanghai", catch_up="skip")
    producer.send("t", b"b", every=HOUR, times=3)
    first, second = proxy.delayed.values()
    assert (first.cron, first.zone, first.catchUp) == ("0 9 * * 1-5", "Asia/Shanghai", "skip")
    assert (second.delayMs, second.periodMs, second.repeat) == (3_600_000, 3_600_000, 2)


def test_a_level_is_a_plain_send(producer: Any, proxy: Standin) -> None:
    sent = producer.send("t", b"b", level=3, properties={"a": "b"})
    assert sent.delay_id is None
    assert proxy.stored[0].properties == {"a": "b", "DELAY": "3"}
    with pytest.raises(OptionError, match="level=0"):
        producer.send("t", b"b", level=0)


@pytest.mark.parametrize("fault", REPEATED)
def test_a_resend_after_an_unknown_outcome_adds_one_message(
    producer: Any, proxy: Standin, fault: object
) -> None:
    proxy.faults["sendDelaySync"].append(fault)
    sent = producer.send("t", b"b", delay=HOUR)
    assert len(proxy.delayed) == 1
    uuids = {args.delayMessage.uuid for method, args in proxy.calls if method == "sendDelaySync"}
    assert uuids == set(proxy.delayed) == {sent.delay_id.split("-", 7)[7]}


@pytest.mark.parametrize("fault", [AFTER, BEFORE, HALF, GARBAGE])
def test_a_cancel_that_was_not_answered_is_resent(producer: Any, proxy: Standin, fault: object) -> None:
    sent = producer.send("t", b"b", delay=HOUR)
    proxy.faults["sendDelaySync"].append(fault)
    assert producer.cancel(sent).cancelled
    assert not proxy.delayed


def test_a_cancel_tells_what_came_of_it(producer: Any, proxy: Standin) -> None:
    sent = producer.send("t", b"b", delay=HOUR)
    assert producer.cancel(sent.delay_id).status is DelayStatus.CANCELLED
    assert producer.cancel(sent).status is DelayStatus.CANCELLED
    fired = producer.send("t", b"b", delay=HOUR)
    assert producer.fire_now(fired).status is DelayStatus.FIRED
    outcome = producer.cancel(fired)
    assert outcome.status is DelayStatus.FIRED
    assert outcome.fired_at == datetime.fromtimestamp(1_700_000_000, UTC) + timedelta(milliseconds=123)
    assert producer.cancel(sent.delay_id[:-1] + "x").status is DelayStatus.UNKNOWN


def test_reschedule(producer: Any, proxy: Standin) -> None:
    sent = producer.send("t", b"b", delay=HOUR)
    outcome = producer.reschedule(sent, deliver_at=datetime(2026, 11, 22, 12, tzinfo=UTC))
    assert (outcome.status, outcome.due_at) == (
        DelayStatus.RESCHEDULED,
        datetime(2026, 11, 22, 12, tzinfo=UTC),
    )
    request = proxy.calls[-1][1].delayMessage
    assert (request.action, request.dueMs, request.uniqDelayMsgId) == (100, 1_795_348_800_000, sent.delay_id)
    with pytest.raises(OptionError, match="neither delay nor deliver_at"):
        producer.reschedule(sent)


@pytest.mark.parametrize("what", ["", None, 17])
def test_what_names_no_delayed_message(producer: Any, proxy: Standin, what: Any) -> None:
    with pytest.raises(OptionError, match="names no delayed message"):
        producer.cancel(what)
    with pytest.raises(OptionError, match="names no delayed message"):
        producer.cancel(producer.send("t", b"b"))


@pytest.mark.parametrize(
    ("code", "error"), [(11, InvalidMessageError), (30, InvalidMessageError), (21, NotStoredError)]
)
def test_rejections(producer: Any, proxy: Standin, code: int, error: type[Exception]) -> None:
    proxy.faults["sendDelaySync"] += [refuse(code), refuse(code)]
    with pytest.raises(error):
        producer.send("t", b"b", delay=HOUR)
    with pytest.raises(error):
        producer.cancel("x")


def test_invalid_messages_are_rejected_before_they_are_sent(producer: Any) -> None:
    with pytest.raises(InvalidMessageError, match="body"):
        producer.send("t", b"", delay=HOUR)
    with pytest.raises(InvalidMessageError, match="key"):
        producer.send("t", b"b", key=7, delay=HOUR)


def test_closed(proxy: Standin) -> None:
    with Producer(proxy.address) as producer:
        pass
    with pytest.raises(ClosedError):
        producer.send("t", b"b", delay=HOUR)
    with pytest.raises(ClosedError):
        producer.cancel("x")


def test_only_what_the_delay_service_has_is_due(proxy: Standin) -> None:
    with Producer(proxy.address) as producer:
        assert producer.send("t", b"x").due_at is None
        assert producer.send("t", b"x", level=3).due_at is None
        assert producer.send("t", b"x", delay=HOUR).due_at is not None
