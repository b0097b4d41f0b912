"""A key that is stuck, as an operator finds it and lets it go on: real server, connected client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from ddmq.cli.admin_client import AdminClient
from ddmq.cli.root import root
from ddmq_client import Consumer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


class Stuck:
    """A group ordered by message key whose handler fails key `bad` until it is repaired."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.shell = shell
        self.name = name
        self.repaired = False
        self.got: list[str] = []

    def handle(self, message: Any) -> None:
        if message.key == "bad" and not self.repaired:
            raise RuntimeError("no such customer")
        self.got.append(message.body.decode())

    def keys(self) -> list[dict[str, Any]]:
        return list(self.shell.json("group", "keys", self.name))

    def states(self) -> list[str]:
        return [key["state"] for key in self.shell.json("group", "keys", self.name)]


@pytest.fixture
def stuck(shell: Shell, topic: str) -> Iterator[Stuck]:
    shell("topic", "create", topic, "--queues", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY",
        "--ordered-deliveries-max", "-1", "--ordered-interval-ms", "600000", "--retry-intervals-ms", "",
    )  # fmt: skip
    for body in ("bad-1", "good-1", "bad-2", "good-2"):
        shell("send", topic, body, "--key", body.partition("-")[0])
    consumer = Stuck(shell, topic)
    with Consumer(f"127.0.0.1:{shell.server.ports['consumer']}", topic, topic, handler=consumer.handle):
        until(lambda: consumer.got == ["good-1", "good-2"], "the other key goes on")
        until(lambda: consumer.keys() and consumer.keys()[0]["state"] == "retrying", "the key is blocked")
        yield consumer


def test_show_says_which_key_is_blocked_and_why(stuck: Stuck) -> None:
    (key,) = stuck.keys()
    assert (key["key"], key["topic"], key["queue_id"], key["offset"]) == ('"bad"', stuck.name, 0, 0)
    assert (key["attempts"], key["waiting"], key["more"]) == (1, 1, False)
    assert "no such customer" in key["error"]
    shown = stuck.shell("group", "show", stuck.name)
    for text in (
        "blocked keys",
        '"bad"',
        "retrying",
        f"{stuck.name}/0/0",
        "no such customer",
        "KEY over the group",
    ):
        assert text in shown, shown
    assert "ddmq group skip" in stuck.shell.error
    states = [row["state"] for row in stuck.shell.json("message", stuck.name, "--group", stuck.name)]
    assert states == ["retrying", "done", "behind its key", "done"]


@pytest.mark.parametrize("action", ["park", "skip", "replay"])
def test_the_shell_completes_blocked_keys(stuck: Stuck, action: str) -> None:
    def completed(group: str, key: str) -> list[str]:
        shell = ShellComplete(root, {}, "ddmq", "_DDMQ_COMPLETE")
        return [item.value for item in shell.get_completions(["group", action, group], key)]

    assert completed(stuck.name, "") == completed(stuck.name, "ba") == ["bad"]
    assert completed(stuck.name, "good") == []
    assert completed("no-such-group", "") == []


def test_only_keys_that_a_shell_takes_as_they_are_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ('"a-1"', "17", '"$(x)"', '"a b"', '"--yes"', '["a"]', '"a\\nb"', "orders/0")
    monkeypatch.setattr(AdminClient, "get", lambda *_, **__: [{"key": text} for text in texts])
    shell = ShellComplete(root, {}, "ddmq", "_DDMQ_COMPLETE")
    completions = [item.value for item in shell.get_completions(["group", "park", "g"], "")]
    assert completions == ["17", "a-1", "orders/0"]


def test_replay_delivers_at_once(stuck: Stuck) -> None:
    stuck.repaired = True
    output = stuck.shell("group", "replay", stuck.name, "bad")
    assert output.startswith('"bad" goes on')
    until(lambda: stuck.got[2:] == ["bad-1", "bad-2"], "the key goes on, in order")
    until(lambda: stuck.keys() == [], "nothing is blocked")


def test_skip_makes_a_dead_letter_and_delivers_the_next(stuck: Stuck) -> None:
    stuck.repaired = True
    stuck.shell("group", "skip", stuck.name, '"bad"')
    until(lambda: stuck.got[2:] == ["bad-2"], "the next message of the key comes")
    until(lambda: stuck.shell.json("group", "show", stuck.name)["dead_letters_open"] == 1, "a dead letter")
    states = [row["state"] for row in stuck.shell.json("message", stuck.name, "--group", stuck.name)]
    assert states == ["dead", "done", "done", "done"]


def test_a_parked_key_waits_until_it_is_replayed(stuck: Stuck) -> None:
    stuck.repaired = True
    stuck.shell("group", "park", stuck.name, "bad")
    until(lambda: stuck.keys()[0]["state"] == "parked", "it is parked")
    stuck.shell("send", stuck.name, "good-3", "--key", "good")
    until(lambda: stuck.got[2:] == ["good-3"], "others go on")
    assert stuck.shell.server.admin("GET", "groups", stuck.name)["blocked_keys"][0]["state"] == "parked"
    stuck.shell("group", "replay", stuck.name, "bad")
    until(lambda: stuck.got[3:] == ["bad-1", "bad-2"], "it goes on where it was")


def test_a_key_that_no_client_pulls_can_be_listed_and_skipped(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY")
    shell("group", "park", topic, "50")
    shell("send", topic, "a50", "b50", "c50", "--key", "50")
    assert re.search(rf'"50" +– +0 +parked \(operator\) +{topic}/0/0 +2 ', shell("group", "keys", topic))
    shell("group", "skip", topic, "50")
    (key,) = shell.json("group", "keys", topic)
    assert (key["offset"], key["waiting"], key["since_ms"]) == (1, 1, 0)
    assert key == shell.json("group", "show", topic)["blocked_keys"][0]


def test_an_empty_pull_names_parked_keys(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY")
    for key in ("50", "51"):
        shell("send", topic, f"a{key}", "--key", key)
        shell("group", "park", topic, key)
        assert shell("pull", topic, "--group", topic) == ""
        keys = 'key "50" is' if key == "50" else '2 keys ("50", "51") are'
        assert shell.error == (
            f"no messages for group {topic}; {keys} parked until an operator replays or skips: "
            f"`ddmq group keys {topic}`\n"
        )


def test_keys_that_are_parked_at_once_are_all_parked(shell: Shell, topic: str) -> None:
    shell("group", "set", topic, "--topic", topic, "--order-key", "KEY")
    names = [f"key-{number}" for number in range(24)]

    def act(action: str) -> None:
        def one(key: str) -> None:
            shell.server.admin("POST", "groups", topic, "keys", body={"action": action, "key": key})

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(one, names))

    act("park")
    keys = shell.json("group", "keys", topic, "--count", "100")
    assert {key["key"] for key in keys} == {f'"{name}"' for name in names}
    act("replay")
    assert shell.json("group", "keys", topic) == []


def test_keys_that_wait_to_be_pulled_are_not_among_the_blocked(stuck: Stuck) -> None:
    """The topic `idle` shares the keys' chains, and nobody pulls it."""
    shell, idle = stuck.shell, f"{stuck.name}-idle"
    shell("topic", "create", idle, "--queues", "1")
    shell("group", "set", stuck.name, "--topic", idle, "--start", "first", "--order-key", "KEY")
    for number in range(2):
        shell("send", idle, f"new-{number}", "--key", "new")
    until(lambda: len(stuck.keys()) == 2, "both are in the list")
    assert stuck.states() == ["retrying", "ready"]
    for command in ("keys", "show"):
        shown = shell("group", command, stuck.name)
        blocked, ready = shown.split("not pulled yet, with others of their key behind them\n")
        assert '"bad"' in blocked
        assert '"new"' not in blocked
        assert '"new"' in ready.splitlines()[1]
    stuck.repaired = True
    shell("group", "replay", stuck.name, "bad")
    until(lambda: stuck.states() == ["ready"], "one is left")
    assert shell("group", "keys", stuck.name).startswith(f"no key of {stuck.name} is blocked at this proxy\n")
    assert "blocked keys" not in shell("group", "show", stuck.name)


class Hung:
    """A client of a group ordered by message key that has the first message of key `a` and never answers."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.shell = shell
        self.name = name
        self.released = Event()
        self.got: list[tuple[str, int | None]] = []

    def handle(self, message: Any) -> None:
        self.got.append((message.body.decode(), message.attempt))
        self.released.wait(60)

    def key(self) -> dict[str, Any]:
        (row,) = self.shell.json("group", "keys", self.name)
        return dict(row)


@pytest.fixture
def hung(shell: Shell, topic: str) -> Iterator[Hung]:
    shell("topic", "create", topic, "--queues", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY",
        "--ack-timeout-ms", "600000",
    )  # fmt: skip
    for body in ("one", "two"):
        shell("send", topic, body, "--key", "a")
    consumer = Hung(shell, topic)
    address = f"127.0.0.1:{shell.server.ports['consumer']}"
    with Consumer(address, topic, topic, handler=consumer.handle, client_id="billing-7f9", threads=1):
        until(lambda: consumer.got and shell.json("group", "keys", topic), "it has the first message")
        yield consumer
        consumer.released.set()


def test_keys_of_all_groups_are_shown_by_error(stuck: Stuck) -> None:
    shell, name = stuck.shell, stuck.name
    output = shell("keys", "--group", name)
    assert re.search(r"RuntimeError +1 +1 +\d+ (ms|s|m)", output), output
    assert re.search(rf'{name} +"bad" +\d+ (ms|s|m) +1 +retrying +{name}/0/0 +1 ', output), output
    answer = shell.json("keys", "--group", name, "--error", "RuntimeError", "--text", "no such")
    (row,) = answer["keys"]
    assert (row["group"], row["key"], row["attempts"], row["error_class"]) == (
        name,
        '"bad"',
        1,
        "RuntimeError",
    )
    assert row["failing_since_ms"] == row["since_ms"] > 0
    assert (answer["total"], answer["exact"], answer["next"], answer["missing"]) == (1, True, None, [])
    assert name in {each["group"] for each in shell.json("keys", "--count", "1000")["keys"]}
    assert (
        shell("keys", "--group", name, "--state", "parked")
        == "no such key is blocked or parked at this proxy\n"
    )
    assert "does not exist" in shell.refused("keys", "--group", f"no-{name}")


def test_requests_for_keys_that_are_wrong(shell: Shell) -> None:
    for query, error in (
        ("state=stuck", "state is 'stuck'; allowed: ready, in flight"),
        ("after=%00%ff", "allowed: `next` of an earlier answer"),
        ("count=-1", "count is '-1'"),
        ("text=", "text is ''; allowed: a text of 1 to 200 characters"),
        ("grup=x", "did you mean 'group'?"),
    ):
        status, answer = shell.server.request("GET", f"/keys?{query}")
        assert (status, error in answer["error"]) == (400, True), answer
    status, _ = shell.server.request("GET", "/keys?group=%1B%5B2J%27")
    assert status == 404
    assert shell.server.request("GET", "/keys?count=0&text=%27%3B--")[1]["keys"] == []


def test_a_group_that_nobody_pulls_is_named(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY")
    shell("send", topic, "a", "--key", "a")
    output = shell("keys", "--group", topic)
    assert output == "no such key is blocked or parked at this proxy\n"
    assert shell.error == (
        f"without the keys of {topic} on {topic} (queues 0): no client pulls: `ddmq group keys {topic}` "
        "loads the keys of one group\n"
    )


def test_the_client_with_a_message_in_flight_is_shown_with_its_lease_end(hung: Hung) -> None:
    for command in ("keys", "show"):
        output = hung.shell("group", command, hung.name)
        assert re.search(
            r'"a" +.* in flight +\S+/0/0 +1 +billing-7f9 \(127\.0\.0\.1:\d+\) +in 9 m', output
        ), output
        assert "--take-away" in hung.shell.error
    key = hung.key()
    assert (key["client"], key["extended"]) == ("billing-7f9", False)
    assert 0 < key["until_ms"] - key["leased_ms"] <= 600_000


def test_a_replay_does_not_claim_what_it_has_not_done(hung: Hung) -> None:
    shell, name = hung.shell, hung.name
    output = shell.refused("group", "replay", name, "a")
    assert re.match(rf'"a": its first message \({name}/0/0\) is in flight with billing-7f9 \(127', output), (
        output
    )
    assert "its lease ends in 9 m" in output
    assert "--take-away" in output
    done = shell.json("group", "replay", name, "a", code=1)
    assert [head["outcome"] for head in done["heads"]] == ["in flight"]
    assert hung.key()["attempts"] == 1
    output = shell("group", "park", name, "a")
    assert output.startswith('parked "a"')
    assert "is in flight with billing-7f9" in shell.error
    output = shell("group", "replay", name, "a")
    assert output.startswith('"a" is not parked any more; its first message')
    assert "is in flight with billing-7f9" in output


def test_a_message_can_be_withdrawn_from_a_client_that_hangs(hung: Hung) -> None:
    shell, name = hung.shell, hung.name
    output = shell("group", "replay", name, "a", "--take-away")
    assert re.match(
        rf'"a" goes on; its first message \({name}/0/0\) is taken from billing-7f9 \(127', output
    ), output
    assert "may still be handling it" in shell.error
    # The pull of the client that hangs may get it first. It then hands it back after a second.
    rows = until(lambda: shell.lines("pull", name, "--group", name, "--count", "1"), "another client gets it")
    assert [(row["body"], row["attempt"]) for row in rows] == [("one", 2)]
    hung.released.set()
    until(lambda: [body for body, _ in hung.got] == ["one", "two"], "the next one follows, the first once")


def test_a_skip_names_the_client_that_may_go_on(hung: Hung) -> None:
    shell, name = hung.shell, hung.name
    output = shell("group", "skip", name, "a")
    assert output == f'skipped the first message of "a" ({name}/0/0); `ddmq dlq show {name}` has it\n'
    assert "billing-7f9" in shell.error
    assert "may still be handling it; its answer does not count any more" in shell.error
