"""`ddmq message --group` for messages that left their queue: on the retry path, or dead."""

from __future__ import annotations

from typing import Any

import pytest

from ddmq import moments
from ddmq_client import Consumer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


def refuse(message: Any) -> None:
    raise RuntimeError("not today")


@pytest.mark.parametrize(("steps", "state"), [("16", "retrying"), ("0", "dead")])
def test_where_a_failed_message_went(shell: Shell, topic: str, steps: str, state: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first",
        "--retry-intervals-ms", "", "--retry-steps", steps,
    )  # fmt: skip
    shell("send", topic, "one")
    with Consumer(f"127.0.0.1:{shell.server.ports['consumer']}", topic, topic, handler=refuse):
        until(lambda: shell.json("offset", "show", topic)[0]["committed"] == 1, "it left its queue")
        (row,) = shell.json("message", topic, "--group", topic)
    assert row["state"] == state
    if state == "retrying":
        assert row["on_retry_path"] is True
        assert row["due_ms"] > row["stored_ms"]
        output = shell("message", "--id", row["id"], "--group", topic)
        assert state in output
        assert moments.format_moment(row["due_ms"]) in output
    else:
        assert row["dead_letter_offset"] == 0
