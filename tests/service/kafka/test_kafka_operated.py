"""What operators do at the admin port of one of two servers holds at the other one, and outlives kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Consumer, Message
from tests.crash.kafka.run import post
from tests.scenarios.real_server import RealServer, ddmq
from tests.scenarios.test_live_on_servers import watching
from tests.service.cli.test_operation_commands import bury, letters, plan, start, wait_for
from tests.support.installations import installed
from tests.support.waits import until

pytestmark = pytest.mark.slow
HOUR_MS = 3_600_000
LETTERS = 120
READY_S = 180.0  # a broker that has just begun may take long to answer
INTERRUPTED_S = 120.0  # an operation is interrupted after 30 s without its process


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RealServer]]:
    with installed("kafka") as installation:
        both = [RealServer(tmp_path / name, installation=installation) for name in ("one", "other")]
        try:
            for server in both:
                server.ready_s = READY_S
                server.start()
            for server in both:
                until(lambda: server.request("GET", "/ready")[0] == 200, "it is ready", READY_S)  # noqa: B023
            post(both[0], "/topics/t", {"create": True, "queues": 4})
            until(lambda: both[1].request("GET", "/topics/t")[0] == 200, "the topic is known at both")
            yield both
        finally:
            for server in both:
                server.end()


def run(server: RealServer, *words: str) -> str:
    """A command at the admin port of a server."""
    result = ddmq(*words, "--admin", server.address("admin"))
    assert result.returncode == 0, result.stderr
    return result.stdout


def subscribe(servers: list[RealServer], group: str) -> None:
    """A group of the topic, known at both servers."""
    post(servers[0], f"/groups/{group}", {"topics": ["t"], "start": "first"})
    until(lambda: servers[1].request("GET", f"/groups/{group}")[0] == 200, "the group is known at both")


def subscription(server: RealServer) -> dict[str, Any]:
    """The only subscription of the group g, as a server sees it."""
    return dict(server.admin("GET", "groups", "g")["subscriptions"][0])


def consumers(servers: list[RealServer], group: str, handle: Callable[[Message], object]) -> list[Consumer]:
    """A client of each server."""
    return [Consumer(server.address("consumer"), group, "t", handler=handle) for server in servers]


def send(server: RealServer, body: str, **terms: Any) -> dict[str, Any]:
    """Send a message with an idempotency key, again until it is certainly stored: the machine may be busy."""
    answers: list[Any] = []

    def is_stored() -> bool:
        answers.append(server.request("POST", "/messages", {"topic": "t", "body": body, **terms}))
        return bool(answers[-1][0] == 200)

    until(is_stored, lambda: f"{body} is stored: {answers[-1]}")
    row: dict[str, Any] = answers[-1][1]
    return row


def delay(server: RealServer, numbers: Iterator[int], **terms: int) -> tuple[str, str]:
    """Send a delayed message, another one until it certainly waits. Returns its body and its delay id."""
    while True:
        body = str(next(numbers))
        status, row = server.request("POST", "/messages", {"topic": "t", "body": body, **terms})
        if status == 200:
            return body, row["delay_id"]


def test_a_message_is_sent_at_one_server_and_changed_at_the_other(servers: list[RealServer]) -> None:
    one, other = servers
    first = send(one, "tea", idempotency_key="order-1")
    again = send(other, "tea", idempotency_key="order-1")
    assert (again["duplicate"], again["id"], again["offset"]) == (True, first["id"], first["offset"])
    numbers = count()
    (_, cancelled), (body, fired) = (delay(other, numbers, delay_ms=HOUR_MS) for _ in range(2))
    for delay_id, action, state in ((cancelled, "cancel", "cancelled"), (fired, "fire", "fired")):
        path = f"/delay/messages/{delay_id}"
        until(lambda: one.request("POST", path, {"action": action})[0] == 200, action)  # noqa: B023
        until(lambda: other.request("GET", path)[1].get("state") == state, state)  # noqa: B023
    until(lambda: other.bodies("t") == [body, "tea"], lambda: f"it is fired: {other.bodies('t')}")


def test_a_group_is_paused_at_one_server_and_resumed_at_the_other(servers: list[RealServer]) -> None:
    one, other = servers
    subscribe(servers, "g")
    handled: Counter[str] = Counter()
    clients = consumers(servers, "g", lambda message: handled.update([message.text()]))
    try:
        for client in clients:
            client.start()
        for number in range(20):
            send(servers[number % 2], f"before {number}", idempotency_key=f"before {number}")
        until(lambda: len(handled) == 20, "both deliver")
        assert "paused g on t" in run(one, "group", "pause", "g")
        until(lambda: subscription(other)["paused"], "it is paused at the other one")
        for number in range(20):
            send(servers[number % 2], f"meanwhile {number}", idempotency_key=f"meanwhile {number}")
        until(lambda: subscription(other)["lag"] >= 20, "they wait")
        assert len(handled) == 20
        other.kill()
        other.start()
        assert len(handled) == 20, "also after a restart"
        assert "resumed g on t" in run(other, "group", "resume", "g")
        until(lambda: len(handled) == 40, lambda: f"all are delivered: {len(handled)}")
        until(lambda: not subscription(one)["paused"], "it is not paused at the first one either")
    finally:
        for client in clients:
            client.stop()
    assert handled.total() - len(handled) <= 20, "only what was not acknowledged came again"


def test_delays_are_held_at_one_server_and_released_at_the_other(servers: list[RealServer]) -> None:
    one, other = servers
    run(one, "delay", "hold", "t")
    until(lambda: other.admin("GET", "topics", "t")["hold_delays"], "they are held at the other one")
    numbers = count()
    sent = {delay(servers[index % 2], numbers, delay_ms=1)[0] for index in range(40)}

    def waiting(*holders: RealServer) -> int:
        """How many wait in the shards of these servers."""
        answers = [server.request("GET", "/delay?forwarded=1") for server in holders]
        return sum(int(answer["topics"].get("t", 0)) for status, answer in answers if status == 200)

    until(lambda: waiting(*servers) >= 40, lambda: f"all wait: {waiting(*servers)}")
    one.kill()
    until(lambda: waiting(other) >= 40, lambda: f"the other one has all shards: {waiting(other)}")
    one.start()
    assert one.bodies("t") == []
    assert "released" in run(one, "delay", "release", "t")
    until(lambda: sent <= set(other.bodies("t")), "they fire")
    until(lambda: waiting(*servers) == 0, "nothing waits")
    assert max(Counter(other.bodies("t")).values()) == 1, "once"


def test_dead_letters_are_resent_at_the_server_that_is_left(servers: list[RealServer]) -> None:
    one, other = servers
    subscribe(servers, "else")
    letters_sent = Counter(map(str, range(LETTERS)))
    bury(one, "g", "t", list(letters_sent))
    until(lambda: letters(other, "g") == LETTERS, "they are seen at the other one")
    planned = plan(one, "dead_letters", "resend", {"group": "g"})
    start(one, planned, rate=20)

    def changed(server: RealServer) -> int:
        status, row = server.request("GET", f"/operations/{planned['id']}")
        return int(row["changed"]) if status == 200 else 0

    until(lambda: changed(other) >= 20, "the other one shows how far it is")
    one.kill()
    until(
        lambda: other.admin("GET", "operations", planned["id"])["state"] == "interrupted",
        "its process does not come back",
        seconds=INTERRUPTED_S,
    )
    start(other, planned)
    row = wait_for(other, planned)
    assert (row["changed"], row["skipped"], row["remaining"]) == (LETTERS, {}, 0)
    assert letters(other, "g") == 0
    one.start()
    until(lambda: letters(one, "g") == 0)
    bodies: Counter[str] = Counter()
    with Consumer(one.address("consumer"), "g", ["t"], linger_ms=50) as consumer:

        def is_all() -> bool:
            for message in consumer.pull(200, timeout_ms=1_000):
                bodies[message.text()] += 1
                message.ack()
            return bodies.total() >= LETTERS

        until(is_all, lambda: f"each comes again: {bodies.total()}")
    assert bodies == letters_sent, "once"
    others: Counter[str] = Counter()
    with Consumer(other.address("consumer"), "else", ["t"], linger_ms=50) as consumer:

        def has_drained() -> bool:
            messages = consumer.pull(200, timeout_ms=1_000)
            for message in messages:
                others[message.text()] += 1
                message.ack()
            return not messages and len(others) == LETTERS

        until(has_drained)
    assert others == letters_sent, "what is resent to one group does not go to another"


def test_viewers_of_both_servers_see_what_happens_at_either(servers: list[RealServer]) -> None:
    one, other = servers
    subscribe(servers, "g")
    with watching(one) as at_one, watching(other) as at_other:
        before = {id(viewer): next(viewer.snapshots())["versions"] for viewer in (at_one, at_other)}
        run(one, "topic", "create", "new")
        for number in range(10):
            send(one, str(number), idempotency_key=str(number))
        for viewer in (at_one, at_other):
            assert any(_shows(snapshot, before[id(viewer)]) for snapshot in viewer.snapshots())
        other.terminate()
        events = list(iter(at_other.read_event, None))
        assert events[-1] == ("end", {"reason": "the server is stopping"})


def _shows(snapshot: dict[str, Any], before: dict[str, int]) -> bool:
    """Whether a snapshot has the new topic, and the ten messages that the group has not consumed."""
    lags = {(row["group"], row["topic"]): row["lag"] for row in snapshot["behind"] or ()}
    return snapshot["versions"]["topics"] != before["topics"] and lags.get(("g", "t"), 0) >= 10
