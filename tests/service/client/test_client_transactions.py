"""Transactions of both producers against a stand-in: what is stored when, what ends how, who hears of it."""

# ruff: noqa: PT012, SIM117 - an end raises where its block is left, so blocks stand in pytest.raises

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from ddmq_client import (
    ClosedError,
    InvalidMessageError,
    NotCommittedError,
    NotStoredError,
    OptionError,
    OutgoingMessage,
    Producer,
    TransactionError,
    UnknownEndError,
    UnknownOutcomeError,
)
from tests.service.client.either import KINDS, PATIENCE_MS, Going, Make, bank
from tests.service.client.standin import AFTER, BEFORE, FAULT, GARBAGE, HALF, HOLD, Fault, Standin, refuse
from tests.service.client.standin_transactions import COMMIT, COMMITTED, ROLLBACK, ROLLED_BACK

LOST = [AFTER, HALF, BEFORE, GARBAGE, FAULT, refuse(15), refuse(10), refuse(12), refuse(20)]
pytestmark = pytest.mark.usefixtures("library_log")


@pytest.fixture(params=KINDS)
def make_producer(request: pytest.FixtureRequest, proxy: Standin) -> Iterator[Make]:
    """Makes producers of either kind."""
    with bank(request.param, proxy.address, entered=False) as make:
        yield make


@pytest.fixture
def producer(make_producer: Make) -> Going:
    return make_producer()


def bodies(proxy: Standin) -> list[bytes]:
    return [message.body for message in proxy.stored]


def actions(proxy: Standin) -> list[int]:
    return [request.action for request in proxy.ends]


# --- the way it should be


def test_messages_become_visible_when_the_block_is_left(producer: Going, proxy: Standin) -> None:
    with producer.transaction(reference="order-17") as tx:
        first = tx.send("orders", b"one", key="k", tags="t", properties={"p": "v"}, shard_key=5)
        assert first.stored
        assert first.message_id
        assert [message.body for message in proxy.half[tx.id]] == [b"one"], "durable before send returns"
        tx.send("ledger", "two", queue=3, idempotency_key="i", level=2)
        tx.send_message(OutgoingMessage("ledger", b"three"))
        assert bodies(proxy) == []
    assert bodies(proxy) == [b"one", b"two", b"three"]
    one, two, three = proxy.stored
    assert (one.topic, one.key, one.tags, one.partitionId, one.hashId) == ("orders", "k", "t", -1, 5)
    assert one.properties == {"p": "v", "transaction-reference": "order-17"}
    assert (two.topic, two.partitionId, two.idempotencyKey) == ("ledger", 3, "i")
    assert two.properties == {"DELAY": "2", "transaction-reference": "order-17"}
    assert three.properties == {"transaction-reference": "order-17"}
    assert {message.producerGroup for message in proxy.stored} == {"bank"}
    assert [result.offset for result in tx.results] == [0, 1, 2]
    (end,) = proxy.ends
    assert (end.transactionId, end.producerGroup, end.action, end.clientId) == (tx.id, "bank", COMMIT, "me")
    assert (end.throughOffset, end.messages) == (103, 3)
    assert end.check is None
    assert 0 < end.timeout <= PATIENCE_MS


def test_the_id_is_a_uuid_that_says_when_it_began(producer: Going) -> None:
    first, second = (producer.transaction().id for _ in range(2))
    assert UUID(first).version == UUID(second).version == 7
    assert UUID(first).variant == UUID(second).variant
    assert first != second
    assert abs(int(second[:12], 16) - int(first[:12], 16)) < 60_000


def test_each_call_carries_the_client_id_and_the_group(producer: Going, proxy: Standin) -> None:
    with producer.transaction(check_after=timedelta(minutes=5)) as tx:
        tx.send("t", b"x", timeout_ms=1_000)
    method, args = proxy.calls[0]
    request = args.request
    assert method == "sendPrepared"
    assert (request.transactionId, request.producerGroup, request.clientId) == (tx.id, "bank", "me")
    assert request.checkAfterMs == 300_000
    assert 0 < request.timeout <= 1_000


def test_an_exception_rolls_back(producer: Going, proxy: Standin) -> None:
    with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
        tx.send("t", b"x")
        raise ZeroDivisionError
    assert proxy.outcomes == {tx.id: ROLLED_BACK}
    assert bodies(proxy) == []


def test_who_sends_nothing_asks_for_nothing(producer: Going, proxy: Standin) -> None:
    with producer.transaction():
        pass
    with pytest.raises(ZeroDivisionError), producer.transaction():
        raise ZeroDivisionError
    producer.transaction().rollback()
    assert proxy.calls == []


def test_it_may_end_before_its_block_does(producer: Going, proxy: Standin) -> None:
    with producer.transaction() as tx:
        tx.send("t", b"x")
        tx.commit()
        assert bodies(proxy) == [b"x"]
        for call in (lambda: tx.send("t", b"late"), tx.commit, tx.rollback, tx.undecided):
            with pytest.raises(ClosedError, match=f"transaction {tx.id} has ended: committed"):
                call()
    with producer.transaction() as tx:
        tx.send("t", b"y")
        tx.rollback()
    with producer.transaction() as tx:
        tx.send("t", b"z")
        tx.undecided()
    assert actions(proxy) == [COMMIT, ROLLBACK]
    assert tx.id not in proxy.outcomes


def test_many_go_in_one_request(producer: Going, proxy: Standin) -> None:
    messages = [OutgoingMessage("t", f"m{number}", key="k") for number in range(20)]
    keyed = OutgoingMessage("u", b"keyed", idempotency_key="i", properties={"DELAY": "1"})
    proxy.faults["sendPrepared"].extend([refuse(15), AFTER])
    with producer.transaction(reference="r") as tx:
        results = tx.send_batch([*messages, keyed])
        assert all(result.stored and result.message_id for result in results)
        assert tx.send_batch([]) == []
    assert bodies(proxy) == [*(message.body.encode() for message in messages), b"keyed"]
    assert {message.properties["transaction-reference"] for message in proxy.stored} == {"r"}
    assert len([call for call in proxy.calls if call[0] == "sendPrepared"]) == 3
    assert [message.sequence is None for message in proxy.stored] == [False] * 20 + [True]


def test_one_invalid_message_rejects_the_entire_batch(producer: Going, proxy: Standin) -> None:
    many = [OutgoingMessage("t", b"x" * 1_000_000)] * 6
    for invalid in ([OutgoingMessage("t", b"x"), OutgoingMessage("t", b"")], many):
        tx = producer.transaction()
        with pytest.raises(InvalidMessageError):
            tx.send_batch(invalid)
        with pytest.raises(NotCommittedError):
            tx.commit()
    proxy.faults["sendPrepared"].append(refuse(11))
    with pytest.raises(InvalidMessageError):
        producer.transaction().send_batch([OutgoingMessage("t", b"x")] * 3)
    assert proxy.half == {}


# --- sends that fail


@pytest.mark.parametrize(
    ("fault", "error"),
    [(refuse(11), InvalidMessageError), (AFTER, UnknownOutcomeError), (refuse(12), UnknownOutcomeError)],
)
def test_a_send_that_failed_makes_it_rollback_only(
    make_producer: Make, proxy: Standin, fault: Fault, error: type[Exception]
) -> None:
    producer = make_producer(idempotent=False)
    with pytest.raises(NotCommittedError, match="a message of it was not stored for sure"):
        with producer.transaction() as tx:
            tx.send("t", b"x")
            proxy.faults["sendPrepared"].append(fault)
            with pytest.raises(error):
                tx.send("t", b"y")
            with pytest.raises(NotCommittedError):
                tx.send("t", b"z")
    assert proxy.outcomes == {tx.id: ROLLED_BACK}
    assert bodies(proxy) == []


def test_what_may_be_durable_is_rolled_back_though_nothing_was_confirmed(
    make_producer: Make, proxy: Standin
) -> None:
    proxy.faults["sendPrepared"].append(AFTER)
    with pytest.raises(UnknownOutcomeError), make_producer(idempotent=False).transaction() as tx:
        tx.send("t", b"x")
    assert proxy.outcomes == {tx.id: ROLLED_BACK}


def test_what_is_certainly_not_stored_needs_no_end(producer: Going, proxy: Standin) -> None:
    proxy.faults["sendPrepared"].append(refuse(11))
    with pytest.raises(InvalidMessageError), producer.transaction() as tx:
        tx.send("t", b"x")
    with pytest.raises(NotCommittedError, match="a send of it was wrong: level=0"):
        with producer.transaction() as tx:
            with pytest.raises(OptionError):
                tx.send("t", b"x", level=0)
    with pytest.raises(InvalidMessageError), producer.transaction() as tx:
        tx.send("t", b"")
    assert proxy.ends == []


@pytest.mark.parametrize("fault", [refuse(15), refuse(20)])
def test_what_was_rejected_for_now_is_resent(producer: Going, proxy: Standin, fault: Fault) -> None:
    proxy.faults["sendPrepared"].append(fault)
    with producer.transaction() as tx:
        tx.send("t", b"x")
    assert bodies(proxy) == [b"x"]


@pytest.mark.parametrize("fault", [AFTER, BEFORE, HALF, GARBAGE, FAULT, refuse(12)])
@pytest.mark.parametrize("key", [None, "k"])
def test_what_may_be_stored_is_resent(producer: Going, proxy: Standin, fault: Fault, key: str | None) -> None:
    """From the start, other than plain sends: a transaction recognises its messages wherever it is."""
    with producer.transaction() as tx:
        proxy.faults["sendPrepared"].append(fault)
        tx.send("t", b"x", idempotency_key=key)
        tx.send("t", b"y")
    assert bodies(proxy) == [b"x", b"y"]
    for message in proxy.stored:
        assert (message.idempotencyKey is None) == (message.sequence is not None)


def test_transactions_do_not_show_that_plain_resends_are_recognised(producer: Going, proxy: Standin) -> None:
    with producer.transaction() as tx:
        tx.send("t", b"x")
    proxy.faults["sendSync"].append(BEFORE)
    with pytest.raises(UnknownOutcomeError):
        producer.send("t", b"plain")


def test_no_send_may_be_under_way_when_it_is_committed(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer()
    tx = producer.transaction()
    tx.send("t", b"x")
    proxy.faults["sendPrepared"].append(HOLD)
    sending = threading.Thread(target=lambda: tx.send("t", b"y"))
    sending.start()
    proxy.wait(lambda: len(proxy.calls) == 2)
    with pytest.raises(NotCommittedError, match="1 sends of it were under way"):
        tx.commit()
    proxy.release()
    sending.join(60)
    assert actions(proxy) == [ROLLBACK]


# --- due times


def test_properties_state_a_due_time(producer: Going, proxy: Standin) -> None:
    with producer.transaction() as tx:
        tx.send("t", b"x", delay=timedelta(seconds=90), properties={"p": "v"})
        tx.send("t", b"y", cron="0 9 * * 1-5", zone="Asia/Shanghai", times=4, catch_up="all")
        tx.send("t", b"z", properties={"deliver-after": "my own"})
    assert [message.properties for message in proxy.stored] == [
        {"p": "v", "deliver-after": "90000"},
        {
            "deliver-cron": "0 9 * * 1-5",
            "deliver-zone": "Asia/Shanghai",
            "deliver-occurrences": "4",
            "deliver-catch-up": "all",
        },
        {"deliver-after": "my own"},
    ]
    assert [args.request.dueTimes for method, args in proxy.calls if method == "sendPrepared"] == [
        True, True, None,
    ]  # fmt: skip


# --- ends whose answer is lost


@pytest.mark.parametrize("fault", LOST)
def test_an_end_is_resent_until_a_proxy_reports_the_outcome(
    producer: Going, proxy: Standin, fault: Fault
) -> None:
    proxy.faults["endTransaction"].extend([fault, fault])
    with producer.transaction() as tx:
        tx.send("t", b"x")
    assert bodies(proxy) == [b"x"]
    assert len([call for call in proxy.calls if call[0] == "endTransaction"]) == 3


def test_an_end_is_resent_to_the_other_proxy(make_producer: Make, proxy: Standin, other: Standin) -> None:
    other.half, other.outcomes, other.stored = proxy.half, proxy.outcomes, proxy.stored
    producer = make_producer([proxy.address, other.address])
    for standin in (proxy, other):
        standin.faults["endTransaction"].append(AFTER)
    with producer.transaction() as tx:
        tx.send("t", b"x")
    assert bodies(proxy) == [b"x"]
    assert proxy.ends
    assert other.ends
    assert tx.results == (), "the call that committed it had no answer"


def test_a_proxy_that_knows_no_transactions_is_passed_over(
    make_producer: Make, proxy: Standin, other: Standin
) -> None:
    producer = make_producer([proxy.address, other.address])
    other.faults["sendPrepared"].extend([refuse(21)] * 10)
    other.faults["endTransaction"].extend([refuse(21)] * 10)
    for _ in range(3):
        with producer.transaction() as tx:
            tx.send("t", b"x")
    assert len(proxy.stored) == 3


def test_an_end_that_stays_unknown_is_an_error_that_says_so(producer: Going, proxy: Standin) -> None:
    proxy.faults["endTransaction"].extend([BEFORE, *[refuse(15)] * 1_000])
    with pytest.raises(UnknownEndError) as raised:
        with producer.transaction(timeout_ms=400) as tx:
            tx.send("t", b"x", timeout_ms=PATIENCE_MS)
    text = str(raised.value)
    assert f"whether the commit of {'transaction ' + tx.id} took place is unknown" in text
    assert "the check of its producer group will settle it" in text
    assert raised.value.transaction_id == tx.id
    assert bodies(proxy) == []


def test_a_rollback_that_fails_hides_no_exception(
    producer: Going, proxy: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.faults["endTransaction"].extend([refuse(15)] * 1_000)
    with pytest.raises(ZeroDivisionError), producer.transaction(timeout_ms=300) as tx:
        tx.send("t", b"x", timeout_ms=PATIENCE_MS)
        raise ZeroDivisionError
    assert f"whether the rollback of transaction {tx.id} took place is unknown" in caplog.text


def test_a_commit_after_another_outcome_raises(producer: Going, proxy: Standin) -> None:
    for outcome, text in ((2, "was rolled back, by an operator"), (5, "became a dead letter")):
        with pytest.raises(NotCommittedError, match=text):
            with producer.transaction() as tx:
                tx.send("t", b"x")
                proxy.outcomes[tx.id] = outcome
    with pytest.raises(UnknownEndError, match="no longer know"):
        with producer.transaction() as tx:
            tx.send("t", b"x")
            proxy.outcomes[tx.id] = 4
    with pytest.raises(NotCommittedError, match="never had a message"):
        with producer.transaction() as tx:
            tx.send("t", b"x")
            proxy.half.clear()
    tx = producer.transaction()
    tx.send("t", b"x")
    proxy.outcomes[tx.id] = COMMITTED
    with pytest.raises(TransactionError, match="was committed before it was rolled back here"):
        tx.rollback()


def test_what_an_operator_has_committed_is_committed(producer: Going, proxy: Standin) -> None:
    with producer.transaction() as tx:
        tx.send("t", b"x")
        proxy.outcomes[tx.id] = COMMITTED
    with producer.transaction() as tx:
        tx.send("t", b"x")
        proxy.half.clear()
        tx.rollback()


# --- arguments


def test_a_transaction_needs_a_producer_group(make_producer: Make) -> None:
    with pytest.raises(OptionError, match="producer_group"):
        make_producer(producer_group=None).transaction()
    with pytest.raises(OptionError, match="producer_group"):
        Producer("127.0.0.1:1", check=print)


@pytest.mark.parametrize(
    "options",
    [
        {"reference": ""},
        {"reference": "x" * 256},
        {"reference": 5},
        {"timeout_ms": 0},
        {"check_after": timedelta(0)},
        {"check_after": 60},
        {"check": "no function"},
    ],
)
def test_options_are_checked(producer: Going, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        producer.transaction(**options)


def test_a_closed_producer_begins_nothing(producer: Going) -> None:
    tx = producer.transaction()
    tx.send("t", b"x")
    producer.close()
    with pytest.raises(ClosedError):
        producer.transaction()
    with pytest.raises(NotStoredError):
        tx.send("t", b"y")
