"""Dead letters by command: shown, sent again once, purged; against a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from ddmq_client import Consumer, Message
from tests.scenarios.real_server import RealServer, ddmq, running
from tests.service.cli.conftest import Shell
from tests.support.installations import Installation
from tests.support.waits import until

Bury = Callable[..., str]


@pytest.fixture
def bury(shell: Shell, topic: str) -> Bury:
    """Let a group fail messages of the test's topic; gives the group's name."""

    def bury(*bodies: str, group: str = f"g-{topic}", key: str = "k") -> str:
        shell.server.admin(
            "POST",
            "groups",
            group,
            body={"topics": [topic], "start": "first", "retry_steps": 0, "retry_intervals_ms": []},
        )
        for body in bodies:
            shell("send", topic, body, "--queue", "0", "--key", key, "--property", "colour=red")
        with Consumer(consumers(shell), group, [topic], linger_ms=50) as consumer:
            failed: list[bytes] = []
            until(lambda: _fail(consumer, failed) >= len(bodies), "they were delivered")
        until(lambda: _row(shell, group).get("letters", 0) >= len(bodies), "they are dead letters")
        return group

    return bury


def consumers(shell: Shell) -> str:
    return f"127.0.0.1:{shell.server.ports['consumer']}"


def _fail(consumer: Consumer, failed: list[bytes]) -> int:
    for message in consumer.pull(10, timeout_ms=200):
        failed.append(message.body)
        message.fail()
    return len(failed)


def _row(shell: Shell, group: str) -> dict[str, object]:
    return next(iter(shell.json("dlq", "list", group)), {})


def bodies(shell: Shell, topic: str) -> list[str]:
    return [row["body"] for row in shell.json("message", topic, "--count", "100")]


def finish(shell: Shell, group: str, topic: str, count: int) -> list[str]:
    """The bodies that a group gets and acknowledges, until there are so many."""
    got: list[str] = []

    def handle(message: Message) -> None:
        got.append(message.text())

    with Consumer(consumers(shell), group, [topic], handler=handle, linger_ms=50):
        until(lambda: len(got) >= count, "they come")
        until(lambda: lag(shell, group) == 0, "nothing is left")
    return got


def lag(shell: Shell, group: str) -> int:
    return sum(int(row["lag"]) for row in shell.json("lag", group))


def test_another_group_gets_letters_only_on_request(shell: Shell, topic: str, bury: Bury) -> None:
    """The bad release of one group is no reason to do the work of the others twice."""
    group = bury("one", "two", "three")
    other = f"other-{topic}"
    shell("group", "set", other, "--topic", topic, "--start", "first")
    assert finish(shell, other, topic, 3) == ["one", "two", "three"]
    shell("dlq", "resend", group, "--offset", "0", "--offset", "1")
    shell("send", topic, "four", "--queue", "0")
    assert finish(shell, other, topic, 1) == ["four"], "it has read past the two"
    assert finish(shell, group, topic, 3) == ["one", "two", "four"]
    dry = shell("dlq", "resend", group, "--all", "--to-topic", "--dry-run")
    assert dry == f"would resend 1 to {topic}, for every group there: {group}, {other}\n"
    answer = shell.json("dlq", "resend", group, "--all", "--to-topic")
    assert answer["reached"] == {topic: {"count": 2, "groups": [group, other]}}
    assert finish(shell, other, topic, 1) == ["three"]
    assert finish(shell, group, topic, 1) == ["three"]


def test_letters_are_searched_by_hostile_text_and_counted(shell: Shell, topic: str, bury: Bury) -> None:
    hostile = "\x1b[31m'; DROP &text=x#%00 \u202e é"
    group = bury("plain", hostile, key="k&count=1#")
    server = shell.server

    def search(path: str, **query: str) -> Any:
        status, answer = server.request("GET", f"/dlq/{quote(group, safe='')}{path}?{urlencode(query)}")
        assert status == 200, answer
        return answer

    for text, offsets in ((hostile, [1]), ("k&count=1#", [0, 1]), ("%", [1]), ("none of it", [])):
        answer = search("", text=text, order="newest")
        assert [row["offset"] for row in answer["shown"]] == offsets[::-1], text
        counts = search("/facets", text=text)
        assert (counts["counted"], counts["exact"]) == (len(offsets), True)
    for query, error in (
        ("order=up", "order is 'up'; allowed: oldest, newest"),
        ("text=", "text is ''; allowed: a text of 1 to 200 characters"),
        ("until=1", "'until' is no query name of this request; did you mean 'until_ms'?"),
        ("from=x", "from is 'x'"),
    ):
        status, answer = server.request("GET", f"/dlq/{group}/facets?{query}")
        assert (status, error in str(answer)) == (400, True), answer
    status, answer = server.request("GET", "/dlq/nobody%2F..%2F/facets")
    assert status == 404


def test_with_an_order_key_a_letter_comes_after_those_of_its_key(shell: Shell, topic: str) -> None:
    settings = ("--order-key", "KEY", "--retry-intervals-ms", "", "--ordered-deliveries-max", "1")
    shell("group", "set", topic, "--topic", topic, "--start", "first", *settings)
    for body in ("a1", "a2", "b1"):
        shell("send", topic, body, "--queue", "0", "--key", body[0])
    with Consumer(consumers(shell), topic, [topic], handler=lambda one: one.fail(), linger_ms=50):
        until(lambda: _row(shell, topic).get("letters", 0) == 3, "they are dead letters")
    shell("send", topic, "a3", "--queue", "0", "--key", "a")
    shell("dlq", "resend", topic, "--all")
    shell("send", topic, "a4", "--queue", "0", "--key", "a")
    got = finish(shell, topic, topic, 5)
    assert [body for body in got if body[0] == "a"] == ["a3", "a1", "a2", "a4"]
    assert sorted(got) == ["a1", "a2", "a3", "a4", "b1"]


def test_the_story_of_a_resent_letter_continues_for_its_group_alone(
    shell: Shell, topic: str, bury: Bury, engine: str
) -> None:
    group, other = bury("one"), f"other-{topic}"
    shell("group", "set", other, "--topic", topic, "--start", "first")
    assert finish(shell, other, topic, 1) == ["one"]
    shell("dlq", "resend", group, "--all")
    assert finish(shell, group, topic, 1) == ["one"]
    assert finish(shell, other, topic, 0) == []
    if engine == "kafka":  # finds no copy of a message by its id
        return
    row = shell.json("message", topic, "--queue", "0", "--offset", "0")[0]
    stories = {one["group"]: one for one in shell.json("message", "--id", row["id"], "--story")["stories"]}
    whys = {name: " ".join(span["why"] for span in one["spans"]) for name, one in stories.items()}
    assert f"sent again from the dead letters to this group alone, to {topic} 0/1" in whys[group]
    assert "dead letters" not in whys[other]
    assert stories[other]["state"] == stories[group]["state"] == "done"
    states = [
        shell.json("message", topic, "--queue", "0", "--offset", "1", "--group", name)[0]["state"]
        for name in (group, other)
    ]
    assert states == ["done", "resent to another group alone"]


def test_the_question_of_a_purge_says_what_it_is_about(shell: Shell, bury: Bury) -> None:
    def purge(group: str, *which: str, code: int = 1) -> str:
        admin = f"127.0.0.1:{shell.server.ports['admin']}"
        done = ddmq("dlq", "purge", group, *which, "--admin", admin, stdin=b"")
        assert (done.returncode, "not confirmed" in done.stderr) == (code, bool(code))
        return done.stderr if code else done.stdout + done.stderr

    group = bury("one")
    assert f"Purge the only dead letter of {group}? It is not sent again." in purge(group, "--all")
    question = f"Purge the only dead letter of {group}, if it was stored before +1h? It is not sent again."
    assert question in purge(group, "--before", "+1h")
    assert _row(shell, group)["letters"] == 1
    assert bury("two") == group
    until(lambda: _row(shell, group)["letters"] == 2, "there are two")
    assert f"Purge dead letters of {group}, all 2? They are not sent again." in purge(group, "--all")
    question = f"Purge those of the 2 dead letters of {group} stored before 1000? They are not sent again."
    assert question in purge(group, "--before", "1000")
    assert shell("dlq", "purge", group, "--all", "--yes") == f"purged 2 dead letters of {group}\n"
    for which in (("--all",), ("--before", "1000")):
        output = purge(group, *which, code=0)
        hint = f"`ddmq dlq show {group}` shows those that wait, with their times\n"
        assert output == f"purged 0 dead letters of {group}\n{hint}", "nothing is asked about nothing"


def test_dead_letter_counts_are_right_after_a_restart(
    installation: Installation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Column "dead": those that are open, whoever counted them. "since this proxy started": those alone."""
    with running(tmp_path / "data", installation=installation) as server:
        shell = shell_at(server, capsys, monkeypatch)
        shell("topic", "create", "orders")
        body = {"topics": ["orders"], "start": "first", "retry_steps": 0, "retry_intervals_ms": []}
        server.admin("POST", "groups", "billing", body=body)
        shell("send", "orders", "one")
        with Consumer(consumers(shell), "billing", ["orders"], linger_ms=50) as consumer:
            failed: list[bytes] = []
            until(lambda: _fail(consumer, failed), "it was delivered")
        until(lambda: _row(shell, "billing").get("letters"), "it is a dead letter")
        became = r"^became dead letters +{} since this proxy started$".format
        assert_open_dead_letters(shell, 1, became(1))
        server.kill()
        server.start()
        shell = shell_at(server, capsys, monkeypatch)
        assert_open_dead_letters(shell, 1, became(0))
        shell("dlq", "resend", "billing", "--all")
        assert_open_dead_letters(shell, 0, became(0))


def shell_at(
    server: RealServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    for component, port in server.ports.items():
        monkeypatch.setenv(f"DDMQ_{component.upper()}", f"127.0.0.1:{port}")
    monkeypatch.setenv("COLUMNS", "100")
    return Shell(server, capsys)


def assert_open_dead_letters(shell: Shell, dead: int, became: str) -> None:
    """Everywhere the same: the columns of `stats` and `group list`, and both lines of `group show`."""
    (group,) = (row for row in shell.json("group", "list") if row["group"] == "billing")
    assert group["dead_letters_open"] == dead
    for command in (("stats",), ("group", "list")):
        lines = shell(*command).splitlines()
        (head,) = (line for line in lines if "later  dead" in line)
        (row,) = (line for line in lines if line.startswith("billing"))
        assert row[: head.index("dead") + len("dead")].split()[-1] == str(dead), command
    assert re.search(became, shell("group", "show", "billing"), re.MULTILINE)
    assert ("1 dead letter: `ddmq dlq show billing`" in shell.error) is bool(dead)


def test_a_reason_that_no_dead_letter_has_is_refused(shell: Shell, bury: Bury) -> None:
    group = bury("one")
    for command in ("show", "resend"):
        error = shell.refused("dlq", command, group, "--reason", "fialed", code=2)
        assert "'fialed' is not one of 'failed', 'timed-out', 'given-up', 'skipped', 'topic gone'" in error
    assert len(shell.json("dlq", "show", group, "--reason", "failed")["shown"]) == 1
