"""TestBroker: what a test does with it that no server can do, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from ddmq_client import (
    ClientError,
    Consumer,
    JsonSerializer,
    Message,
    OptionError,
    OutgoingMessage,
    Producer,
    SendError,
)
from ddmq_client.aio import AsyncProducer
from ddmq_client.testing import BusyBrokerError, TestBroker
from tests.support.waits import until

HOUR = timedelta(hours=1)


def test_time_stands_still_until_it_is_advanced() -> None:
    begin = datetime(2026, 3, 1, 12, tzinfo=UTC)
    with TestBroker(now=begin) as broker:
        assert abs(broker.clock.now() - begin) < timedelta(seconds=1)
        before = broker.clock.now()
        broker.clock.advance(HOUR)
        assert broker.clock.now() - before == HOUR


def test_a_time_that_is_no_timedelta_is_named() -> None:
    with TestBroker() as broker:
        for by, text in (
            (60, "by=60 is int; allowed: a timedelta"),
            (-HOUR, "by=.*; allowed: at least 0 ms"),
        ):
            with pytest.raises(OptionError, match=text):
                broker.clock.advance(by)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["clock.advance", "run_until_idle", "join"])
def test_a_handler_cannot_wait_for_its_own_return(method: str) -> None:
    errors: list[ClientError] = []

    def handle(message: Message) -> None:
        calls = {
            "clock.advance": lambda: broker.clock.advance(HOUR),
            "run_until_idle": lambda: broker.run_until_idle(),
            "join": lambda: broker.join("orders"),
        }
        with pytest.raises(
            ClientError, match=f"{method} is called in a handler, .* allowed: in the"
        ) as raised:
            calls[method]()
        errors.append(raised.value)

    with TestBroker() as broker:
        broker.consumer("billing", "orders", handle)
        broker.consumer("mailer", "orders", batch_handler=lambda messages: handle(messages[0]))
        broker.producer().send("orders", b"one")
        broker.run_until_idle()
        assert len(errors) == 2
        broker.clock.advance(HOUR)


@pytest.mark.parametrize("method", ["advance", "run_until_idle", "join"])
def test_an_asyncio_handler_cannot_wait_for_its_own_return(method: str) -> None:
    errors: list[ClientError] = []
    later: list[asyncio.Task[None]] = []

    async def wait(broker: TestBroker) -> None:
        arguments = {"advance": (HOUR,), "run_until_idle": (), "join": ("orders",)}
        await getattr(broker.aio, method)(*arguments[method])

    async def wait_after(returned: asyncio.Event, broker: TestBroker) -> None:
        await returned.wait()
        await wait(broker)

    async def scenario(broker: TestBroker) -> None:
        returned = asyncio.Event()

        async def handle(message: Message) -> None:
            later.append(asyncio.create_task(wait_after(returned, broker)))
            with pytest.raises(ClientError, match=f"{method} is called in a handler") as raised:
                await wait(broker)
            errors.append(raised.value)

        async with broker.aio.producer() as producer:
            consumer = await broker.aio.consumer("billing", "orders", handle)
            await producer.send("orders", b"one")
            await broker.aio.run_until_idle()
            returned.set()
            await asyncio.gather(*later)
            await consumer.stop()

    with TestBroker() as broker:
        asyncio.run(scenario(broker))
    assert len(errors) == len(later) == 1


def test_a_handler_may_advance_the_clock_of_another_broker() -> None:
    times: list[datetime] = []

    def handle(message: Message) -> None:
        other.clock.advance(HOUR)
        times.append(other.clock.now())

    with TestBroker() as broker, TestBroker() as other:
        begin = other.clock.now()
        broker.consumer("billing", "orders", handle)
        broker.producer().send("orders", b"one")
        broker.run_until_idle()
    assert [time - begin for time in times] == [HOUR]


def test_a_serializer_gives_values_to_blocking_and_asyncio_handlers() -> None:
    values: list[object] = []

    async def keep(message: Message) -> None:
        values.append(("aio", message.value))

    async def scenario() -> None:
        async with broker.aio.producer(serializer=JsonSerializer()) as producer:
            consumer = await broker.aio.consumer("mail", "orders", keep, serializer=JsonSerializer())
            await producer.send("orders", {"n": 2})
            await broker.aio.run_until_idle()
            await consumer.stop()

    with TestBroker() as broker:
        broker.consumer(
            "billing", "orders", lambda message: values.append(message.value), serializer=JsonSerializer()
        )
        broker.producer(serializer=JsonSerializer()).send("orders", {"n": 1})
        asyncio.run(scenario())
        broker.producer().send("orders", b"{broken")
        broker.run_until_idle()
        assert sorted(map(str, values)) == [
            "('aio', {'n': 1})", "('aio', {'n': 2})", "{'n': 1}", "{'n': 2}",
        ]  # fmt: skip
        (letter,) = broker.dead_letters("billing")
        assert letter.error.startswith("the body cannot be deserialized: Expecting property name")


def test_delays_fire_at_their_times_and_in_their_order() -> None:
    seen: list[tuple[str, timedelta]] = []
    with TestBroker() as broker:
        begin = broker.clock.now()
        producer = broker.producer()
        broker.consumer("mailer", "reminders", lambda m: seen.append((m.text(), broker.clock.now() - begin)))
        for hours in (30, 2, 500):
            producer.send("reminders", str(hours), delay=hours * HOUR)
        assert [delay.body for delay in broker.delayed_messages()] == [b"2", b"30", b"500"]
        broker.clock.advance(29 * HOUR)
        assert [body for body, _ in seen] == ["2"]
        broker.clock.advance(500 * HOUR)
    assert [body for body, _ in seen] == ["2", "30", "500"]
    for body, after in seen:
        assert timedelta(0) <= after - int(body) * HOUR < timedelta(milliseconds=300)


def test_retries_happen_while_time_passes() -> None:
    attempts: list[tuple[int | None, timedelta]] = []
    with TestBroker() as broker:
        begin = broker.clock.now()
        broker.create_group(
            "billing", "orders", retry_intervals_ms=[1_000, 60_000], retry_steps=1
        )  # and then level 3: ten seconds

        def handle(message: Message) -> None:
            attempts.append((message.attempt, broker.clock.now() - begin))
            raise RuntimeError("down")

        broker.consumer("billing", "orders", handle)
        broker.producer().send("orders", b"one")
        broker.run_until_idle()
        assert len(attempts) == 1
        broker.clock.advance(timedelta(seconds=59))
        assert len(attempts) == 2
        broker.join("orders")
        assert broker.group_lag("billing", "orders") == 0
        (letter,) = broker.dead_letters("billing")
    assert [attempt for attempt, _ in attempts[:3]] == [1, 2, 3]
    assert letter.attempts == len(attempts)
    assert letter.error == "RuntimeError: down"


def test_a_handler_that_keeps_failing_leaves_one_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(message: Message) -> None:
        raise RuntimeError(f"down at attempt {message.attempt}")

    with TestBroker() as broker, caplog.at_level(logging.ERROR, logger="ddmq_client.consumer"):
        broker.consumer("billing", "orders", handle)
        broker.producer().send("orders", b"one", key="17")
        broker.join("orders")
        (letter,) = broker.dead_letters("billing")
    records = [record for record in caplog.records if record.name == "ddmq_client.consumer"]
    assert len(records) == letter.attempts > 1
    assert [record.exc_info is not None for record in records] == [True] + [False] * (letter.attempts - 1)
    assert f"attempt={letter.attempts}): RuntimeError: down at attempt {letter.attempts}" in caplog.text


def test_a_path_that_looks_like_the_key_is_rejected() -> None:
    with TestBroker() as broker:
        with pytest.raises(OptionError, match="allowed: KEY for the message key"):
            broker.create_group("billing", "orders", order_key="key")
        broker.create_group("billing", "orders", order_key="$.key")


def test_join_says_what_cannot_be_finished() -> None:
    with TestBroker() as broker:
        broker.create_group("billing", "orders", order_key="KEY")
        broker.consumer("billing", "orders", lambda message: None)
        broker.park("billing", "a")
        broker.producer().send("orders", b"one", key="a")
        with pytest.raises(BusyBrokerError, match="1 messages of group billing"):
            broker.join("orders")
        (key,) = broker.blocked_keys("billing")
        assert (key.key, key.state, key.waiting) == ('"a"', "parked", 0)


def test_join_names_the_keys_that_parked_themselves() -> None:
    def handle(message: Message) -> None:
        raise KeyError(message.key)

    with TestBroker() as broker:
        broker.create_group(
            "billing", "orders", order_key="KEY", on_dead_letter="park", ordered_deliveries_max=2
        )
        broker.consumer("billing", "orders", handle)
        broker.producer().send("orders", b"one", key="17")
        with pytest.raises(
            BusyBrokerError,
            match=r"""key "17" of group billing is parked \(KeyError: '17'\); allowed: replay""",
        ):
            broker.join("orders")


def test_a_handler_that_hangs_is_named() -> None:
    going = threading.Event()
    with TestBroker() as broker:
        broker.consumer("billing", "orders", lambda message: going.wait())
        broker.producer().send("orders", b"one")
        with pytest.raises(BusyBrokerError, match="1 messages of topic orders of group billing are"):
            broker.run_until_idle(timeout_s=0.2)
        going.set()
        broker.run_until_idle()


def test_a_lease_ends_while_time_passes() -> None:
    with TestBroker() as broker:
        broker.create_group("billing", "orders", ack_timeout_ms=30_000)
        broker.producer().send("orders", b"one")
        consumer = broker.consumer("billing", "orders")
        (first,) = consumer.pull(timeout_ms=10_000)
        broker.clock.advance(timedelta(seconds=31))
        (second,) = consumer.pull(timeout_ms=10_000)
        assert (first.attempt, second.attempt, second.body) == (1, 2, b"one")
        assert second.ack()


def test_ordinary_clients_use_its_addresses() -> None:
    seen = []
    with TestBroker() as broker:
        with (
            Producer(broker.producers) as producer,
            Consumer(broker.consumers, "billing", "orders", handler=seen.append, start="first"),
        ):
            producer.send_async(OutgoingMessage("orders", "one")).result(10)
            until(lambda: seen, "it is handled")
        broker.run_until_idle()
        assert broker.messages("orders")[0].body == b"one"


def test_asyncio_clients_work_with_it() -> None:
    async def scenario() -> None:
        seen: list[str] = []
        failing = ["once"]

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            if failing:
                raise RuntimeError(failing.pop())
            async with message.replies() as replies:
                replies.send("bills", b"bill")
            seen.append(message.text())

        broker.create_group("billing", "orders", retry_intervals_ms=[1_000])
        async with broker.aio.producer() as producer:
            assert isinstance(producer, AsyncProducer)
            consumer = await broker.aio.consumer("billing", "orders", handle)
            await producer.send("orders", b"one", key="k")
            await broker.aio.run_until_idle()
            assert seen == []
            await broker.aio.join("orders")
            assert seen == ["one"]
            await producer.send("orders", b"later", delay=HOUR)
            await broker.aio.advance(HOUR)
            assert seen == ["one", "later"]
            assert await consumer.stop()

    with TestBroker() as broker:
        asyncio.run(scenario())
        assert [message.body for message in broker.messages("bills")] == [b"bill", b"bill"]


def test_two_brokers_know_nothing_of_each_other() -> None:
    with TestBroker() as one, TestBroker() as other:
        one.producer().send("orders", b"one")
        other.producer().send("orders", b"two")
        assert [m.body for m in one.messages("orders")] == [b"one"]
        assert [m.body for m in other.messages("orders")] == [b"two"]


def test_a_closed_broker_answers_nobody() -> None:
    broker = TestBroker()
    with Producer(broker.producers, timeout_ms=200) as producer:
        producer.send("orders", b"one")
        broker.close()
        broker.close()
        with pytest.raises(SendError):
            producer.send("orders", b"two")


def test_a_refused_consumer_says_why() -> None:
    with TestBroker() as broker:
        broker.create_group("billing", "orders", tags="red")
        with pytest.raises(ClientError, match="blue"):
            broker.consumer("billing", "orders", lambda message: None, tags="blue")


def test_a_consumers_arguments_may_be_named_and_have_the_order_of_the_class() -> None:
    with TestBroker() as broker:
        seen: list[Message] = []
        broker.consumer("billing", "orders", seen.append)
        broker.consumer(topics=["orders"], group="mail", handler=seen.append)
        broker.producer().send("orders", b"one")
        broker.run_until_idle()
        assert sorted(message.group for message in seen) == ["billing", "mail"]


def test_exchanged_names_of_group_and_topic_are_rejected_as_soon_as_they_show() -> None:
    def ignore(message: Message) -> None: ...

    exchanged = r"consumer\(group='orders', topics='billing'\): 'orders' is a topic, and 'billing' is none"
    with TestBroker() as broker:
        broker.consumer("orders", "billing", ignore)
        broker.run_until_idle()
        broker.producer().send("orders", b"one")
        with pytest.raises(OptionError, match=exchanged):
            broker.run_until_idle()
        with pytest.raises(OptionError, match=exchanged):
            asyncio.run(broker.aio.run_until_idle())
        broker.create_topic("billing")
        broker.run_until_idle()
    with TestBroker() as broker:
        broker.create_topic("orders")
        with pytest.raises(OptionError, match=exchanged):
            broker.consumer("orders", "billing", ignore)
    with TestBroker() as broker:
        broker.create_group("billing", "orders")
        with pytest.raises(
            OptionError, match=r"'billing' is a group, and no topic; .*create_topic\('billing'\)"
        ):
            asyncio.run(broker.aio.consumer("orders", "billing", ignore))


def test_a_group_that_does_not_exist_is_rejected_where_it_would_look_empty() -> None:
    with TestBroker() as broker:
        broker.create_group("billing", "orders")
        broker.consumer("mail", "orders")
        for look in (
            broker.dead_letters,
            broker.blocked_keys,
            lambda group: broker.group_lag(group, "orders"),
        ):
            with pytest.raises(OptionError, match=r"group 'biling' does not exist; groups: billing, mail"):
                look("biling")
            assert not look("billing")
            assert not look("mail")


def test_a_topic_that_does_not_exist_is_rejected_where_it_would_look_finished() -> None:
    with TestBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing", "bills")
        broker.consumer("mail", "mails", lambda message: None)
        rejected = (
            r"topic 'ordesr' does not exist; topics: bills, mails, orders\. .* create_topic\('ordesr'\) first"
        )
        for call in (broker.join, broker.messages, lambda topic: asyncio.run(broker.aio.join(topic))):
            with pytest.raises(OptionError, match=rejected):
                call("ordesr")
            for topic in ("orders", "bills", "mails", "%DLQ%billing"):
                assert not call(topic)


def test_a_topic_that_a_send_is_about_to_create_can_be_joined() -> None:
    with TestBroker() as broker:
        broker.producer().send_async(OutgoingMessage("orders", b"one"))
        broker.join("orders")
        assert len(broker.messages("orders")) == 1


def test_settings_that_there_are_not_are_refused() -> None:
    with TestBroker() as broker:
        with pytest.raises(OptionError, match="actions"):
            broker.create_group("billing", "orders", actions=["AsyncHttp"])
        with pytest.raises(OptionError, match="order_kye"):
            broker.create_group("billing", "orders", order_kye="KEY")
        with pytest.raises(OptionError, match="retry_steps and ordered_deliveries_max say how often"):
            broker.create_group("billing", "orders", max_retries=3)


LOADED = """
import sys
from ddmq_client.testing import TestBroker
with TestBroker() as broker:
    seen = []
    broker.consumer("billing", "orders", seen.append)
    broker.producer().send("orders", b"one")
    broker.run_until_idle()
    assert len(seen) == 1
unwanted = ["gevent", "greenlet", "rocksdict", "cel_expr_python", "click", "rich", "confluent_kafka"]
assert [name for name in unwanted if name in sys.modules] == []
"""


@pytest.mark.slow
def test_it_loads_neither_gevent_nor_an_engine_on_disk() -> None:
    subprocess.run([sys.executable, "-c", LOADED], check=True, timeout=300)


GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent
from datetime import timedelta
from ddmq_client.testing import TestBroker
with TestBroker() as broker:
    seen = []
    broker.consumer("billing", "orders", lambda message: (gevent.sleep(0.001), seen.append(message.text())))
    producer = broker.producer()
    gevent.joinall([gevent.spawn(producer.send, "orders", str(n)) for n in range(20)], raise_error=True)
    producer.send("orders", b"later", delay=timedelta(hours=1))
    broker.run_until_idle()
    assert len(seen) == 20
    broker.clock.advance(timedelta(hours=1))
    assert seen[-1] == "later"
"""


@pytest.mark.slow
def test_it_works_under_gevents_monkey_patching() -> None:
    subprocess.run([sys.executable, "-c", GEVENT], check=True, timeout=300)


def test_a_client_that_logs_in_is_accepted_as_by_a_server_without_rights() -> None:
    with TestBroker() as broker:
        with Producer(broker.producers, token="mine") as producer:
            producer.send("orders", b"one espresso")
        with Consumer(broker.consumers, "billing", "orders", start="first", token="mine") as consumer:
            assert [message.body for message in consumer.pull()] == [b"one espresso"]
