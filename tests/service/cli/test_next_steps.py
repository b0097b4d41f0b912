"""What commands say so that the next step is known: nothing there, nothing changed, somebody else has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from ddmq.cli.root import root
from ddmq_client import Consumer
from tests.scenarios.real_server import RealServer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


def test_a_group_that_is_there_is_not_said_to_be_made(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    assert f"consumes {topic}, from first" in shell(
        "group", "create", topic, "--topic", topic, "--start", "first"
    )
    said = shell("group", "create", topic, "--topic", topic, "--topic", "owned", "--tags", "a")
    assert f"{topic} consumes owned, from last\n" in said
    assert f"{topic} consumes {topic} already, nothing is changed\n" in said
    assert f"ddmq group set {topic} --topic {topic}" in shell.error
    tags = {each["topic"]: each["filter"] for each in shell.json("group", "show", topic)["subscriptions"]}
    assert tags == {topic: "*", "owned": "a"}


def test_dead_letters_and_none(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    settings = ("--start", "first", "--retry-steps", "0", "--retry-intervals-ms", "")
    shell("group", "set", topic, "--topic", topic, *settings)
    shell("send", topic, "one")
    address = f"127.0.0.1:{shell.server.ports['consumer']}"
    with Consumer(address, topic, [topic], handler=lambda message: message.fail(), linger_ms=50):
        until(lambda: any(row["letters"] for row in shell.json("dlq", "list", topic)), "it is a dead letter")
    shell("dlq", "list", topic)
    assert "ddmq dlq show GROUP" in shell.error
    shell("dlq", "show", topic)
    assert f"ddmq dlq resend {topic} --all" in shell.error
    assert "no such dead letter" in shell("dlq", "show", topic, "--reason", "timed-out")
    shell("group", "show", topic)
    assert "1 dead letter:" in shell.error
    shell("dlq", "resend", topic, "--all")
    assert f"no dead letter of {topic} waits" in shell("dlq", "show", topic)


def test_an_instance_of_a_broadcasting_group_is_pulled_without_making_a_group(
    shell: Shell, topic: str
) -> None:
    shell("topic", "create", topic)
    shell("group", "set", topic, "--topic", topic, "--model", "broadcasting")
    shell("pull", topic, "--group", topic, code=1)
    assert f"{topic}%INSTANCE" in shell.error
    name = f"{topic}%me"
    shell("pull", topic, "--group", name)
    assert f"no messages for instance {name}; it gets what comes from its first pull on" in shell.error
    shell("send", topic, "one")
    assert "one" in shell("pull", topic, "--group", name)
    assert "1 message, acknowledged" in shell.error
    assert name not in {row["group"] for row in shell.json("group", "list")}
    shell("pull", topic, "--group", f"ordinary%{topic}", code=1)
    assert "a name with % is not made by a pull" in shell.error


@pytest.mark.parametrize("later", [(), ("--delay", "1h")])
def test_a_topic_that_a_send_makes_is_told_once(shell: Shell, topic: str, later: tuple[str, ...]) -> None:
    for told in (True, False):
        shell("send", topic, "one", *later)
        assert (f"created topic {topic} with 4 queues" in shell.error) is told
    shell("delay", "add", f"{topic}-added", "one", "--delay", "1h")
    assert f"created topic {topic}-added" in shell.error


def test_the_shell_completes_topics_and_groups_of_the_server(shell: Shell, topic: str) -> None:
    def completed(*words: str) -> list[str]:
        found = ShellComplete(root, {}, "ddmq", "_DDMQ_COMPLETE").get_completions(list(words[:-1]), words[-1])
        return [item.value for item in found]

    shell("topic", "create", topic)
    shell("group", "set", f"{topic}-g", "--topic", topic)
    # A server that is busy for longer than a second completes nothing.
    until(lambda: completed("send", topic[:-2]) == [topic])
    until(lambda: completed("pull", topic, "--group", topic[:-2]) == [f"{topic}-g"])
    assert completed("lag", "no-such") == []
    assert completed("lag", "--admin", "127.0.0.1:1", topic) == [], "nobody answers there"


def test_blocked_keys_of_another_proxy_are_not_passed_over(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    shell("group", "set", topic, "--topic", topic, "--order-key", "KEY")
    other = RealServer(Path(shell.server.folder), shell.server.config, command="consumer").start()
    try:
        address = f"127.0.0.1:{other.ports['consumer']}"
        with Consumer(address, topic, [topic], handler=lambda message: None, linger_ms=50):
            queues = lambda: shell.json("group", "show", topic)["subscriptions"][0]["queues"]  # noqa: E731
            until(lambda: all(queue["holder"] == address for queue in queues()), "the other one has them")
            assert "is blocked at this proxy" in shell("group", "keys", topic)
            assert f"held by another proxy ({address})" in shell.error
    finally:
        other.end()
