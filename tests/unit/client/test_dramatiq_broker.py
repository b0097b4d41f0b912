"""DdmqBroker and its consumers, with a producer and a client that are played."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.middleware import Pipelines, Retries

from ddmq_client.delays import DelayResult
from ddmq_client.dramatiq import DdmqBroker
from ddmq_client.dramatiq import broker as broker_module
from ddmq_client.dramatiq.consuming import DdmqConsumer
from ddmq_client.dramatiq.leases import LeaseKeeper
from ddmq_client.errors import NotStoredError, OptionError, PullError, UnknownOutcomeError
from ddmq_client.outgoing import SendResult
from ddmq_client.received import DeliveryContext, Message, Origin, Outcome


class PlayedProducer:
    """Records what is sent; `error` is raised instead."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.sent: list[tuple[str, dramatiq.Message[Any], dict[str, Any]]] = []
        self.cancelled: list[tuple[str, str | None]] = []
        self.error: Exception | None = None
        self.is_closed = False

    def send(self, topic: str, body: bytes, **options: Any) -> SendResult:
        if self.error is not None:
            raise self.error
        arguments = {name: value for name, value in options.items() if value is not None}
        self.sent.append((topic, dramatiq.Message.decode(body), arguments))
        is_delayed = bool(arguments.keys() & {"delay", "cron"})
        result = DelayResult() if is_delayed else SendResult()
        result.delay_id = "17-5-0" if is_delayed else None
        return result

    def cancel(self, delay_id: str, *, topic: str | None) -> str:
        self.cancelled.append((delay_id, topic))
        return "cancelled"

    def close(self) -> None:
        self.is_closed = True


class PlayedClient:
    """Gives out what it holds, and takes what becomes of it."""

    inline = True

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies
        self.pulls: list[int] = []
        self.settled: list[tuple[int, Outcome, int | None]] = []
        self.error: Exception | None = None
        self.is_stopped = False
        self.offset = 0

    def pull(self, count: int, timeout_ms: int) -> list[Message]:
        if self.error is not None:
            raise self.error
        self.pulls.append(count)
        batch, self.bodies = self.bodies[:count], self.bodies[count:]
        return [self._deliver(body) for body in batch]

    def _deliver(self, body: bytes) -> Message:
        message = Message()
        message.body, message.offset, message.lease_id = body, self.offset, 1
        origin = Origin("g", "t", "0")
        message.delivery = DeliveryContext(origin, time.monotonic(), None, self, 30.0, True)
        self.offset += 1
        return message

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str) -> bool:
        self.settled.append((message.offset, outcome, delay_ms))
        return True

    def hand_back(self, message: Message) -> bool:
        self.settled.append((message.offset, Outcome.HANDED_BACK, None))
        return True

    def extend(self, message: Message) -> bool:
        return True

    def reply(self, message: Message, messages: Any, timeout_ms: int | None) -> Any:
        raise AssertionError("nothing follows")

    def stop(self, timeout_ms: int) -> bool:
        self.is_stopped = True
        return True


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> PlayedProducer:
    played = PlayedProducer()
    monkeypatch.setattr(broker_module, "Producer", lambda *arguments, **options: played)
    return played


@pytest.fixture
def broker(producer: PlayedProducer) -> Iterator[DdmqBroker]:
    created = DdmqBroker(middleware=[Pipelines(), Retries(min_backoff=100)])
    dramatiq.set_broker(created)
    yield created
    created.close()


def encoded(count: int) -> list[bytes]:
    return [
        dramatiq.Message(queue_name="default", actor_name="add", args=(n,), kwargs={}, options={}).encode()
        for n in range(count)
    ]


def consumer_of(client: PlayedClient, prefetch: int) -> DdmqConsumer:
    leases = LeaseKeeper(60.0)
    return DdmqConsumer("default", client, PlayedProducer, leases, prefetch, 1)  # type: ignore[arg-type]


# --- enqueueing


def test_a_message_goes_to_the_topic_of_its_queue(broker: DdmqBroker, producer: PlayedProducer) -> None:
    @dramatiq.actor(queue_name="mail.high")
    def welcome(user: int) -> None: ...

    welcome.send(17)
    ((topic, message, options),) = producer.sent
    assert topic == "dramatiq-mail%2Ehigh"
    assert (message.actor_name, message.args) == ("welcome", (17,))
    assert options == {"tags": "welcome"}


def test_there_is_no_delay_queue_and_a_delay_goes_to_the_server(
    broker: DdmqBroker, producer: PlayedProducer
) -> None:
    @dramatiq.actor
    def add(x: int) -> None: ...

    sent = add.send_with_options(args=(1,), delay=60_000)
    assert broker.get_declared_queues() == {"default"}
    assert broker.get_declared_delay_queues() == set()
    assert producer.sent[0][2]["delay"].total_seconds() == 60
    assert broker.cancel(sent) == "cancelled"  # type: ignore[comparison-overlap]
    assert producer.cancelled == [("17-5-0", "dramatiq-default")]
    with pytest.raises(OptionError, match="delay id"):
        broker.cancel(add.send(2))


def test_a_schedule_is_stored_by_the_server(broker: DdmqBroker, producer: PlayedProducer) -> None:
    @dramatiq.actor
    def report() -> None: ...

    delay_id = broker.schedule(report.message(), cron="0 9 * * MON-FRI", zone="Asia/Shanghai")
    assert producer.sent[0][2] == {"tags": "report", "cron": "0 9 * * MON-FRI", "zone": "Asia/Shanghai"}
    broker.cancel(delay_id)
    broker.cancel(delay_id, queue_name="reports")
    assert producer.cancelled == [(delay_id, None), (delay_id, "dramatiq-reports")]
    with pytest.raises(OptionError, match="no time"):
        broker.schedule(report.message())


def test_an_actor_may_choose_the_key_of_each_message(broker: DdmqBroker, producer: PlayedProducer) -> None:
    @dramatiq.actor(ddmq_key=lambda order, **_: f"order-{order}")
    def pack(order: int, box: str = "small") -> None: ...

    pack.send(17, box="large")
    pack.send_with_options(args=(18,), ddmq_key="mine")
    assert [(options["key"], options["shard_key"]) for _, _, options in producer.sent] == [
        ("order-17", "order-17"),
        ("mine", "mine"),
    ]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (NotStoredError("no server"), dramatiq.ConnectionFailed),
        (UnknownOutcomeError("?"), dramatiq.ConnectionClosed),
    ],
)
def test_a_message_that_is_not_stored_is_dramatiqs_own_error(
    broker: DdmqBroker, producer: PlayedProducer, error: Exception, raised: type[Exception]
) -> None:
    @dramatiq.actor
    def add(x: int) -> None: ...

    producer.error = error
    with pytest.raises(raised):
        add.send(1)


# --- names of queues


LONGEST = "q" * (119 - len("dramatiq-"))
BAD_NAMES = [LONGEST + "q", "." * 37, "ü", "two words", "slash/ed", "line\n", "\udc80"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_queue_that_no_worker_could_consume_is_not_declared(broker: DdmqBroker, name: str) -> None:
    with pytest.raises(OptionError, match=r"queue_name=.* makes the topic .* bytes; allowed: 1 to 119 ASCII"):
        broker.declare_queue(name)
    assert broker.get_declared_queues() == set()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_no_message_is_stored_for_such_a_queue(
    broker: DdmqBroker, producer: PlayedProducer, name: str
) -> None:
    message = dramatiq.Message(queue_name=name, actor_name="add", args=(), kwargs={}, options={})
    with pytest.raises(OptionError, match="allowed: 1 to 119 ASCII letters, digits and _"):
        broker.enqueue(message)
    assert producer.sent == []


def test_the_longest_name_is_declared(broker: DdmqBroker) -> None:
    names = {LONGEST, "mail.high", "." * 36, "A_b-9"}
    for name in names:
        broker.declare_queue(name)
    assert broker.get_declared_queues() == names


def test_the_error_states_name_and_length(broker: DdmqBroker) -> None:
    with pytest.raises(OptionError, match=r"queue_name='mail\.ü' .* 'dramatiq-mail%2Eü' of 18 bytes"):
        broker.declare_queue("mail.ü")


# --- after an actor


def processed(broker: DdmqBroker, body: bytes, **outcome: Any) -> tuple[dramatiq.MessageProxy, PlayedClient]:
    client = PlayedClient([body])
    message = next(consumer_of(client, 1))
    assert message is not None
    broker.emit_after("process_message", message, **outcome)
    return message, client


def test_a_retry_waits_for_the_acknowledgement(broker: DdmqBroker, producer: PlayedProducer) -> None:
    @dramatiq.actor
    def add(x: int) -> None: ...

    message, _ = processed(broker, encoded(1)[0], exception=ValueError("no"))
    assert producer.sent == []
    (retry,) = message.followers
    assert dramatiq.Message.decode(retry.body).options["retries"] == 1
    assert retry.delay is not None
    broker.enqueue(message)  # no middleware runs: this one goes at once
    assert len(producer.sent) == 1


def test_a_result_that_cannot_be_stored_is_remembered(broker: DdmqBroker, producer: PlayedProducer) -> None:
    @dramatiq.actor
    def add(x: object) -> None: ...

    pipe = add.message(1) | add.message(2)
    message, client = processed(
        broker, pipe.messages[0].encode(), result=object()
    )  # which JSON has no word for
    assert isinstance(message.enqueue_error, TypeError)
    message.ack(producer)
    assert client.settled == [(0, Outcome.FAILED, -2)]


# --- consuming


def test_no_more_than_prefetch_messages_are_unsettled() -> None:
    client = PlayedClient(encoded(10))
    consumer = consumer_of(client, 4)
    messages = [next(consumer) for _ in range(4)]
    assert next(consumer) is None
    assert client.pulls == [4]
    for message in messages[:3]:
        assert message is not None
        consumer.ack(message)
    assert [next(consumer) is not None for _ in range(4)] == [True, True, True, False]
    assert client.pulls == [4, 3]
    assert [outcome for _, outcome, _ in client.settled] == [Outcome.ACKED] * 3


def test_a_closed_consumer_returns_unstarted_messages_and_stops_after_the_last_actor() -> None:
    client = PlayedClient(encoded(3))
    consumer = consumer_of(client, 3)
    running = next(consumer)
    assert running is not None
    consumer.close()
    assert client.settled == [(1, Outcome.HANDED_BACK, None), (2, Outcome.HANDED_BACK, None)]
    assert not client.is_stopped
    consumer.ack(running)
    assert client.settled[-1] == (0, Outcome.ACKED, None)
    assert client.is_stopped


def test_requeued_messages_go_back_at_once() -> None:
    client = PlayedClient(encoded(2))
    consumer = consumer_of(client, 2)
    consumer.requeue([message for message in (next(consumer), next(consumer)) if message is not None])
    assert client.settled == [(0, Outcome.HANDED_BACK, None), (1, Outcome.HANDED_BACK, None)]
    consumer.close()
    assert client.is_stopped


def test_what_is_no_message_of_dramatiq_becomes_a_dead_letter() -> None:
    client = PlayedClient([b"espresso", *encoded(1)])
    consumer = consumer_of(client, 1)
    assert next(consumer) is None
    assert client.settled == [(0, Outcome.FAILED, -2)]
    assert next(consumer) is not None


def test_a_refused_pull_is_dramatiqs_own_error() -> None:
    client = PlayedClient([])
    client.error = PullError("no such group")
    with pytest.raises(dramatiq.ConnectionFailed, match="no such group"):
        next(consumer_of(client, 1))


def test_an_undeclared_queue_cannot_be_consumed_and_counts_need_the_admin_port(broker: DdmqBroker) -> None:
    with pytest.raises(dramatiq.QueueNotFound):
        broker.consume("nobody")
    broker.declare_queue("mail")
    for count in (broker.join, broker.flush):
        with pytest.raises(OptionError, match="admin"):
            count("mail")


@pytest.mark.parametrize(
    "options",
    [
        {"namespace": ""},
        {"namespace": "my.shop"},
        {"extend_for_ms": -1},
        {"timeout_ms": 0},
        {"consumer_proxies": "127.0.0.1:port"},
        {"admin": "127.0.0.1:port"},
    ],
)
def test_wrong_options_are_rejected_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        DdmqBroker(**options)
