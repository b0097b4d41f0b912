"""Six incidents, from the alert to the repair: with HTTP alone, and with the command line alone.

Each test sees the effect at the consumers, and that nothing else has changed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from ddmq_client import Message, Producer, ThrottledError
from tests.scenarios.incident_operators import Operator
from tests.scenarios.incident_world import (
    WAY_PARAMS,
    WITHOUT_RETRIES,
    IncidentWorld,
    deployed,
    describe_way,
)
from tests.scenarios.real_server import write_config
from tests.support.installations import installed
from tests.support.own_name import own_name
from tests.support.waits import until

WRONG_DELAYS = {("file_log", "one process"): 10_000}  # by engine and deployment
FEWER_DELAYS = 1_000
FrontEnd = type[Operator]


@pytest.fixture(scope="module", params=WAY_PARAMS, ids=describe_way)
def way(request: pytest.FixtureRequest) -> tuple[str, FrontEnd]:
    """How the servers are deployed, and what their operator uses."""
    chosen: tuple[str, FrontEnd] = request.param
    return chosen


@pytest.fixture(scope="module")
def world(
    way: tuple[str, FrontEnd], tmp_path_factory: pytest.TempPathFactory, engine: str
) -> Iterator[IncidentWorld]:
    deployment, _ = way
    folder = tmp_path_factory.mktemp(deployment.replace(" ", "-"))
    config = write_config(
        folder / "conf", delay_service={"pending_count_max": count_wrong(engine, deployment)}
    )
    with (
        installed(engine) as installation,
        deployed(deployment, folder, installation, config) as created,
    ):
        yield created


def count_wrong(engine: str, deployment: str) -> int:
    return WRONG_DELAYS.get((engine, deployment), FEWER_DELAYS)


@pytest.fixture(autouse=True)
def unchanged_bystanders(world: IncidentWorld) -> Iterator[None]:
    before = world.observe_bystanders()
    yield
    world.stop_clients()
    assert world.observe_bystanders() == before


@pytest.fixture
def front_end(way: tuple[str, FrontEnd]) -> FrontEnd:
    return way[1]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The last part of all names of a test's own."""
    return own_name(request.node)[-8:]


class Handled:
    """What a consumer has received and done, by key; fails the messages of some keys."""

    def __init__(self, errors: dict[str, Exception] | None = None) -> None:
        self.errors = errors or {}  # by key
        self.attempts: Counter[str] = Counter()
        self.done: dict[str, list[str]] = defaultdict(list)

    def __call__(self, message: Message) -> None:
        key = message.key or ""
        self.attempts[key] += 1
        if key in self.errors:
            raise self.errors[key]
        self.done[key].append(message.text())

    @property
    def bodies(self) -> list[str]:
        return sorted(body for bodies in self.done.values() for body in bodies)


def send_keys(producer: Producer, topic: str, keys: str, bodies: str) -> None:
    for body in bodies:
        for key in keys:
            producer.send(topic, key + body, key=key)


def test_blocked_keys_are_parked_and_replayed(world: IncidentWorld, front_end: FrontEnd, name: str) -> None:
    topic, group = f"orders-{name}", f"billing-{name}"
    world.create_topic(topic, queues=2)
    world.subscribe(
        group,
        topic,
        order_key="KEY",
        ordered_deliveries_max=-1,
        ordered_interval_ms=200,
        retry_intervals_ms=[],
    )
    addressless = {key: ValueError(f"customer {key} has no address") for key in "abcde"}
    handled = Handled({**addressless, "t": TimeoutError("the bank does not answer")})
    world.consumer(group, topic, handled)
    producer = world.producer()
    send_keys(producer, topic, "abcdetxy", "12")
    settings = world.settings_of(group)

    operator, _ = world.alert(front_end, "DdmqKeyBlocked", group=group, topic=topic)
    until(lambda: operator.list_keys(group)["total"] == 6, "all keys are blocked")
    by_error = {row["error"]: row["keys"] for row in operator.list_keys(group)["by_error"]}
    assert by_error == {"ValueError": 5, "TimeoutError": 1}
    plan = operator.plan("keys", "park", group=group, error="ValueError")
    assert (plan["counted"], plan["exact"]) == (5, True)
    parked = operator.start(plan)
    assert (parked["state"], parked["changed"], parked["skipped"]) == ("done", 5, {})

    attempts = dict(handled.attempts)
    send_keys(producer, topic, "axy", "3")
    until(lambda: handled.attempts["t"] > attempts["t"] + 3, "the other key is tried on")
    until(lambda: handled.done["x"] == ["x1", "x2", "x3"] and handled.done["y"] == ["y1", "y2", "y3"])
    assert {key: handled.attempts[key] for key in "abcde"} == {key: attempts[key] for key in "abcde"}
    assert operator.list_keys(group, state="parked")["total"] == 5

    for key in "abcde":
        del handled.errors[key]
    replay = operator.plan("keys", "replay", group=group, state="parked")
    assert replay["counted"] == 5
    assert operator.start(replay)["changed"] == 5
    expected = {"a": ["a1", "a2", "a3"]} | {key: [f"{key}1", f"{key}2"] for key in "bcde"}
    until(lambda: {key: handled.done[key] for key in "abcde"} == expected, "in order, each once")
    assert "t" not in handled.done, "only what was chosen"
    del handled.errors["t"]
    world.await_calm(front_end, "DdmqKeyBlocked", group=group)
    assert handled.done == expected | {key: [f"{key}1", f"{key}2"] for key in "t"} | {
        key: [f"{key}1", f"{key}2", f"{key}3"] for key in "xy"
    }
    assert world.list_letters(group) == []
    assert world.settings_of(group) == settings


def test_a_late_topic_gets_more_concurrency(world: IncidentWorld, front_end: FrontEnd, name: str) -> None:
    topic, group, neighbour = f"mail-{name}", f"mailer-{name}", f"archive-{name}"
    world.create_topic(topic)
    world.subscribe(group, topic, concurrency=2, batch_max=50)
    world.subscribe(neighbour, topic, concurrency=9)
    lock, active, most = threading.Lock(), 0, 0
    done: list[str] = []

    def handle(message: Message) -> None:
        nonlocal active, most
        with lock:
            active += 1
            most = max(active, most)
        time.sleep(0.2)  # the work itself, which takes its time
        with lock:
            active -= 1
            done.append(message.text())

    world.consumer(group, topic, handle, threads=50)
    bodies = [f"{number:03}" for number in range(400)]
    with world.producer() as producer:
        for body in bodies:
            producer.send(topic, body)
    settings = world.settings_of(group)[topic]
    others = world.settings_of(neighbour)

    operator, _ = world.alert(front_end, "DdmqLagOld", group=group, topic=topic)
    row = until(lambda: _with_cause(operator, group, topic, "concurrency"), "the cause is named")
    assert row["unfinished"] > 0
    assert most <= 2
    operator.change_subscription(group, topic, concurrency=50)
    until(lambda: len(done) == len(bodies), "all are delivered")
    assert sorted(done) == bodies
    assert most > 2
    world.await_calm(front_end, "DdmqLagOld", group=group)
    until(lambda: operator.find_lag(group, topic)["unfinished"] == 0)
    assert operator.find_lag(group, topic).get("why") is None
    assert world.settings_of(group)[topic] == settings | {"concurrency": 50}
    assert world.settings_of(neighbour) == others
    assert world.list_letters(group) == []


def _with_cause(operator: Operator, group: str, topic: str, cause: str) -> dict[str, Any] | None:
    row = operator.find_lag(group, topic)
    return row if row.get("why") == cause else None


def test_dead_letters_of_a_deployment_are_resent(
    world: IncidentWorld, front_end: FrontEnd, name: str
) -> None:
    topic, group, neighbour = f"mail-{name}", f"mailer-{name}", f"audit-{name}"
    world.create_topic(topic)
    for each in (group, neighbour):
        world.subscribe(each, topic, **WITHOUT_RETRIES)
    deployed_badly = Handled({"iban": KeyError("iban"), "slow": TimeoutError("no answer")})
    audited = Handled()
    consumer = world.consumer(group, topic, deployed_badly)
    world.consumer(neighbour, topic, audited)
    without_iban = [f"iban {number:03}" for number in range(120)]
    with world.producer() as producer:
        for body in without_iban:
            producer.send(topic, body, key="iban")
        for number in range(15):
            producer.send(topic, f"slow {number:02}", key="slow")
        producer.send(topic, "good", key="good")
    until(lambda: len(world.list_letters(group)) == 135, "they are dead letters")
    until(lambda: len(audited.bodies) == 136, "the neighbour has them all")
    consumer.stop()

    operator, _ = world.alert(front_end, "DdmqDeadLetters", group=group, topic=topic)
    facets = operator.count_letters(group)
    assert {row["value"]: row["letters"] for row in facets["by_error"]} == {
        "KeyError": 120,
        "TimeoutError": 15,
    }
    assert (facets["counted"], facets["exact"]) == (135, True)
    operator = front_end(world.other_server)  # any server resends
    plan = operator.plan("dead_letters", "resend", group=group, error="KeyError")
    assert (plan["counted"], plan["exact"]) == (120, True)
    assert plan["reaches"] == {topic: {"count": 1, "groups": [group]}}
    repaired = Handled()
    world.consumer(group, topic, repaired)
    operation = operator.start(plan, rate=60)
    assert (operation["state"], operation["changed"], operation["skipped"]) == ("done", 120, {})
    assert operation["ended_ms"] - operation["started_ms"] > 900, "at most 60 a second"
    until(lambda: repaired.bodies == without_iban, "each arrives once")
    assert sorted(body for _, body in world.list_letters(group)) == [
        f"slow {number:02}" for number in range(15)
    ]
    assert len(audited.bodies) == 136, "no other group gets them"
    until(lambda: operator.find_lag(neighbour, topic)["unfinished"] == 0)
    assert repaired.bodies == without_iban


def test_wrong_delays_are_held_and_cancelled(world: IncidentWorld, front_end: FrontEnd, name: str) -> None:
    if world.deployment == "two servers":
        pytest.skip("each server counts, limits and lists the messages of the shards that it holds")
    topic, group, neighbour = f"mail-{name}", f"mailer-{name}", f"parcels-{name}"
    for each in (topic, neighbour):
        world.create_topic(each)
        world.subscribe(group, each)
    handled = Handled()
    world.consumer(group, [topic, neighbour], handled)
    producer = world.producer()
    rightful = [f"rightful {number:02}" for number in range(20)]
    for body in rightful:
        producer.send(topic, body, key="right", delay=timedelta(hours=1))
    producer.send(neighbour, "of the neighbour", delay=timedelta(hours=1))
    until(lambda: len(world.list_delays(topic)) == 20)
    born_from_ms = begin_millisecond()
    limit = count_wrong(world.engine, world.deployment)
    wrong = limit - len(rightful)
    send_delays(producer, topic, wrong)

    operator, _ = world.alert(front_end, "DdmqDelayFull")
    with pytest.raises(ThrottledError):
        producer.send(topic, "one too many", delay=timedelta(hours=1))
    assert operator.count_delays()[topic] == limit
    operator.hold_delays(topic)
    operator = front_end(world.other_server)  # any server knows it
    until(lambda: topic in operator.list_delays(topic)["held"], "they are held")
    plan = operator.plan("delays", "cancel", topic=topic, born_from_ms=born_from_ms)
    assert (plan["counted"], plan["exact"], plan["skipped"]) == (wrong, True, {})
    assert all(row["preview"].startswith("wrong") for row in plan["sample"])
    operation = operator.start(plan)
    assert (operation["state"], operation["changed"], operation["skipped"]) == ("done", wrong, {})
    assert len(world.list_delays(topic)) == len(world.list_delays(neighbour)) + 19 == 20
    world.await_calm(front_end, "DdmqDelayFull")

    producer.send(topic, "soon", key="right", delay=timedelta(milliseconds=50))
    until(lambda: min(world.list_delays(topic).values()) < now_ms() - 500, "it is overdue")
    fire = operator.plan("delays", "fire", topic=topic)
    assert fire["skipped"] == {"the delays of its topic are held": 21}
    assert handled.bodies == []
    operator.release_delays(topic)
    until(lambda: handled.bodies == ["soon"], "it fires when they are released")
    fired = operator.start(operator.plan("delays", "fire", topic=topic))
    assert (fired["changed"], fired["skipped"]) == (20, {})
    until(lambda: handled.bodies == [*rightful, "soon"], "they arrive, and nothing wrong does")
    assert len(world.list_delays(neighbour)) == 1


def send_delays(producer: Producer, topic: str, count: int) -> None:
    def send(number: int) -> None:
        producer.send(topic, f"wrong {number}", key="wrong", delay=timedelta(hours=1, milliseconds=number))

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(send, range(count)))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def begin_millisecond() -> int:
    """Wait until a new millisecond has begun; return it."""
    previous = now_ms()
    until(lambda: now_ms() > previous)
    return now_ms()


def test_a_group_that_waits_for_a_topic_that_nobody_pulls(
    world: IncidentWorld, front_end: FrontEnd, name: str
) -> None:
    orders, returns, group = f"orders-{name}", f"returns-{name}", f"stock-{name}"
    for topic in (orders, returns):
        world.create_topic(topic, queues=1)
        world.subscribe(group, topic, order_key="KEY")
    producer = world.producer()
    producer.send(returns, "returned", key="k")
    for body in ("first", "second"):
        producer.send(orders, body, key="k")
    handled = Handled()
    world.consumer(group, orders, handled)
    settings = world.settings_of(group)

    operator, _ = world.alert(front_end, "DdmqQueuesStalled", group=group, topic=orders)
    until(lambda: _with_cause(operator, group, orders, "stalled"), "the cause is named")
    (stall,) = [row for row in operator.show_group(group)["stalled"] if row["topic"] == orders]
    assert stall["held_up_by"] == [returns]
    assert handled.bodies == []
    operator.unsubscribe(group, returns)
    until(lambda: handled.done["k"] == ["first", "second"], "they arrive in order")
    world.await_calm(front_end, "DdmqQueuesStalled", group=group)
    assert world.settings_of(group) == {orders: settings[orders]}
    assert world.server.bodies(returns) == ["returned"], "no message is lost"
