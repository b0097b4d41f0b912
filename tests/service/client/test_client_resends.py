"""What may be stored is sent again where it is recognised: by numbers of the producer's own, or by keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ddmq_client import (
    InvalidMessageError,
    NotStoredError,
    OptionError,
    OutgoingMessage,
    Producer,
    UnknownOutcomeError,
)
from tests.service.client.either import KINDS, Either
from tests.service.client.standin import (
    AFTER,
    BEFORE,
    FAULT,
    GARBAGE,
    HALF,
    HOLD,
    OTHER_SEQUENCE,
    Fault,
    Standin,
    refuse,
)

UNKNOWN = [AFTER, BEFORE, HALF, GARBAGE, OTHER_SEQUENCE, FAULT, refuse(10), refuse(12)]
STORED_ALL_THE_SAME = (AFTER, HALF)
PATIENCE_MS = 60_000  # for what ends by itself

Make = Callable[..., Any]


@pytest.fixture(params=KINDS)
def make_producer(request: pytest.FixtureRequest, proxy: Standin) -> Iterator[Make]:
    """Makes producers of either kind."""
    producers: list[Either] = []

    def make(proxies: str | list[str] = "", **settings: Any) -> Either:
        settings = {"timeout_ms": PATIENCE_MS} | settings
        producers.append(Either(request.param, proxies or proxy.address, **settings))
        return producers[-1]

    proxy.recognises = True
    yield make
    for producer in producers:
        producer.end()


@pytest.fixture
def resending_producer(make_producer: Make) -> Any:
    """A producer that has seen that its proxy recognises what is sent again."""
    producer = make_producer()
    assert not producer.send("t", b"first").duplicate
    return producer


@pytest.fixture
def pair(proxy: Standin, other: Standin, make_producer: Make) -> Any:
    """A producer for two proxies of one cluster."""
    other.recognises, other.stored, other.stored_identities = True, proxy.stored, proxy.stored_identities
    return make_producer([proxy.address, other.address])


def sent(proxy: Standin) -> list[Any]:
    """Every message of every call, in their order."""
    messages: list[Any] = []
    for method, args in proxy.calls:
        messages += args.messages if method == "sendBatch" else [args.message]
    return messages


def numbers(proxy: Standin) -> list[Any]:
    return [message.sequence for message in sent(proxy)]


def messages(count: int, **fields: Any) -> list[OutgoingMessage]:
    return [OutgoingMessage("t", b"m%d" % at, **fields) for at in range(count)]


# --- sent again


@pytest.mark.parametrize("fault", UNKNOWN)
def test_what_may_be_stored_is_resent_where_resends_are_recognised(
    resending_producer: Any, proxy: Standin, fault: Fault
) -> None:
    proxy.faults["sendSync"].append(fault)
    result = resending_producer.send("t", b"x")
    assert result.stored
    assert result.duplicate == (fault in STORED_ALL_THE_SAME)
    assert not result.body_differs
    assert [message.body for message in proxy.stored] == [b"first", b"x"]
    assert result.offset == 1
    assert numbers(proxy) == [0, 1, 1], "every attempt has the message's number"


@pytest.mark.parametrize("fault", UNKNOWN)
def test_nothing_is_resent_before_a_proxy_has_recognised_a_resend(
    make_producer: Make, proxy: Standin, fault: Fault
) -> None:
    proxy.faults["sendSync"].append(fault)
    producer = make_producer()
    with pytest.raises(UnknownOutcomeError):
        producer.send("t", b"x")
    assert len(proxy.calls) == 1


@pytest.mark.parametrize("fault", [AFTER, refuse(12)])
def test_nothing_is_resent_to_a_proxy_that_recognises_no_resends(
    resending_producer: Any, proxy: Standin, fault: Fault
) -> None:
    proxy.recognises = False
    assert resending_producer.send("t", b"older now").stored
    proxy.faults["sendSync"].append(fault)
    with pytest.raises(UnknownOutcomeError):
        resending_producer.send("t", b"x")
    assert len(proxy.calls) == 3
    proxy.recognises = True
    assert resending_producer.send("t", b"newer again").stored
    proxy.faults["sendSync"].append(fault)
    assert resending_producer.send("t", b"y").stored
    assert len(proxy.calls) == 6


def test_a_time_out_leaves_time_for_another_attempt(resending_producer: Any, proxy: Standin) -> None:
    proxy.faults["sendSync"].append(HOLD)
    result = resending_producer.send("t", b"x", timeout_ms=2_000)
    assert result.stored
    assert not result.duplicate
    proxy.release()
    assert resending_producer.send("t", b"y").stored
    assert [message.body for message in proxy.stored].count(b"x") == 1, "the late one is recognised, too"


def test_the_other_proxy_recognises_it_too(pair: Any, proxy: Standin, other: Standin) -> None:
    assert not pair.send("t", b"first").duplicate
    for standin in (proxy, other):
        standin.faults["sendSync"].append(AFTER)
    result = pair.send("t", b"x")
    assert result.stored
    assert result.duplicate
    assert [message.body for message in proxy.stored] == [b"first", b"x"]
    assert len({message.producerId for message in sent(proxy) + sent(other)}) == 1


def test_one_proxy_that_does_not_recognise_it_is_enough(pair: Any, proxy: Standin, other: Standin) -> None:
    other.recognises = False
    for body in (b"a", b"b"):
        assert pair.send("t", body).stored
    assert proxy.calls
    assert other.calls
    for standin in (proxy, other):
        standin.faults["sendSync"].append(AFTER)
    calls = len(proxy.calls) + len(other.calls)
    with pytest.raises(UnknownOutcomeError):
        pair.send("t", b"x")
    assert len(proxy.calls) + len(other.calls) == calls + 1


def test_without_confirmation_it_stays_unknown(resending_producer: Any, proxy: Standin) -> None:
    proxy.faults["sendSync"].extend([refuse(12)] * 1_000)
    with pytest.raises(UnknownOutcomeError, match="told to answer 12"):
        resending_producer.send("t", b"x", timeout_ms=500)
    assert len(proxy.calls) > 2
    assert set(numbers(proxy)[1:]) == {1}


@pytest.mark.parametrize(("second", "code"), [(refuse(11), 11), (refuse(15), 15)])
def test_a_later_rejection_does_not_settle_what_may_be_stored(
    make_producer: Make, proxy: Standin, second: Fault, code: int
) -> None:
    producer = make_producer(attempts_max=5)  # a deadline could cut the last one, which then has no code
    assert producer.send("t", b"first").stored
    proxy.faults["sendSync"].extend([AFTER, *[second] * 4])
    with pytest.raises(UnknownOutcomeError) as raised:
        producer.send("t", b"x")
    assert raised.value.code == code
    assert len(proxy.stored) == 2


def test_attempts_are_bounded(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer(attempts_max=2)
    assert producer.send("t", b"first").stored
    proxy.faults["sendSync"].extend([AFTER, refuse(12), refuse(12)])
    with pytest.raises(UnknownOutcomeError):
        producer.send("t", b"x")
    assert len(proxy.calls) == 3


# --- batches


@pytest.mark.parametrize("fault", [AFTER, BEFORE, HALF, GARBAGE])
def test_a_batch_is_stored_once(resending_producer: Any, proxy: Standin, fault: Fault) -> None:
    proxy.faults["sendBatch"].append(fault)
    results = resending_producer.send_batch(messages(20))
    assert [result.duplicate for result in results] == [fault in STORED_ALL_THE_SAME] * 20
    assert [result.offset for result in results] == list(range(1, 21))
    assert len(proxy.stored) == 21
    assert numbers(proxy) == [0, *range(1, 21), *range(1, 21)]


def test_only_uncertain_members_of_a_batch_are_resent_with_their_numbers(
    resending_producer: Any, proxy: Standin
) -> None:
    proxy.faults["sendBatch"].extend([refuse(12), refuse(15)])
    results = resending_producer.send_batch(messages(3))
    assert all(result.stored for result in results)
    assert numbers(proxy) == [0, 1, 2, 3, 1, 1]


def test_a_first_batch_shows_at_once_that_it_is_recognised(make_producer: Make, proxy: Standin) -> None:
    proxy.faults["sendBatch"].append(refuse(12))
    results = make_producer().send_batch(messages(3))
    assert all(result.stored for result in results)
    assert len(proxy.stored) == 3


def test_a_batch_of_both_kinds(resending_producer: Any, proxy: Standin) -> None:
    keyed = [OutgoingMessage("t", b"k%d" % at, idempotency_key=f"key/{at}") for at in range(2)]
    plain = messages(2)
    mixed = [keyed[0], plain[0], keyed[1], plain[1]]
    proxy.faults["sendBatch"].append(AFTER)
    assert [result.duplicate for result in resending_producer.send_batch(mixed)] == [True] * 4
    assert [result.duplicate for result in resending_producer.send_batch(mixed)] == [True, False, True, False]
    assert len(proxy.stored) == 7
    for message in sent(proxy):
        assert (message.idempotencyKey is None) == (message.sequence is not None)
        assert (message.sequence is None) == (message.producerId is None) == (message.answeredBelow is None)


def test_each_request_of_a_batch_gives_its_numbers_back(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer(batch_messages=4)
    assert all(result.stored for result in producer.send_batch(messages(9)))
    assert [(message.sequence, message.answeredBelow) for message in sent(proxy)] == [
        *[(at, 0) for at in range(4)], *[(at, 4) for at in range(4, 8)], (8, 8),
    ]  # fmt: skip


# --- keys


def test_what_has_a_key_is_stored_once_by_whomever(make_producer: Make, proxy: Standin) -> None:
    first = make_producer().send("t", b"x", idempotency_key="order-17")
    assert not first.duplicate
    repeated = make_producer().send("t", b"x", idempotency_key="order-17")
    assert (repeated.stored, repeated.duplicate, repeated.body_differs) == (True, True, False)
    assert (repeated.message_id, repeated.queue_id, repeated.offset) == (
        first.message_id, first.queue_id, first.offset,
    )  # fmt: skip
    other_body = make_producer().send("t", b"y", idempotency_key="order-17")
    assert (other_body.stored, other_body.duplicate, other_body.body_differs) == (True, True, True)
    assert "duplicate=True, body_differs=True" in repr(other_body)
    assert "duplicate" not in repr(first)
    assert [message.body for message in proxy.stored] == [b"x"]
    assert make_producer().send("u", b"x", idempotency_key="order-17").offset == 1, "once per topic"


@pytest.mark.parametrize("fault", UNKNOWN)
@pytest.mark.parametrize("how", [{"idempotency_key": "k"}, {"properties": {"idempotency-key": "k"}}])
def test_sends_with_a_key_are_resent_from_the_first_send_on(
    make_producer: Make, proxy: Standin, fault: Fault, how: dict[str, Any]
) -> None:
    proxy.faults["sendSync"].append(fault)
    result = make_producer().send("t", b"x", **how)
    assert result.duplicate == (fault in STORED_ALL_THE_SAME)
    assert len(proxy.stored) == 1
    assert numbers(proxy) == [None, None]


def test_an_engine_without_keys_rejects_them(make_producer: Make, proxy: Standin) -> None:
    proxy.recognises = proxy.takes_keys = False
    producer = make_producer()
    with pytest.raises(InvalidMessageError):
        producer.send("t", b"x", idempotency_key="k")
    proxy.faults["sendSync"].append(BEFORE)
    with pytest.raises(UnknownOutcomeError) as raised:
        producer.send("t", b"x", idempotency_key="k")
    assert raised.value.code == 11


def test_proxies_that_pass_over_keys_get_none_twice(make_producer: Make, proxy: Standin) -> None:
    proxy.recognises = False
    producer = make_producer()
    assert not producer.send("t", b"x", idempotency_key="k").duplicate
    proxy.faults["sendSync"].append(AFTER)
    with pytest.raises(UnknownOutcomeError):
        producer.send("t", b"x", idempotency_key="k")


@pytest.mark.parametrize("key", ["", "x" * 256, "\ud800", b"bytes", 5])
def test_keys_are_checked(make_producer: Make, proxy: Standin, key: Any) -> None:
    producer = make_producer()
    with pytest.raises(OptionError, match="idempotency_key"):
        producer.send("t", b"x", idempotency_key=key)
    bad = OutgoingMessage("t", b"x", idempotency_key=key)
    for call in (producer.send_message, producer.send_oneway):
        with pytest.raises(OptionError, match="idempotency_key"):
            call(bad)
    results = producer.send_batch([*messages(1), bad])
    assert [result.stored for result in results] == [True, False]
    assert isinstance(results[1].error, InvalidMessageError)
    assert producer.send("t", b"x", idempotency_key="ü" * 255).stored
    assert len(proxy.calls) == 2


def test_delayed_sends_have_ids_of_their_own(make_producer: Make, proxy: Standin) -> None:
    with pytest.raises(OptionError, match="idempotency_key='k' of a delayed message"):
        make_producer().send("t", b"x", delay=timedelta(hours=1), idempotency_key="k")
    assert not proxy.calls


# --- delayed by properties, and what goes without a number


@pytest.mark.parametrize("properties", [{"DELAY": "3"}, {"x-delay": "5000"}])
def test_what_its_properties_delay_is_added_once(
    resending_producer: Any, proxy: Standin, properties: dict[str, str]
) -> None:
    proxy.faults["sendSync"].append(AFTER)
    assert resending_producer.send("t", b"x", properties=properties).stored
    results = resending_producer.send_batch([*messages(2), OutgoingMessage("t", b"x", properties=properties)])
    assert all(result.stored for result in results)
    assert numbers(proxy) == [0, 1, 1, 2, 3, 4]
    assert len(proxy.stored) == 5


def test_no_numbers_where_they_are_switched_off(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer(idempotent=False)
    assert producer.send("t", b"x").stored
    assert all(result.stored for result in producer.send_batch(messages(3)))
    proxy.faults["sendSync"].append(AFTER)
    with pytest.raises(UnknownOutcomeError):
        producer.send("t", b"x")
    assert numbers(proxy) == [None] * 5
    assert producer.send("t", b"x", idempotency_key="k").stored
    proxy.faults["sendBatch"].append(AFTER)
    results = producer.send_batch([OutgoingMessage("t", b"x", idempotency_key="l"), *messages(1)])
    assert [result.stored for result in results] == [True, False]
    with pytest.raises(OptionError, match="idempotent=1"):
        Producer(proxy.address, idempotent=1)  # type: ignore[arg-type]


def test_oneway_sends_have_keys_and_no_numbers(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer()
    for _ in range(2):
        producer.send_oneway(OutgoingMessage("t", b"x", idempotency_key="k"))
        producer.send_oneway(OutgoingMessage("t", b"x"))
    proxy.wait(lambda: len(proxy.calls) == 4)
    proxy.wait(lambda: len(proxy.stored) == 3)
    assert numbers(proxy) == [None] * 4


# --- every way that a send ends gives its number back


def refused(resending_producer: Any, proxy: Standin) -> None:
    proxy.faults["sendSync"].append(refuse(11))
    with pytest.raises(InvalidMessageError):
        resending_producer.send("t", b"x")


def out_of_time(resending_producer: Any, proxy: Standin) -> None:
    proxy.faults["sendSync"].extend([refuse(15)] * 1_000)
    with pytest.raises((NotStoredError, UnknownOutcomeError)):  # unknown: its time ends within a try
        resending_producer.send("t", b"x", timeout_ms=200)
    proxy.faults.clear()


def unknown(resending_producer: Any, proxy: Standin) -> None:
    proxy.faults["sendSync"].extend([AFTER, refuse(11)])
    with pytest.raises(UnknownOutcomeError):
        resending_producer.send("t", b"x")


def not_connected(resending_producer: Any, proxy: Standin) -> None:
    proxy.stop()
    with pytest.raises((NotStoredError, UnknownOutcomeError)):
        resending_producer.send("t", b"x", timeout_ms=200)
    proxy.restart()


def not_encoded(resending_producer: Any, proxy: Standin) -> None:
    with pytest.raises(InvalidMessageError):
        resending_producer.send("t", b"")
    with pytest.raises(OptionError):
        resending_producer.send("t", b"x", queue=-1)
    with pytest.raises(RuntimeError, match="the list breaks"):
        resending_producer.send_batch(broken())


def broken() -> Iterator[OutgoingMessage]:
    yield OutgoingMessage("t", b"x")
    raise RuntimeError("the list breaks")


def a_batch_that_fails(resending_producer: Any, proxy: Standin) -> None:
    proxy.faults["sendBatch"].extend([AFTER, *[refuse(12)] * 1_000])
    results = resending_producer.send_batch([*messages(3), OutgoingMessage("t", b"")], timeout_ms=500)
    assert [result.stored for result in results] == [False, True, True, False]
    proxy.faults.clear()


@pytest.mark.parametrize(
    "ends", [refused, out_of_time, unknown, not_connected, not_encoded, a_batch_that_fails]
)
def test_every_end_gives_the_numbers_back(
    resending_producer: Any, proxy: Standin, ends: Callable[..., None]
) -> None:
    ends(resending_producer, proxy)
    assert resending_producer.send("t", b"last").stored
    last = sent(proxy)[-1]
    assert last.answeredBelow == last.sequence > 0


def test_what_is_under_way_is_not_answered(proxy: Standin) -> None:
    proxy.recognises = True
    proxy.faults["sendSync"].append(HOLD)
    with Producer(proxy.address, timeout_ms=PATIENCE_MS) as producer:
        sender = threading.Thread(target=lambda: producer.send("t", b"held"))
        sender.start()
        proxy.wait(lambda: len(proxy.calls) == 1)
        for _ in range(3):
            producer.send("t", b"x")
        proxy.release()
        sender.join(60)
        producer.send("t", b"last")
    assert [(message.sequence, message.answeredBelow) for message in sent(proxy)] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (4, 4),
    ]  # fmt: skip


def test_two_producers_have_two_names(proxy: Standin) -> None:
    for _ in range(2):
        with Producer(proxy.address) as producer:
            producer.send("t", b"x")
    first, second = sent(proxy)
    assert len(first.producerId) == len(second.producerId) == 16
    assert first.producerId != second.producerId
    assert first.sequence == second.sequence == 0


# --- in the background


def test_sends_in_the_background_are_stored_once(proxy: Standin) -> None:
    proxy.recognises = True
    with Producer(proxy.address, async_workers=1, timeout_ms=PATIENCE_MS) as producer:
        assert producer.send_async(messages(1)[0]).result(60).stored
        proxy.faults["sendSync"].append(HOLD)
        futures = [producer.send_async(messages(1)[0])]
        proxy.wait(lambda: len(proxy.calls) == 2)
        proxy.faults["sendBatch"].append(AFTER)
        keyed = OutgoingMessage("t", b"k", idempotency_key="k")
        futures += [producer.send_async(message) for message in [*messages(3), keyed]]
        proxy.release()
        assert [future.result(60).duplicate for future in futures] == [False, True, True, True, True]
    assert len(proxy.stored) == 6
    assert numbers(proxy) == [0, 1, 2, 3, 4, None, 2, 3, 4, None]


def test_a_cancelled_or_rejected_background_send_takes_no_number(proxy: Standin) -> None:
    proxy.faults["sendSync"].append(HOLD)
    with Producer(proxy.address, in_flight_max=3, async_workers=1, timeout_ms=PATIENCE_MS) as producer:
        first = producer.send_async(messages(1)[0])
        proxy.wait(lambda: len(proxy.calls) == 1)
        waiting = [producer.send_async(message) for message in messages(2)]
        with pytest.raises(NotStoredError, match="in flight"):
            producer.send_async(messages(1)[0], timeout_ms=50)
        assert all(future.cancel() for future in waiting)
        proxy.release()
        assert first.result(60).stored
        assert producer.flush(PATIENCE_MS)
        producer.send("t", b"last")
    assert [(message.sequence, message.answeredBelow) for message in sent(proxy)] == [(0, 0), (1, 1)]
