"""The outbox and its relay: what is committed is sent, in order and once, on every kind of database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddmq_client import InvalidMessageError, NoSuchTopicError, Producer, SendError, SendResult
from ddmq_client.core.sending import result_of
from ddmq_client.sql import OutboxRelay, OutboxTable
from ddmq_client.sql.statements import execute, open_transaction
from tests.service.client.standin import AFTER, HOLD, Standin, refuse
from tests.support.waits import until

Connect = Callable[[], Any]
PATIENCE_MS = 60_000
pytestmark = pytest.mark.usefixtures("library_log")


@pytest.fixture
def outbox(connect: Connect) -> OutboxTable:
    table = OutboxTable()
    with open_transaction(connect) as database:
        table.create(database)
        table.create(database)
    return table


@pytest.fixture
def producer(proxy: Standin) -> Iterator[Producer]:
    with Producer(proxy.address, timeout_ms=PATIENCE_MS) as client_producer:
        yield client_producer


@pytest.fixture
def relay(connect: Connect, outbox: OutboxTable, producer: Producer) -> OutboxRelay:
    return OutboxRelay(connect, outbox, producer, poll_ms=10)


def put(connect: Connect, outbox: OutboxTable, *bodies: str, **fields: Any) -> list[str]:
    with open_transaction(connect) as database:
        return [outbox.put(database, "orders", body, **fields) for body in bodies]


def rows(connect: Connect) -> int:
    with open_transaction(connect) as database:
        return int(execute(database, "SELECT COUNT(*) FROM ddmq_outbox").rows[0][0])


def bodies(proxy: Standin) -> list[str]:
    return [message.body.decode() for message in proxy.stored]


def test_what_is_committed_is_sent(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin
) -> None:
    with open_transaction(connect) as database:
        name = outbox.put(
            database, "orders", b"\x00\xff", key="k", tags="t", properties={"p": "ü"}, queue=3, level=2
        )
    assert relay.send_waiting() == 1
    (message,) = proxy.stored
    assert (message.topic, message.body, message.key, message.tags) == ("orders", b"\x00\xff", "k", "t")
    assert message.properties == {"p": "ü", "DELAY": "2", "outbox-id": name}
    assert message.idempotencyKey == name
    assert message.partitionId == 3
    assert rows(connect) == 0
    assert relay.send_waiting() == 0


def test_what_is_rolled_back_never_was(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin
) -> None:
    with pytest.raises(ZeroDivisionError), open_transaction(connect) as database:
        broken(outbox.put(database, "orders", "x"))
    assert relay.send_waiting() == 0
    assert proxy.stored == []


def broken(name: str) -> None:
    assert name
    raise ZeroDivisionError


def test_messages_of_one_key_keep_their_order(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin
) -> None:
    """Also when an earlier one has to be sent again, which in one batch would come behind the later ones."""
    for number in range(6):
        for key in ("a", "b", None):
            put(connect, outbox, f"{key}{number}", key=key)
    proxy.faults["sendBatch"].extend([refuse(15), AFTER, refuse(15)])
    assert relay.send_waiting() == 18
    for key in ("a", "b", None):
        of_key = [body for body in bodies(proxy) if body.startswith(str(key))]
        assert of_key == [f"{key}{number}" for number in range(6)]
    by_key = {message.key: (message.partitionId, message.hashId) for message in proxy.stored}
    assert len(set(by_key.values())) == 3, "a key decides on the queue, no key leaves it open"
    assert by_key[None] == (-2, 0)


def test_what_a_dead_relay_has_sent_is_recognised(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, producer: Producer, proxy: Standin
) -> None:
    """As if it had died between the answer and the deletion of the rows."""
    put(connect, outbox, "one", "two", "three", key="k")

    class Forgetful(OutboxTable):
        def sent(self, database: Any, rows: Any) -> None:
            raise SystemExit

    with pytest.raises(SystemExit):
        OutboxRelay(connect, Forgetful(), producer).send_waiting()
    assert bodies(proxy) == ["one"]
    assert rows(connect) == 3
    assert relay.send_waiting() == 3
    assert bodies(proxy) == ["one", "two", "three"]
    assert relay.counts().known == 1


def test_two_relays_send_in_order_and_once(
    connect: Connect, outbox: OutboxTable, producer: Producer, proxy: Standin
) -> None:
    put(connect, outbox, *map(str, range(20)), key="k")
    relays = [OutboxRelay(connect, outbox, producer, poll_ms=10) for _ in range(2)]
    for one in relays:
        one.start()
    until(lambda: rows(connect) == 0)
    assert all(one.stop(60) for one in relays)
    assert bodies(proxy) == list(map(str, range(20)))


def test_what_is_rejected_for_good_stays_with_its_reason(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    names = put(connect, outbox, "one", "two", key="k")
    proxy.faults["sendSync"].append(refuse(13))
    assert relay.send_waiting() == 1
    assert bodies(proxy) == ["two"], "what comes behind it is not held up"
    assert (relay.counts().sent, relay.counts().refused) == (1, 1)
    assert f"outbox message {names[0]} to orders is refused" in caplog.text
    with open_transaction(connect) as database:
        ((name, topic, reason),) = outbox.refused(database)
        assert (name, topic) == (names[0], "orders")
        assert "code 13" in reason
        assert not outbox.send_again(database, names[1])
        assert outbox.send_again(database, name)
        assert not outbox.drop(database, name), "it is not refused any more"
    assert relay.send_waiting() == 1
    assert bodies(proxy) == ["two", "one"]
    (name,) = put(connect, outbox, "three")
    proxy.faults["sendSync"].append(refuse(11))
    relay.send_waiting()
    with open_transaction(connect) as database:
        assert outbox.drop(database, name)
        assert outbox.refused(database) == []


@pytest.mark.parametrize("fields", ["{", "[]", "{}", '{"properties": 1, "key": null}'])
def test_a_foreign_row_delays_no_other(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin, fields: str
) -> None:
    _, name, _ = put(connect, outbox, "one", "two", "three", key="k")
    with open_transaction(connect) as database:
        execute(
            database, "UPDATE ddmq_outbox SET fields = :fields WHERE name = :name", fields=fields, name=name
        )
    assert relay.send_waiting() == 2
    assert bodies(proxy) == ["one", "three"]
    with open_transaction(connect) as database:
        ((refused, _, reason),) = outbox.refused(database)
        assert refused == name
        assert fields[:200] in reason
        assert outbox.drop(database, name)


def test_it_sends_from_a_thread_until_it_is_stopped(
    connect: Connect, outbox: OutboxTable, producer: Producer, proxy: Standin
) -> None:
    with OutboxRelay(connect, outbox, producer, poll_ms=600_000) as relay:
        put(connect, outbox, "one")
        until(lambda: relay.wake() or rows(connect) == 0)
    assert bodies(proxy) == ["one"]
    put(connect, outbox, "two")
    assert bodies(proxy) == ["one"]
    assert rows(connect) == 1


def test_a_closed_topic_waits_and_delays_no_other(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also where it has more rows than are read at a time."""
    monkeypatch.setattr("ddmq_client.sql.relay.READ_MAX", 3)
    proxy.closed.add("orders")
    put(connect, outbox, *map(str, range(7)), key="k")
    with open_transaction(connect) as database:
        outbox.put(database, "other", "a", key="k")
        outbox.put(database, "other", "b", key="k")
    assert relay.send_waiting() == 2
    assert bodies(proxy) == ["a", "b"]
    assert (relay.counts().refused, rows(connect)) == (0, 7)
    proxy.closed.clear()
    put(connect, outbox, "7", key="k")
    assert relay.send_waiting() == 8
    assert bodies(proxy)[2:] == [str(number) for number in range(8)]


def test_a_closed_topic_with_many_keys_delays_no_other(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """More than one look goes through: the next one goes on where it ended."""
    monkeypatch.setattr("ddmq_client.sql.relay.READ_MAX", 3)
    monkeypatch.setattr("ddmq_client.sql.relay.READS_MAX", 2)
    proxy.closed.add("orders")
    for number in range(20):
        put(connect, outbox, str(number), key=str(number))
    with open_transaction(connect) as database:
        outbox.put(database, "other", "a", key="k")
    assert sum(relay.send_waiting() for _ in range(8)) == 1
    assert bodies(proxy) == ["a"]
    proxy.closed.clear()
    assert sum(relay.send_waiting() for _ in range(8)) == 20
    assert bodies(proxy)[1:] == [str(number) for number in range(20)]


def test_nothing_is_read_past_what_is_before_it_in_its_chain(connect: Connect, outbox: OutboxTable) -> None:
    """It may have come there later: who commits first need not have the lower row."""
    put(connect, outbox, "0", "1", key="k")
    put(connect, outbox, "2", key="l")
    put(connect, outbox, "3", key="k")
    put(connect, outbox, "4", key="m")
    with open_transaction(connect) as database:
        first = outbox.waiting(database, 10, 1_000)
        assert [row.message.body for row in first] == [b"0", b"1", b"2", b"3", b"4"]
        behind = outbox.waiting(database, 10, 1_000, first[1].row)
        assert [row.message.body for row in behind] == [b"2", b"4"]
        outbox.sent(database, [first[0].row])
        outbox.refuse(database, first[1].row, "too large")
        behind = outbox.waiting(database, 10, 1_000, first[1].row)
        assert [row.message.body for row in behind] == [b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "error",
    [
        InvalidMessageError("FAILED: topic orders is not writable", 11),
        NoSuchTopicError("FAILED: topic orders has no queue 5; it has 0 to 3", 14),
    ],
)
def test_a_rejection_for_a_topic_that_has_just_changed_is_retried(
    connect: Connect, outbox: OutboxTable, producer: Producer, proxy: Standin, error: SendError
) -> None:
    """The topic was closed, or made anew with fewer queues, while the message was on its way."""
    put(connect, outbox, "one", "two", key="k")
    put(connect, outbox, "other", key="l")

    class Early(Producer):
        def send_batch(self, messages: Any, *, timeout_ms: int | None = None) -> list[SendResult]:
            return [result_of(error) if each.key == "k" else recognise(each) for each in messages]

    def recognise(message: Any) -> SendResult:
        return producer.send_batch([message])[0]

    with Early(proxy.address) as early:
        relay = OutboxRelay(connect, outbox, early)
        assert relay.send_waiting() == 1
        assert (relay.counts().refused, bodies(proxy)) == (0, ["other"])
    assert OutboxRelay(connect, outbox, producer).send_waiting() == 2
    assert bodies(proxy) == ["other", "one", "two"]


def test_a_relay_resumes_when_proxies_and_databases_are_back(
    connect: Connect, outbox: OutboxTable, proxy: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([RuntimeError("no database")])

    def connects() -> Any:
        for failure in failures:
            raise failure
        return connect()

    proxy.stop()
    put(connect, outbox, "one", "two", key="k")
    with (
        Producer(proxy.address, timeout_ms=200) as producer,
        OutboxRelay(connects, outbox, producer, poll_ms=10) as relay,
    ):
        until(lambda: relay.counts().failed)
        proxy.restart()
        until(lambda: rows(connect) == 0)
    assert bodies(proxy) == ["one", "two"]
    assert "no database" in caplog.text


def test_an_engine_without_keys_needs_once_false(
    connect: Connect, outbox: OutboxTable, producer: Producer, proxy: Standin,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    proxy.takes_keys = False
    put(connect, outbox, "one")
    with OutboxRelay(connect, outbox, producer, poll_ms=10):
        until(lambda: "allowed there: once=False" in caplog.text)
    with OutboxRelay(connect, outbox, producer, poll_ms=10, once=False):
        until(lambda: rows(connect) == 0)
    assert bodies(proxy) == ["one"]


def test_stopping_ends_between_two_messages(
    connect: Connect, outbox: OutboxTable, relay: OutboxRelay, proxy: Standin
) -> None:
    put(connect, outbox, "one", "two", key="k")
    proxy.faults["sendSync"].append(HOLD)
    relay.start()
    proxy.wait(lambda: proxy.calls)
    assert not relay.stop(0.0)
    proxy.release()
    assert relay.stop(60)
    assert bodies(proxy) == ["one"]
    assert rows(connect) == 1
    with relay:
        until(lambda: rows(connect) == 0)
    assert bodies(proxy) == ["one", "two"]
    assert not [thread for thread in threading.enumerate() if thread.name == "ddmq-outbox-relay"]


def test_bodies_are_read_up_to_a_bound(connect: Connect, outbox: OutboxTable) -> None:
    put(connect, outbox, *["x" * 100] * 10)
    with open_transaction(connect) as database:
        assert len(outbox.waiting(database, 4, 1_000)) == 4
        assert len(outbox.waiting(database, 10, 250)) == 3
        assert len(outbox.waiting(database, 10, 1)) == 1
