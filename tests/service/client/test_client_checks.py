"""The producer's check: what it is asked, what its answer becomes, what its failures do; both kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ddmq_client import CheckCounts, Decision, OptionError, UndecidedTransaction, UnknownEndError
from ddmq_client.aio import AsyncProducer
from tests.service.client.either import KINDS, PATIENCE_MS, Going, Make, bank, going
from tests.service.client.standin import AFTER, FAULT, GARBAGE, Fault, Standin, refuse
from tests.service.client.standin_transactions import COMMIT, COMMITTED, NOT_KNOWN_YET, ROLLBACK, ROLLED_BACK
from tests.support.waits import loop_until, until

pytestmark = pytest.mark.usefixtures("library_log")


@pytest.fixture(params=KINDS)
def make_producer(request: pytest.FixtureRequest, proxy: Standin) -> Iterator[Make]:
    """Makes producers of either kind, which are entered."""
    with bank(request.param, proxy.address, entered=True) as make:
        yield make


class ScriptedCheck:
    """A check that says what it is told to, and keeps what it was asked."""

    def __init__(self, *decisions: object) -> None:
        self.transactions: list[UndecidedTransaction] = []
        self._decisions = list(decisions)

    def __call__(self, transaction: UndecidedTransaction) -> object:
        self.transactions.append(transaction)
        decision = self._decisions.pop(0)
        if isinstance(decision, Exception):
            raise decision
        return decision


def left_open(producer: Going, **options: Any) -> str:
    """A transaction that nobody ends."""
    with producer.transaction(**options) as tx:
        tx.send("orders", b"x", key="k", tags="t", properties={"p": "v"})
        tx.undecided()
    return str(tx.id)


def polls(proxy: Standin) -> list[Any]:
    return [args.request for method, args in proxy.calls if method == "pollTransactionChecks"]


def test_a_check_is_called_for_each_undecided_transaction(make_producer: Make, proxy: Standin) -> None:
    check = ScriptedCheck(Decision.COMMITTED)
    producer = make_producer(check=check)
    name = left_open(producer, reference="order-17")
    proxy.offer(name, check=2)
    proxy.wait(lambda: proxy.outcomes)
    (open_transaction,) = check.transactions
    assert (open_transaction.id, open_transaction.check, open_transaction.reference) == (name, 2, "order-17")
    assert open_transaction.prepared_at == datetime.fromtimestamp(1_700_000_000.123, UTC)
    (message,) = open_transaction.messages
    assert (message.topic, message.body, message.key, message.tags) == ("orders", b"x", "k", "t")
    assert message.properties == {"p": "v", "transaction-reference": "order-17"}
    (end,) = proxy.ends
    assert (end.transactionId, end.action, end.check, end.throughOffset) == (name, COMMIT, 2, 1)
    assert end.producerGroup == "bank"
    assert [message.body for message in proxy.stored] == [b"x"]
    request = polls(proxy)[0]
    assert (request.producerGroup, request.clientId) == ("bank", "me")
    assert request.countMax == 16
    assert request.timeout == 10_000


def test_every_decision_is_reported_and_counted(
    make_producer: Make, proxy: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    check = ScriptedCheck(
        Decision.ROLLED_BACK, Decision.NOT_KNOWN_YET, ZeroDivisionError("no database"), None, True,
        Decision.COMMITTED,
    )  # fmt: skip
    producer = make_producer(check=check)
    names = [left_open(producer) for _ in range(6)]
    for name in names:
        proxy.offer(name)
    proxy.wait(lambda: len(proxy.ends) == 6)
    assert [end.action for end in proxy.ends] == [ROLLBACK, *[NOT_KNOWN_YET] * 4, COMMIT]
    assert proxy.outcomes == {names[0]: ROLLED_BACK, names[5]: COMMITTED}
    until(lambda: producer.check_counts() == CheckCounts(committed=1, rolled_back=1, not_known=1, errors=3))
    assert "no database" in caplog.text
    assert "returned None: not known yet" in caplog.text
    assert "returned True: not known yet" in caplog.text


def test_a_check_is_called_for_transactions_of_other_processes(make_producer: Make, proxy: Standin) -> None:
    """Entering the producer is enough: this one sends nothing."""
    make_producer(check=ScriptedCheck(Decision.COMMITTED))
    proxy.half["0" * 32] = []
    proxy.offer("0" * 32)
    proxy.wait(lambda: proxy.outcomes)


def test_a_transaction_may_bring_the_check(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer()
    check = ScriptedCheck(Decision.COMMITTED)
    name = left_open(producer, check=check)
    proxy.offer(name)
    proxy.wait(lambda: proxy.outcomes)
    left_open(producer, check=check)
    with pytest.raises(OptionError, match="allowed: one, which is asked about every transaction"):
        producer.transaction(check=ScriptedCheck())


def test_a_producer_without_a_check_does_not_poll(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer()
    left_open(producer)
    producer.close()
    assert polls(proxy) == []


@pytest.mark.parametrize("fault", [AFTER, GARBAGE, FAULT, refuse(15), refuse(21), refuse(11)])
def test_a_poll_that_fails_is_repeated(
    make_producer: Make, proxy: Standin, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.faults["pollTransactionChecks"].append(fault)
    if fault is AFTER:
        proxy.offer("lost")  # so that there is an answer to lose
    producer = make_producer(check=ScriptedCheck(Decision.COMMITTED))
    name = left_open(producer)
    proxy.wait(lambda: len(polls(proxy)) >= 2)
    proxy.offer(name)
    proxy.wait(lambda: proxy.outcomes)
    assert producer.check_counts().poll_errors == 1
    assert caplog.text.count("the poll for checks of producer group bank failed") == 1


def test_polls_go_to_the_other_proxy_when_one_is_down(
    make_producer: Make, proxy: Standin, other: Standin
) -> None:
    other.half, other.outcomes, other.offered = proxy.half, proxy.outcomes, proxy.offered
    producer = make_producer([proxy.address, other.address], check=ScriptedCheck(*[Decision.COMMITTED] * 2))
    names = [left_open(producer) for _ in range(2)]
    proxy.wait(lambda: polls(proxy) or polls(other))
    first, second = (proxy, other) if polls(proxy) else (other, proxy)
    first.stop()
    second.wait(lambda: polls(second))
    for name in names:
        second.offer(name)
    second.wait(lambda: len(proxy.outcomes) == 2)


def test_a_decision_whose_answer_is_lost_is_sent_once_more(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer(check=ScriptedCheck(Decision.COMMITTED))
    name = left_open(producer)
    proxy.faults["endTransaction"].extend([AFTER, refuse(15)])
    proxy.offer(name)
    until(lambda: producer.check_counts().committed)
    proxy.wait(lambda: len([call for call in proxy.calls if call[0] == "endTransaction"]) == 3)
    assert proxy.outcomes == {name: COMMITTED}
    assert producer.check_counts().unanswered == 0


def test_a_rejected_decision_is_counted(
    make_producer: Make, proxy: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    producer = make_producer(check=ScriptedCheck(Decision.COMMITTED))
    proxy.offer("never there")
    until(lambda: producer.check_counts().unanswered)
    assert "check 1 of transaction never there" in caplog.text


def test_closing_ends_a_poll_that_waits_and_one_that_pauses(make_producer: Make, proxy: Standin) -> None:
    producer = make_producer(check=ScriptedCheck())
    proxy.wait(lambda: polls(proxy))
    producer.close()
    failing = make_producer("127.0.0.1:1", check=ScriptedCheck())
    until(lambda: failing.check_counts().poll_errors)
    failing.close()
    assert not [thread for thread in threading.enumerate() if "checks" in thread.name]


def test_closing_waits_for_a_check_that_runs(proxy: Standin) -> None:
    going_on = threading.Event()
    may_end = threading.Event()

    def check(transaction: UndecidedTransaction) -> Decision:
        going_on.set()
        assert may_end.wait(60)
        return Decision.COMMITTED

    with going(
        "blocking", proxy.address, producer_group="bank", check=check, timeout_ms=PATIENCE_MS
    ) as producer:
        name = left_open(producer)
        proxy.offer(name)
        assert going_on.wait(60)
        closing = threading.Thread(target=producer.close)
        closing.start()
        may_end.set()
        closing.join(60)
    assert proxy.outcomes == {name: COMMITTED}


def test_a_check_may_close_its_producer(proxy: Standin) -> None:
    closed = threading.Event()

    def check(transaction: UndecidedTransaction) -> Decision:
        producer.close()
        closed.set()
        return Decision.COMMITTED

    with going("blocking", proxy.address, producer_group="bank", check=check) as producer:
        proxy.offer(left_open(producer))
        assert closed.wait(60)


def test_interrupted_work_is_left_to_the_check(make_producer: Make, proxy: Standin) -> None:
    """An interruption may come behind the local commit, so nobody here knows."""
    for producer, ends in ((make_producer(), 1), (make_producer(check=ScriptedCheck()), 1)):
        tx = producer.transaction()
        with pytest.raises(KeyboardInterrupt), tx:
            interrupted(tx)
        assert len(proxy.ends) == ends
    assert list(proxy.outcomes.values()) == [ROLLED_BACK], "of the producer without a check"


def test_work_that_may_have_been_done_is_left_to_the_check(make_producer: Make, proxy: Standin) -> None:
    """As DecisionTable says where the row is there already; of another transaction it says nothing here."""
    for producer, own, ends in (
        (make_producer(), True, 1),
        (make_producer(check=ScriptedCheck()), True, 1),
        (make_producer(), False, 2),
    ):
        tx = producer.transaction()
        with pytest.raises(UnknownEndError), tx:
            done_before(tx, tx.id if own else "0" * 32)
        assert len(proxy.ends) == ends


def done_before(tx: Going, transaction_id: str) -> None:
    tx.send("t", b"x")
    raise UnknownEndError("noted as committed already", transaction_id)


def interrupted(tx: Going) -> None:
    tx.send("t", b"x")
    raise KeyboardInterrupt


def test_a_check_of_the_asyncio_producer_may_be_a_coroutine_function(proxy: Standin) -> None:
    async def check(transaction: UndecidedTransaction) -> Decision:
        await asyncio.sleep(0)
        return Decision.COMMITTED

    async def main() -> None:
        async with AsyncProducer(proxy.address, producer_group="bank", check=check) as producer:
            tx = producer.transaction()
            await tx.send("t", b"x")
            proxy.offer(tx.id)
            await loop_until(lambda: producer.check_counts().committed)

    asyncio.run(main())
    assert list(proxy.outcomes.values()) == [COMMITTED]


def test_a_cancelled_task_leaves_its_transaction_to_the_check(proxy: Standin) -> None:
    async def main() -> None:
        async with AsyncProducer(proxy.address, producer_group="bank", check=ScriptedCheck()) as producer:
            reached = asyncio.Event()

            async def work() -> None:
                async with producer.transaction() as tx:
                    await tx.send("t", b"x")
                    reached.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert proxy.half
    assert proxy.ends == []
