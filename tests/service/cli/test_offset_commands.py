"""`ddmq offset …` against a real server with clients connected."""

from __future__ import annotations

import io
from collections import Counter

import pytest

from ddmq_client import Consumer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


@pytest.fixture
def ten(shell: Shell, topic: str) -> str:
    """A topic of one queue with ten messages, and a group of the same name at its first."""
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "create", topic, "--topic", topic, "--start", "first")
    shell("send", topic, *(f"m{number}" for number in range(10)))
    return topic


def committed(shell: Shell, name: str) -> int:
    (row,) = shell.json("offset", "show", name)
    return int(row["committed"])


def test_a_text_without_end_is_no_offset(shell: Shell, ten: str) -> None:
    error = shell.refused("offset", "reset", ten, "--topic", ten, "--to", "9" * 5_000)
    assert "first, last, an offset" in error


def test_after_a_reset_messages_are_redelivered_to_a_connected_client(shell: Shell, ten: str) -> None:
    got: Counter[int] = Counter()
    address = f"127.0.0.1:{shell.server.ports['consumer']}"
    with Consumer(address, ten, ten, handler=lambda message: got.update([message.offset])):
        until(lambda: committed(shell, ten) == 10, "all are finished")
        done = shell.json("offset", "reset", ten, "--topic", ten, "--to", "4", "--yes")
        assert (done["again"], done["passed_over"]) == (6, 0)
        until(lambda: all(got[offset] == 2 for offset in range(4, 10)), "they come again")
        assert all(got[offset] == 1 for offset in range(4))
        until(lambda: committed(shell, ten) == 10, "all are finished again")


def test_acknowledgements_from_before_a_reset_change_nothing(shell: Shell, ten: str) -> None:
    first: list[object] = []
    redelivered: Counter[int] = Counter()
    address = f"127.0.0.1:{shell.server.ports['consumer']}"

    def hold(message: object) -> None:
        if len(first) < 10:
            first.append(message)
        else:
            redelivered.update([message.offset])  # type: ignore[attr-defined]

    with Consumer(address, ten, ten, handler=hold, auto_ack=False):
        until(lambda: len(first) == 10, "all are held")
        shell("offset", "reset", ten, "--topic", ten, "--to", "first", "--yes")
        until(lambda: len(redelivered) == 10, "all come again, without waiting for the lease to end")
        for message in first:
            message.ack()  # type: ignore[attr-defined]
        ignored = f'ddmq_results_ignored_total{{group="{ten}",reason="late"}} 10'
        until(lambda: ignored in str(shell.server.request("GET", "/metrics")[1]), "they are counted as late")
        assert committed(shell, ten) == 0


def test_a_message_says_where_it_is_for_the_group(shell: Shell, ten: str) -> None:
    def states() -> list[str]:
        return [row["state"] for row in shell.json("message", ten, "--group", ten)]

    assert states() == ["not yet"] * 10
    address = f"127.0.0.1:{shell.server.ports['consumer']}"

    def some(message: object) -> None:
        if message.offset == 2:  # type: ignore[attr-defined]
            message.fail(delay_ms=600_000)  # type: ignore[attr-defined]
        elif message.offset != 5:  # type: ignore[attr-defined]
            message.ack()  # type: ignore[attr-defined]

    with Consumer(address, ten, ten, handler=some, auto_ack=False):
        expected = ["done"] * 2 + ["retrying"] + ["done"] * 2 + ["in flight"] + ["done"] * 4
        until(lambda: states() == expected, "each has its state")
        assert "in flight" in shell("message", ten, "--group", ten)
    error = shell.refused("message", ten, "--group", "nobody")
    assert "'nobody' does not exist" in error


def test_a_reset_asks_first(shell: Shell, ten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    before = shell.json("offset", "show", ten)
    shell("offset", "reset", ten, "--topic", ten, "--to", "last", code=1)
    assert "messages are passed over" in shell.error
    assert "nothing was done; --yes does not ask" in shell.error
    assert shell.json("offset", "show", ten) == before
