"""The test kit's broker and a real server do the same: every scenario here runs against both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest

from ddmq_client import DelayStatus, InvalidMessageError, Message, OutgoingMessage
from ddmq_client.testing.server import LocalServer
from ddmq_client.transactions import Decision, UndecidedTransaction
from tests.scenarios.broker_world import BrokerWorld, KitWorld, ServerWorld
from tests.support.own_name import own_name

ONE_RETRY = {"retry_intervals_ms": [50], "retry_steps": 0}
ORDERED = {"order_key": "KEY", "retry_intervals_ms": [50], "ordered_interval_ms": 60_000}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("contract")) as started:
        yield started


@pytest.fixture(params=("kit", "server"))
def world(request: pytest.FixtureRequest) -> Iterator[BrokerWorld]:
    world: BrokerWorld
    if request.param == "kit":
        world = KitWorld()
    else:
        world = ServerWorld(request.getfixturevalue("server"))
    yield world
    world.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return own_name(request.node)


class Handler:
    """Keeps the bodies that it was given; the ones in `failing` it fails, as often as they say."""

    def __init__(self, **failing: int) -> None:
        self.bodies: list[str] = []
        self.attempts: list[tuple[str, int | None]] = []
        self.failing = failing

    def __call__(self, message: Message) -> None:
        body = message.text()
        self.attempts.append((body, message.attempt))
        if self.failing.get(body, 0) > 0:
            self.failing[body] -= 1
            raise RuntimeError(f"{body} cannot be handled")
        self.bodies.append(body)


def test_a_sent_message_is_handled_and_finished(world: BrokerWorld, topic: str) -> None:
    handler = Handler()
    result = world.producer().send(topic, b"one", key="k", tags="red", properties={"a": "b"})
    handled: list[Message] = []
    world.consumer(f"g-{topic}", topic, lambda message: (handler(message), handled.append(message)))
    world.until(lambda: handler.bodies and world.lag(f"g-{topic}", topic) == 0, "it is acknowledged")
    message = handled[0]
    assert (message.key, message.tags, message.properties, message.attempt) == ("k", "red", {"a": "b"}, 1)
    assert message.message_id == result.message_id
    assert world.bodies(topic) == ["one"]


def test_a_batch_keeps_its_order_in_a_queue(world: BrokerWorld, topic: str) -> None:
    handler = Handler()
    world.producer().send_batch([OutgoingMessage(topic, str(n), queue=0) for n in range(20)])
    world.create_group(f"g-{topic}", topic, order_key="QID")
    world.consumer(f"g-{topic}", topic, handler, threads=1)
    world.until(lambda: len(handler.bodies) == 20, "all are handled")
    assert handler.bodies == [str(n) for n in range(20)]


def test_each_group_gets_every_message(world: BrokerWorld, topic: str) -> None:
    first, second = Handler(), Handler()
    world.consumer(f"a-{topic}", topic, first)
    world.consumer(f"b-{topic}", topic, second)
    world.producer().send(topic, b"one")
    world.until(lambda: first.bodies == second.bodies == ["one"], "both groups have it")


def test_tags_filter_deliveries(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(), world.producer()
    world.create_group(f"g-{topic}", topic, tags="red")
    producer.send(topic, b"blue", tags="blue")
    producer.send(topic, b"red", tags="red")
    world.consumer(f"g-{topic}", topic, handler)
    world.until(lambda: world.lag(f"g-{topic}", topic) == 0, "both are done")
    assert handler.bodies == ["red"]


def test_a_failed_message_is_retried(world: BrokerWorld, topic: str) -> None:
    handler = Handler(one=1)
    world.create_group(f"g-{topic}", topic, **ONE_RETRY)
    world.producer().send(topic, b"one")
    world.consumer(f"g-{topic}", topic, handler)
    world.until(lambda: handler.bodies == ["one"], "the second delivery succeeds")
    assert handler.attempts == [("one", 1), ("one", 2)]


def test_a_retry_goes_through_a_delay_level(world: BrokerWorld, topic: str) -> None:
    handler = Handler(one=1)
    world.create_group(f"g-{topic}", topic, retry_intervals_ms=[], retry_steps=1)
    world.producer().send(topic, b"one", key="k")
    world.consumer(f"g-{topic}", topic, handler)
    world.until(lambda: handler.bodies == ["one"], "it comes back from the level")
    assert handler.attempts == [("one", 1), ("one", 2)]


def test_attempts_that_are_used_up_end_in_a_dead_letter(world: BrokerWorld, topic: str) -> None:
    handler = Handler(one=9)
    world.create_group(f"g-{topic}", topic, **ONE_RETRY)
    world.consumer(f"g-{topic}", topic, handler)
    world.producer().send(topic, b"one", key="k")
    world.until(lambda: world.dead_letters(f"g-{topic}"), "there is a dead letter")
    assert world.dead_letters(f"g-{topic}") == [
        {
            "key": "k", "body": "one", "reason": "failed", "topic": topic, "attempts": 2,
            "error": "RuntimeError: one cannot be handled",
        }
    ]  # fmt: skip
    world.until(lambda: world.lag(f"g-{topic}", topic) == 0, "it is finished")


def test_a_handler_may_dead_letter_a_message_at_once(world: BrokerWorld, topic: str) -> None:
    world.consumer(f"g-{topic}", topic, lambda message: message.dead_letter("no such order"))
    world.producer().send(topic, b"one")
    world.until(lambda: world.dead_letters(f"g-{topic}"), "there is a dead letter")
    assert world.dead_letters(f"g-{topic}")[0]["error"] == "no such order"


def test_a_failed_key_blocks_itself_and_no_other(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(a1=1), world.producer()
    world.create_group(f"g-{topic}", topic, **{**ORDERED, "ordered_interval_ms": 100})
    for body in ("a1", "a2", "b1"):
        producer.send(topic, body, key=body[0])
    world.consumer(f"g-{topic}", topic, handler)
    world.until(lambda: len(handler.bodies) == 3, "all are handled in the end")
    assert handler.bodies.index("a1") < handler.bodies.index("a2")
    assert [body for body, _ in handler.attempts].index("a2") > handler.attempts.index(("a1", 2))


def test_a_blocked_key_shows_its_head(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(a1=9), world.producer()
    world.create_group(f"g-{topic}", topic, **ORDERED)
    world.consumer(f"g-{topic}", topic, handler)
    producer.send(topic, b"a1", key="a")
    world.until(lambda: len(handler.attempts) == 2, "its quick retry is spent")
    producer.send(topic, b"a2", key="a")
    producer.send(topic, b"b1", key="b")
    world.until(lambda: handler.bodies == ["b1"], "another key is handled")
    world.until(
        lambda: world.blocked_keys(f"g-{topic}") == [{"key": '"a"', "state": "retrying", "attempts": 2}],
        "the key is blocked",
    )


def test_a_skipped_head_is_a_dead_letter_and_its_key_resumes(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(a1=9), world.producer()
    world.create_group(f"g-{topic}", topic, **ORDERED)
    world.consumer(f"g-{topic}", topic, handler)
    producer.send(topic, b"a1", key="a")
    producer.send(topic, b"a2", key="a")
    world.until(lambda: len(handler.attempts) == 2, "its quick retry is spent")
    world.until(lambda: world.blocked_keys(f"g-{topic}")[0]["state"] == "retrying", "it is blocked")
    world.act_on_key(f"g-{topic}", "skip", "a")
    world.until(lambda: handler.bodies == ["a2"], "the message behind it is handled")
    (letter,) = world.dead_letters(f"g-{topic}")
    assert (letter["body"], letter["reason"]) == ("a1", "skipped")


def test_a_parked_key_waits_until_it_is_replayed(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(), world.producer()
    world.create_group(f"g-{topic}", topic, **ORDERED)
    world.consumer(f"g-{topic}", topic, handler)
    world.act_on_key(f"g-{topic}", "park", "a")
    producer.send(topic, b"a1", key="a")
    producer.send(topic, b"b1", key="b")
    world.until(lambda: handler.bodies == ["b1"], "another key is handled")
    world.until(
        lambda: [row["state"] for row in world.blocked_keys(f"g-{topic}")] == ["parked"], "it is parked"
    )
    world.act_on_key(f"g-{topic}", "replay", "a")
    world.until(lambda: handler.bodies == ["b1", "a1"], "it is handled")


def test_a_key_may_be_parked_when_its_attempts_are_used_up(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(a1=2), world.producer()
    settings = {**ORDERED, "ordered_deliveries_max": 2, "on_dead_letter": "park"}
    world.create_group(f"g-{topic}", topic, **settings)
    world.consumer(f"g-{topic}", topic, handler)
    producer.send(topic, b"a1", key="a")
    producer.send(topic, b"a2", key="a")
    world.until(
        lambda: [row["state"] for row in world.blocked_keys(f"g-{topic}")] == ["parked"], "it is parked"
    )
    assert world.dead_letters(f"g-{topic}") == []
    world.act_on_key(f"g-{topic}", "replay", "a")
    world.until(lambda: handler.bodies == ["a1", "a2"], "both are handled in order")


def test_a_delay_is_never_early(world: BrokerWorld, topic: str) -> None:
    handled_at = []
    world.consumer(f"g-{topic}", topic, lambda message: handled_at.append(world.now()))
    due_at = world.now() + timedelta(milliseconds=700)
    world.producer().send(topic, b"later", deliver_at=due_at)
    assert world.delays(topic) == ["later"]
    world.until(lambda: handled_at, "it is delivered")
    assert handled_at[0] >= due_at.replace(microsecond=due_at.microsecond // 1000 * 1000)
    assert world.delays(topic) == []


def test_a_delay_level_is_never_early(world: BrokerWorld, topic: str) -> None:
    handled_at = []
    world.consumer(f"g-{topic}", topic, lambda message: handled_at.append(world.now()))
    begin = world.now()
    world.producer().send(topic, b"later", level=1)
    world.until(lambda: handled_at, "it is delivered")
    assert handled_at[0] - begin >= timedelta(milliseconds=990)


def test_a_cancelled_delay_is_not_delivered(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(), world.producer()
    world.consumer(f"g-{topic}", topic, handler)
    delayed = producer.send(topic, b"never", delay=timedelta(milliseconds=500))
    assert producer.cancel(delayed).status is DelayStatus.CANCELLED
    producer.send(topic, b"after", delay=timedelta(milliseconds=600))
    world.until(lambda: handler.bodies, "a later one is delivered")
    assert handler.bodies == ["after"]
    assert producer.cancel(delayed).status is DelayStatus.CANCELLED


def test_a_delay_can_be_moved_and_fired(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(), world.producer()
    world.consumer(f"g-{topic}", topic, handler)
    delayed = producer.send(topic, b"later", delay=timedelta(hours=1))
    assert producer.reschedule(delayed, delay=timedelta(hours=2)).status is DelayStatus.RESCHEDULED
    assert producer.fire_now(delayed).status is DelayStatus.FIRED
    world.until(lambda: handler.bodies == ["later"], "it is delivered")
    assert producer.cancel(delayed).status is DelayStatus.FIRED


def test_a_repeated_delay_is_delivered_its_number_of_times(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(), world.producer()
    world.consumer(f"g-{topic}", topic, handler)
    producer.send(topic, b"tick", delay=timedelta(0), every=timedelta(seconds=1), times=3)
    world.until(lambda: len(handler.bodies) == 3, "three come")
    assert world.delays(topic) == []


def test_a_committed_transaction_is_delivered_completely(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(), world.producer(producer_group=f"p-{topic}", check=_undecided)
    world.consumer(f"g-{topic}", topic, handler)
    with producer.transaction() as transaction:
        transaction.send(topic, b"one", queue=0)
        transaction.send(topic, b"two", queue=0)
        assert world.bodies(topic) == []
    world.until(lambda: sorted(handler.bodies) == ["one", "two"], "both are handled")


def test_a_rolled_back_transaction_is_never_delivered(world: BrokerWorld, topic: str) -> None:
    handler, producer = Handler(), world.producer(producer_group=f"p-{topic}", check=_undecided)
    world.consumer(f"g-{topic}", topic, handler)
    with suppress(ZeroDivisionError), producer.transaction() as transaction:
        transaction.send(topic, b"one")
        raise ZeroDivisionError
    producer.send(topic, b"after")
    world.until(lambda: handler.bodies, "a later message is handled")
    assert world.bodies(topic) == ["after"]


def test_a_check_decides_an_open_transaction(world: BrokerWorld, topic: str) -> None:
    handler, checks = Handler(), []

    def check(transaction: UndecidedTransaction) -> Decision:
        checks.append((transaction.reference, transaction.check, [m.topic for m in transaction.messages]))
        return Decision.COMMITTED

    world.consumer(f"g-{topic}", topic, handler)
    producer = world.producer(producer_group=f"p-{topic}", check=check)
    transaction = producer.transaction(reference="order-17", check_after=timedelta(milliseconds=200))
    transaction.__enter__().send(topic, b"one")
    world.until(lambda: handler.bodies == ["one"], "the check has committed it")
    assert checks == [("order-17", 1, [topic])]


def _undecided(transaction: UndecidedTransaction) -> Decision:
    return Decision.NOT_KNOWN_YET


def test_replies_are_stored_with_the_acknowledgement_and_once(world: BrokerWorld, topic: str) -> None:
    failures = ["the first try"]

    def handle(message: Message) -> None:
        with message.replies() as replies:
            replies.send(f"out-{topic}", f"answer to {message.text()}", key=message.key)
            if failures:
                raise RuntimeError(failures.pop())

    world.create_group(f"g-{topic}", topic, **ONE_RETRY)
    world.producer().send(topic, b"one", key="k")
    world.consumer(f"g-{topic}", topic, handle)
    world.until(lambda: world.bodies_if_any(f"out-{topic}"), "the reply is there")
    world.until(lambda: world.lag(f"g-{topic}", topic) == 0, "its message is done")
    assert world.bodies(f"out-{topic}") == ["answer to one"]


def test_a_duplicate_key_is_stored_once(world: BrokerWorld, topic: str) -> None:
    producer, key = world.producer(), uuid4().hex
    first = producer.send(topic, b"one", idempotency_key=key)
    repeated = producer.send(topic, b"one", idempotency_key=key)
    other = producer.send(topic, b"two", idempotency_key=key)
    assert (first.duplicate, repeated.duplicate, other.body_differs) == (False, True, True)
    assert repeated.message_id == first.message_id
    assert world.bodies(topic) == ["one"]


def test_messages_that_no_proxy_accepts_are_rejected(world: BrokerWorld, topic: str) -> None:
    with pytest.raises(InvalidMessageError, match="body"):
        world.producer().send(topic, b"")
    with pytest.raises(InvalidMessageError, match="topic"):
        world.producer().send("no/such name", b"one")


def test_a_stopped_consumer_leaves_its_messages_to_others(world: BrokerWorld, topic: str) -> None:
    first, second, producer = Handler(), Handler(), world.producer()
    consumer = world.consumer(f"g-{topic}", topic, first)
    producer.send(topic, b"one")
    world.until(lambda: first.bodies == ["one"], "the first has it")
    assert consumer.stop()
    world.consumer(f"g-{topic}", topic, second)
    producer.send(topic, b"two")
    world.until(lambda: second.bodies == ["two"], "the second has the next")
