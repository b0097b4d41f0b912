"""Six incidents resolved in the console: from the alert's link in three clicks, or by keyboard alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from ddmq_client import Message
from tests.console.operators import HANDS, Hands, confirm
from tests.console.pages import Console
from tests.scenarios.incident_operators import HttpOperator
from tests.scenarios.incident_world import WITHOUT_RETRIES, IncidentWorld, deployed
from tests.scenarios.real_server import write_config
from tests.scenarios.topic_writer import writing
from tests.support.installations import ENGINES, installed
from tests.support.own_name import own_name
from tests.support.waits import until

CLICKS_MAX = 3
WRONG_DELAYS = 10_000
FREE_BYTES = (2 << 30) + (256 << 20)  # more than the threshold of DdmqDiskFillsUp
BARS = 96  # of a quarter of an hour, in the day that the page of delays shows
HOUR_BARS = 4


@pytest.fixture(scope="module", params=ENGINES)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IncidentWorld]:
    engine = str(request.param)
    folder = tmp_path_factory.mktemp(engine)
    config = write_config(
        folder / "conf",
        delay_service={"pending_count_max": WRONG_DELAYS},
        file_log={"allocate_bytes": "1MiB"},
    )
    disk_free = FREE_BYTES if engine == "file_log" else None
    with (
        installed(engine) as installation,
        deployed("one process", folder, installation, config, disk_free=disk_free) as created,
    ):
        yield created


@pytest.fixture
def console(browser: Any, world: IncidentWorld) -> Iterator[Console]:
    with Console.open(browser, world.server.ports["admin"]) as opened:
        yield opened
    world.stop_clients()
    assert opened.complaints == []


@pytest.fixture(params=HANDS)
def hands(request: pytest.FixtureRequest, console: Console) -> Hands:
    created: Hands = request.param(console)
    return created


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The last part of all names of a test's own."""
    return own_name(request.node)[-8:]


def follow_alert(world: IncidentWorld, console: Console, rule: str, **labels: str) -> Any:
    """Wait for the alert and open its link."""
    _, finding = world.alert(HttpOperator, rule, **labels)
    return console.goto(finding["page"].removeprefix("/console/"))


def test_blocked_keys_are_parked_and_replayed(
    world: IncidentWorld, console: Console, hands: Hands, name: str
) -> None:
    topic, group = f"orders-{name}", f"billing-{name}"
    world.create_topic(topic, queues=2)
    once = {"order_key": "KEY", "ordered_deliveries_max": -1, "ordered_interval_ms": 200}
    world.subscribe(group, topic, retry_intervals_ms=[], **once)
    failing = {*"abc"}
    done: list[str] = []

    def handle(message: Message) -> None:
        if message.key in failing:
            raise ValueError(f"customer {message.key} has no address")
        done.append(message.key or "")

    world.consumer(group, topic, handle)
    with world.producer() as producer:
        for key in "abcx":
            producer.send(topic, "order", key=key)

    def count_parked() -> int:
        return int(HttpOperator(world.server).list_keys(group, state="parked")["total"])

    page = follow_alert(world, console, "DdmqKeyBlocked", group=group)
    error = page.locator(".cardhead", has_text="ValueError")
    hands.activate(error.get_by_role("button", name="Park…"))
    confirm(hands, console, "Park 3")
    assert "3 of 3 keys changed" in console.outcome()
    assert hands.actions <= CLICKS_MAX
    assert count_parked() == 3

    failing.clear()  # the cause is mended, and the same link is opened again
    hands.actions = 0
    page = console.goto(f"keys?group={group}")
    hands.activate(error.get_by_role("button", name="Replay…"))
    confirm(hands, console, "Replay 3")
    assert "3 of 3 keys changed" in console.outcome()
    assert hands.actions <= CLICKS_MAX
    until(lambda: sorted(done) == [*"abcx"], "all are delivered")
    assert count_parked() == 0


def test_a_late_topic_gets_more_concurrency(
    world: IncidentWorld, console: Console, hands: Hands, name: str
) -> None:
    topic, group = f"mail-{name}", f"mailer-{name}"
    world.create_topic(topic)
    world.subscribe(group, topic, concurrency=2, batch_max=50)
    started, finished = threading.Semaphore(0), threading.Semaphore(0)
    fast = threading.Event()

    def handle(message: Message) -> None:
        started.release()
        assert fast.wait(60)
        finished.release()

    world.consumer(group, topic, handle, threads=50)
    with world.producer() as producer:
        for number in range(200):
            producer.send(topic, str(number))
    page = follow_alert(world, console, "DdmqLagOld", group=group)
    hands.activate(page.get_by_role("button", name="Change concurrency…"))
    hands.enter(page.locator("dialog[open]").get_by_label("new concurrency"), "50")
    confirm(hands, console, "Change")
    assert "concurrency: 2 → 50" in console.outcome_of_change()
    assert hands.actions <= CLICKS_MAX
    for _ in range(3):  # more than two at once
        assert started.acquire(timeout=60)
    fast.set()
    for _ in range(200):
        assert finished.acquire(timeout=60)


def test_dead_letters_of_a_deployment_are_resent(
    world: IncidentWorld, console: Console, hands: Hands, name: str
) -> None:
    topic, group = f"mail-{name}", f"mailer-{name}"
    world.create_topic(topic)
    world.subscribe(group, topic, **WITHOUT_RETRIES)
    errors: dict[str, Exception] = {"iban": KeyError("iban"), "slow": TimeoutError("no answer")}
    repaired: list[str] = []

    def handle(message: Message) -> None:
        if error := errors.get(message.key or ""):
            raise error
        repaired.append(message.text())

    world.consumer(group, topic, handle)
    bodies = [f"iban {number:02}" for number in range(30)]
    with world.producer() as producer:
        for body in bodies:
            producer.send(topic, body, key="iban")
        for number in range(5):
            producer.send(topic, f"slow {number}", key="slow")
    until(lambda: len(world.list_letters(group)) == 35, "they are dead letters")
    del errors["iban"]  # the next deployment

    page = follow_alert(world, console, "DdmqDeadLetters", group=group)
    hands.activate(page.locator(".facet", has_text="KeyError"))
    page.get_by_text("All 30 that match").wait_for()
    hands.activate(page.get_by_role("button", name=f"Resend to {group}…"))
    confirm(hands, console, "Resend 30")
    assert "30 of 30 dead letters changed" in console.outcome()
    assert hands.actions <= CLICKS_MAX
    until(lambda: sorted(repaired) == bodies, "each arrives once")
    assert len(world.list_letters(group)) == 5


def test_wrong_delays_are_cancelled(world: IncidentWorld, console: Console, hands: Hands, name: str) -> None:
    topic = f"mail-{name}"
    world.create_topic(topic)
    with world.producer() as producer:
        producer.send(topic, "rightful", delay=timedelta(hours=5))

        def send(number: int) -> None:
            due = timedelta(hours=1, milliseconds=number)
            producer.send(topic, f"wrong {number}", key="wrong", delay=due)

        with ThreadPoolExecutor(32) as threads:
            list(threads.map(send, range(WRONG_DELAYS - 1)))
    page = follow_alert(world, console, "DdmqDelayFull")
    timeline = page.locator("svg.timeline")
    page.locator("svg.timeline rect.bar").first.wait_for()
    hands.select_bars(timeline, HOUR_BARS - 1, HOUR_BARS + 1, BARS)
    hands.activate(page.get_by_role("button", name="Cancel…"))
    confirm(hands, console, "Cancel")
    assert "9,999 of 9,999 delayed messages changed" in console.outcome()
    assert hands.actions <= CLICKS_MAX
    assert len(world.list_delays(topic)) == 1
    world.await_calm(HttpOperator, "DdmqDelayFull")


def test_delays_are_held_from_the_link_of_the_alert(
    world: IncidentWorld, console: Console, hands: Hands, name: str
) -> None:
    topic = f"news-{name}"
    world.create_topic(topic)
    waiting = world.server.admin("GET", "delay")["topics"]
    with world.producer() as producer:
        for _ in range(1 + max(waiting.values(), default=0)):  # the page offers the topic with the most
            producer.send(topic, "soon", delay=timedelta(hours=1))
    page = console.goto("delays")
    hands.activate(page.get_by_role("button", name=f"Hold {topic}…"))
    confirm(hands, console, "Hold")
    console.outcome_of_change()
    assert hands.actions <= CLICKS_MAX
    assert topic in HttpOperator(world.server).list_delays(topic)["held"]


def test_a_group_that_waits_for_a_topic_that_nobody_pulls_goes_on(
    world: IncidentWorld, console: Console, hands: Hands, name: str
) -> None:
    orders, returns, group = f"orders-{name}", f"returns-{name}", f"stock-{name}"
    for topic in (orders, returns):
        world.create_topic(topic, queues=1)
        world.subscribe(group, topic, order_key="KEY")
    done: list[str] = []
    with world.producer() as producer:
        for topic in (returns, orders):
            producer.send(topic, topic, key="k")
    world.consumer(group, orders, lambda message: done.append(message.text()))
    page = follow_alert(world, console, "DdmqQueuesStalled", group=group)
    hands.activate(page.locator(".stalled").get_by_role("button", name=f"Unsubscribe from {returns}…"))
    confirm(hands, console, "Unsubscribe")
    console.outcome_of_change()
    assert hands.actions <= CLICKS_MAX
    until(lambda: done == [orders], "the waiting message is delivered")
    assert world.settings_of(group).keys() == {orders}


def test_the_topic_that_fills_the_disk_is_closed(
    world: IncidentWorld, console: Console, hands: Hands, name: str
) -> None:
    topic = f"logs-{name}"
    world.create_topic(topic)
    with writing(world.producer(), topic) as writer:
        page = follow_alert(world, console, "DdmqDiskFillsUp")
        hands.activate(page.get_by_role("button", name=f"Close {topic} to sends…"))
        confirm(hands, console, "Close")
        console.outcome_of_change()
        assert hands.actions <= CLICKS_MAX
        until(writer.stopped.is_set, "its sends are rejected")
        assert topic in str(writer.errors)
