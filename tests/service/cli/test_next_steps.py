"""What commands say so that the next step is known: nothing there, nothing changed, somebody else has it."""

from __future__ import annotations

from pathlib import Path

from click.shell_completion import ShellComplete

from ddmq.cli.root import root
from ddmq_client import Consumer
from tests.scenarios.real_server import RealServer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


def test_the_shell_completes_topics_and_groups_of_the_server(shell: Shell, topic: str) -> None:
    def completed(*words: str) -> list[str]:
        completions = ShellComplete(root, {}, "ddmq", "_DDMQ_COMPLETE").get_completions(
            list(words[:-1]), words[-1]
        )
        return [item.value for item in completions]

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
