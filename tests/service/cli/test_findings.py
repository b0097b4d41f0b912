"""What is wrong at a real server is one list: of `ddmq findings` and of `ddmq stats`."""

from __future__ import annotations

from typing import Any

import pytest

from ddmq_client import Consumer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


@pytest.mark.slow
def test_dead_letters_are_found_with_the_command_that_shows_them(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first", "--retry-intervals-ms", "",
        "--retry-steps", "0",
    )  # fmt: skip
    shell("send", topic, "one", "two")

    def fail(_: Any) -> None:
        raise RuntimeError("no such customer")

    def own(answer: dict[str, Any]) -> list[dict[str, Any]]:
        return [item for item in answer["items"] if item["labels"].get("group") == topic]

    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = own(shell.server.admin("GET", "findings"))
        return bool(found) and found[0]["text"].startswith("2 messages")

    with Consumer(f"127.0.0.1:{shell.server.ports['consumer']}", topic, topic, handler=fail):
        until(look, "both are dead letters, and the rules were evaluated since")
    (item,) = found
    assert (item["id"], item["severity"]) == ("DdmqDeadLetters", "warning")
    assert own(shell.json("findings", code=1)) == own(shell.json("stats")["findings"]) == [item]
    text = shell("findings", code=1)
    assert item["text"] in " ".join(text.split())
    words = item["command"].split()
    assert words == ["ddmq", "dlq", "show", topic]
    assert [letter["reason"] for letter in shell.json(*words[1:])["shown"]] == ["failed", "failed"]
    assert item["text"] in " ".join(shell("stats").split())
