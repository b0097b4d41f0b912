"""Operations against a real server: what the plan showed is changed, also after kill -9 and a restart."""

from __future__ import annotations

import io
import json
import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Consumer, Producer
from tests.scenarios.real_server import RealServer, running
from tests.service.cli.conftest import Shell
from tests.support.waits import until

STEPS = {"start": "first", "retry_steps": 0, "retry_intervals_ms": []}


def bury(server: RealServer, group: str, topic: str, bodies: list[str]) -> None:
    """Let a group fail messages until they are dead letters."""
    server.admin("POST", "groups", group, body={"topics": [topic]} | STEPS)
    before = letters(server, group)
    with Producer(server.address("producer"), timeout_ms=60_000) as producer:
        for body in bodies:
            producer.send(topic, body, key=body)
    failed = 0
    with Consumer(server.address("consumer"), group, [topic], linger_ms=50) as consumer:
        while failed < len(bodies):
            for message in consumer.pull(100, timeout_ms=500):
                message.fail(reason="no such customer")
                failed += 1
    until(lambda: letters(server, group) >= before + len(bodies), "they are dead letters")


def letters(server: RealServer, group: str) -> int:
    rows = server.admin("GET", "dlq")
    return sum(int(row["letters"]) for row in rows if row["group"] == group)


def plan(server: RealServer, kind: str, action: str, chosen: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"kind": kind, "action": action, "filter": chosen, **more}
    answer: dict[str, Any] = server.admin("POST", "operations", body=body)
    return answer


def start(server: RealServer, planned: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"token": planned["token"], **more}
    row: dict[str, Any] = server.admin("POST", "operations", planned["id"], "start", body=body)
    return row


def wait_for(server: RealServer, planned: dict[str, Any], state: str = "done") -> dict[str, Any]:
    def show() -> dict[str, Any] | None:
        row: dict[str, Any] = server.admin("GET", "operations", planned["id"])
        return row if row["state"] == state else None

    return until(show, f"the operation is {state}")


# --- dead letters


def test_letters_are_resent_by_command(shell: Shell, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = f"g-{topic}"
    bury(shell.server, group, topic, ["one", "two", "three"])
    output = shell("op", "plan", "dead-letters", "resend", "--group", group, "--text", "customer")
    assert "resend: 3 dead letters" in output
    assert f"reaches from {topic}: {group}" in output
    assert "no such customer" in output
    command = re.search(r"`ddmq (op start \w+ \w+)` starts it", shell.error)
    assert command is not None, shell.error
    assert letters(shell.server, group) == 3, "a plan changes nothing"
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    shell(*command[1].split(), code=1)
    assert "Resend 3 dead letters? [y/N]" in shell.error
    assert "not confirmed, nothing was done" in shell.error
    bury(shell.server, group, topic, ["later"])
    output = shell(*command[1].split(), "--yes", "--wait")
    assert "done: 3 dead letters changed, 0 remain" in output
    assert letters(shell.server, group) == 1
    (row,) = [row for row in shell.json("op", "list") if row["id"] in command[1]]
    assert (row["state"], row["changed"], row["exact"]) == ("done", 3, True)
    assert "done: 3 dead letters changed" in shell("op", "show", row["id"])
    shell(*command[1].split(), "--yes", code=1)
    assert "the operation is done; make a new plan" in shell.error


def test_letters_are_purged_by_one_command(shell: Shell, topic: str) -> None:
    group = f"g-{topic}"
    bury(shell.server, group, topic, ["one", "two"])
    options = ("--group", group, "--error", "KeyError", "--start", "--yes")
    assert "0 dead letters" in shell("op", "plan", "dead-letters", "purge", *options)
    assert "there is nothing to change" in shell.error
    options = ("--group", group, "--start", "--yes", "--wait")
    row = shell.json("op", "plan", "dead-letters", "purge", *options)
    assert (row["state"], row["changed"]) == ("done", 2)
    assert letters(shell.server, group) == 0
    assert len(shell.server.messages(topic)) == 2


def test_requests_that_are_rejected(shell: Shell, topic: str) -> None:
    server, group = shell.server, f"g-{topic}"
    bury(server, group, topic, ["one"])
    planned = plan(server, "dead_letters", "resend", {"group": group})
    path = f"/operations/{planned['id']}/start"
    for token, status in (("x", 409), (planned["id"], 409), (7, 400), (None, 400)):
        assert server.request("POST", path, {"token": token})[0] == status
    assert server.request("POST", path, {"token": planned["token"], "rate": 0})[0] == 400
    assert server.request("POST", f"/operations/{planned['id']}/stop", {})[0] == 409, "it was not started"
    for name in ("0" * 20, "..%2Fx", f"{planned['id']}%2Fprogress", "%00"):
        assert server.request("POST", f"/operations/{name}/start", {"token": "x"})[0] == 404
        assert server.request("GET", f"/operations/{name}")[0] == 404
    for chosen in ({}, {"group": ""}, {"group": group, "x": 1}, {"group": group, "offsets": ["1"]}, 5, []):
        body = {"kind": "dead_letters", "action": "purge", "filter": chosen}
        assert server.request("POST", "/operations", body)[0] == 400, chosen
    body = {"kind": "dead_letters", "action": "purge", "filter": {"group": "%DLQ%\0\x1b[2J"}}
    assert server.request("POST", "/operations", body)[0] == 404
    assert letters(server, group) == 1
    start(server, planned)
    assert wait_for(server, planned)["changed"] == 1


def test_a_wrong_token_is_reported_alone(shell: Shell, topic: str) -> None:
    shell("delay", "add", topic, "tea", "--delay", "1h")
    planned = plan(shell.server, "delays", "cancel", {"topic": topic})
    assert shell.refused("op", "start", planned["id"], "wrong", "--yes") == (
        f"the token is not that of operation {planned['id']}; `ddmq op plan` printed it behind the id, and "
        "the response to POST /operations contains it"
    )
    output = shell("op", "start", planned["id"], planned["token"], "--yes", "--wait")
    assert (
        output.index("cancel: 1 delayed message") < output.index("sample") < output.index("done: 1 delayed")
    )


def test_an_operation_continues_when_the_client_has_left(shell: Shell, topic: str) -> None:
    server, group = shell.server, f"g-{topic}"
    bury(server, group, topic, [str(number) for number in range(30)])
    planned = plan(server, "dead_letters", "resend", {"group": group})
    body = json.dumps({"token": planned["token"], "rate": 100})
    head = (
        f"POST /operations/{planned['id']}/start HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with closing(socket.create_connection(("127.0.0.1", server.ports["admin"]))) as connection:
        connection.sendall(head.encode() + body.encode())
    assert wait_for(server, planned)["changed"] == 30
    assert letters(server, group) == 0


@pytest.mark.parametrize("kills", [1, 3])
def test_every_letter_is_resent_once_over_kills(tmp_path: Path, kills: int) -> None:
    count = 600
    with running(tmp_path) as server:
        server.admin("POST", "topics", "t", body={"queues": 2})
        bury(server, "g", "t", [f"shown {number}" for number in range(count)])
        planned = plan(server, "dead_letters", "resend", {"group": "g"})
        bury(server, "g", "t", ["later 1", "later 2"])
        start(server, planned, rate=200)
        for kill in range(kills):
            until(lambda: progress(server, planned) >= (kill + 1) * count // 5, "it goes on")  # noqa: B023
            server.kill()
            server.start()
        row = wait_for(server, planned)
        assert (row["changed"], row["skipped"], row["remaining"]) == (count, {}, 0)
        assert letters(server, "g") == 2
        with Consumer(server.address("consumer"), "g", ["t"], linger_ms=50) as consumer:
            bodies: Counter[str] = Counter()
            while sum(bodies.values()) < count:
                for message in consumer.pull(200, timeout_ms=1_000):
                    bodies[message.text()] += 1
                    message.ack()
            assert consumer.pull(10, timeout_ms=300) == []
        assert bodies == {f"shown {number}": 1 for number in range(count)}


def test_an_operation_continues_after_a_planned_restart(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        bury(server, "g", "t", [str(number) for number in range(100)])
        planned = plan(server, "dead_letters", "resend", {"group": "g"})
        start(server, planned, rate=50)
        until(lambda: progress(server, planned) >= 10, "it goes on")
        server.terminate()
        assert server.wait() == 0
        server.start()
        row = wait_for(server, planned)
        assert (row["changed"], row["skipped"], letters(server, "g")) == (100, {}, 0)
        assert len(server.messages("t")) == 200


def progress(server: RealServer, planned: dict[str, Any]) -> int:
    return int(server.admin("GET", "operations", planned["id"])["changed"])


# --- keys


@pytest.fixture
def stuck(shell: Shell, topic: str) -> Iterator[dict[str, bool]]:
    """A group of the topic's name with keys a to e that fail, until the value of the key is true."""
    repaired = dict.fromkeys("abcde", False)

    def handle(message: Any) -> None:
        if not repaired[message.key]:
            raise RuntimeError(f"customer {message.key} has no address")

    shell("topic", "create", topic, "--queues", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY",
        "--ordered-deliveries-max", "-1", "--ordered-interval-ms", "600000", "--retry-intervals-ms", "",
    )  # fmt: skip
    for number in range(2):
        for key in repaired:
            shell("send", topic, f"{key}{number}", "--key", key)
    with Consumer(shell.server.address("consumer"), topic, topic, handler=handle):
        until(lambda: states(shell, topic) == dict.fromkeys(repaired, "retrying"), "they are blocked")
        yield repaired


def states(shell: Shell, group: str) -> dict[str, str]:
    return {json.loads(row["key"]): row["state"] for row in shell.json("group", "keys", group)}


def test_keys_are_parked_and_replayed_by_their_error(
    shell: Shell, topic: str, stuck: dict[str, bool]
) -> None:
    server = shell.server
    chosen = {"group": topic, "text": "has no address", "error": "RuntimeError"}
    planned = plan(server, "keys", "park", chosen)
    assert (planned["counted"], planned["exact"]) == (5, True)
    stuck["e"] = True
    shell("group", "replay", topic, "e")
    until(lambda: "e" not in states(shell, topic), "one key goes on")
    start(server, planned)
    row = wait_for(server, planned)
    assert (row["changed"], sum(row["skipped"].values())) == (4, 1)
    assert states(shell, topic) == dict.fromkeys("abcd", "parked")
    stuck.update(dict.fromkeys(stuck, True))
    options = (
        "--group",
        topic,
        "--state",
        "parked",
        "--key",
        "a",
        "--key",
        "b",
        "--start",
        "--yes",
        "--wait",
    )
    assert shell.json("op", "plan", "keys", "replay", *options)["changed"] == 2
    until(lambda: states(shell, topic) == dict.fromkeys("cd", "parked"), "two keys go on")


def test_only_the_heads_that_were_shown_are_skipped(shell: Shell, topic: str, stuck: dict[str, bool]) -> None:
    server = shell.server
    planned = plan(server, "keys", "skip", {"group": topic})
    assert planned["counted"] == 5
    shell("group", "skip", topic, "a")  # the second message of the key is its head now
    until(lambda: states(shell, topic).get("a") == "retrying", "the next one fails")
    start(server, planned)
    row = wait_for(server, planned)
    assert (row["changed"], sum(row["skipped"].values())) == (4, 1)
    shown = server.admin("GET", "dlq", topic)["shown"]
    assert sorted(letter["preview"] for letter in shown) == ["a0", "b0", "c0", "d0", "e0"]


# --- delays


def delay(server: RealServer, topic: str, count: int, **when: Any) -> list[str]:
    """Send delayed messages; return their ids."""
    with Producer(server.address("producer")) as producer:
        sent = [
            producer.send(topic, f"m{number}", key=f"k{number}", delay=timedelta(hours=1), **when)
            for number in range(count)
        ]
    return [str(each.delay_id) for each in sent]


def waiting(server: RealServer, topic: str) -> dict[str, int]:
    _, answer = server.request("GET", f"/delay/messages?topic={topic}&count=1000")
    return {row["id"]: row["due_ms"] for row in answer["messages"]}


def test_delayed_messages_are_cancelled_as_shown(shell: Shell, topic: str) -> None:
    server = shell.server
    ids = delay(server, topic, 100)
    planned = plan(server, "delays", "cancel", {"topic": topic})
    assert (planned["counted"], planned["exact"], len(planned["sample"])) == (100, True, 5)
    (later,) = delay(server, topic, 1)
    shell("delay", "reschedule", ids[0], "--delay", "2h")
    shell("delay", "cancel", ids[1])
    shell("delay", "fire", ids[2])
    start(server, planned)
    row = wait_for(server, planned)
    assert row["skipped"] == {
        "rescheduled meanwhile": 1, "cancelled meanwhile": 1, "fired meanwhile": 1,
    }  # fmt: skip
    assert (row["changed"], row["remaining"]) == (97, 0)
    assert waiting(server, topic).keys() == {ids[0], later}


def test_messages_are_cancelled_over_a_kill(tmp_path: Path) -> None:
    count = 300
    with running(tmp_path) as server:
        delay(server, "t", count)
        planned = plan(server, "delays", "cancel", {"topic": "t"})
        (later,) = delay(server, "t", 1)
        start(server, planned, rate=150)
        until(lambda: progress(server, planned) >= count // 4, "it goes on")
        server.kill()
        server.start()
        row = wait_for(server, planned)
        assert row["changed"] + sum(row["skipped"].values()) == count
        assert row["skipped"].keys() <= {"cancelled meanwhile"}, "at most the batch that was not recorded"
        assert sum(row["skipped"].values()) <= 64
        assert waiting(server, "t").keys() == {later}


def test_due_times_are_shifted_once(shell: Shell, topic: str) -> None:
    server = shell.server
    ids = delay(server, topic, 70)
    before = waiting(server, topic)
    first, last = min(before.values()), max(before.values())
    chosen = {"topic": topic, "from_ms": first, "to_ms": last + 10_000}
    planned = plan(server, "delays", "reschedule", chosen, shift_ms=5_000)
    start(server, planned)
    assert wait_for(server, planned)["changed"] == 70
    assert waiting(server, topic) == {each: before[each] + 5_000 for each in ids}


def test_delayed_messages_are_fired_by_command(shell: Shell, topic: str) -> None:
    ids = delay(shell.server, topic, 3)
    shell("delay", "list", topic)
    options = ("--topic", topic, "--key", "k1", "--start", "--yes", "--wait")
    assert shell.json("op", "plan", "delays", "fire", *options)["changed"] == 1
    assert shell.server.bodies(topic) == ["m1"]
    assert waiting(shell.server, topic).keys() == {ids[0], ids[2]}


def test_messages_of_a_held_topic_are_not_fired(shell: Shell, topic: str) -> None:
    delay(shell.server, topic, 2)
    shell("delay", "hold", topic)
    chosen = {"topic": topic}
    planned = plan(shell.server, "delays", "fire", chosen)
    assert (planned["counted"], planned["skipped"]) == (0, {"the delays of its topic are held": 2})
    assert "not changed: 2: the delays" in shell("op", "plan", "delays", "fire", "--topic", topic)
    assert "op start" not in shell.error
    shell("delay", "release", topic)
    start(shell.server, planned)
    assert wait_for(shell.server, planned)["changed"] == 0, "the plan did not show them"
    planned = plan(shell.server, "delays", "fire", chosen)
    shell("delay", "hold", topic)
    start(shell.server, planned)
    assert wait_for(shell.server, planned)["skipped"] == {"the delays of its topic are held": 2}
    shell("delay", "release", topic)
    cancelling = plan(shell.server, "delays", "cancel", chosen)
    start(shell.server, cancelling)
    assert wait_for(shell.server, cancelling)["changed"] == 2


def test_a_repeating_message_is_fired_once_and_then_cancelled(shell: Shell, topic: str) -> None:
    server = shell.server
    delay(server, topic, 1, every=timedelta(seconds=60))
    cancelling = plan(server, "delays", "cancel", {"topic": topic})
    firing = plan(server, "delays", "fire", {"topic": topic})
    start(server, firing)
    assert wait_for(server, firing)["changed"] == 1
    until(lambda: server.bodies(topic) == ["m0"], "one delivery")
    start(server, cancelling)
    assert wait_for(server, cancelling)["changed"] == 1
    assert waiting(server, topic) == {}


# --- a process for each component


def test_operations_reach_the_other_processes(tmp_path: Path) -> None:
    with running(tmp_path, processes=True) as server:
        ids = delay(server, "later", 70)
        planned = plan(server, "delays", "cancel", {"topic": "later", "key": "k7"})
        assert (planned["counted"], planned["exact"]) == (1, True)
        start(server, planned)
        assert wait_for(server, planned)["changed"] == 1
        assert waiting(server, "later").keys() == set(ids) - {ids[7]}
        bury(server, "g", "t", ["one", "two"])
        planned = plan(server, "dead_letters", "resend", {"group": "g"})
        start(server, planned)
        assert wait_for(server, planned)["changed"] == 2
        server.kill()
        server.start()
        assert server.admin("GET", "operations", planned["id"])["state"] == "done"
