"""`ddmq tx`: what is open is listed and shown, at any process; an operator's word ends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.real_server import RealServer, running
from tests.service.cli.conftest import Shell
from tests.support.installations import Installation
from tests.support.transaction_calls import COMMIT, TransactionCalls, message, new_id
from tests.support.waits import until

DEAD = "TRANS_CHECK_MAX_TIME_TOPIC"


@pytest.fixture
def calls(shell: Shell) -> Iterator[TransactionCalls]:
    transactions = TransactionCalls(shell.server.ports["producer"])
    yield transactions
    transactions.close()


def bodies(shell: Shell, topic: str) -> list[str]:
    return [row["body"] for row in shell.json("message", topic, "--count", "100")]


def begun(calls: TransactionCalls, topic: str, *texts: bytes, group: str = "bank") -> str:
    transaction = new_id()
    sent = [message(topic, text, key="k1", tags="red") for text in texts]
    assert calls.prepare_when_owned(transaction, *sent, group=group).code == 0
    return transaction


def test_open_ones_are_listed_and_shown(shell: Shell, topic: str, calls: TransactionCalls) -> None:
    group = f"g-{topic}"[:100]
    assert shell("tx", "list", "--group", group) == ""
    assert shell.error.startswith(f"no open transactions of producer group {group}: ")
    first = begun(calls, topic, b"one", b"two\nlines", group=group)
    second = begun(calls, topic, b"three", group=group)
    answer = shell.json("tx", "list", "--group", group)
    assert [row["transaction"] for row in answer["transactions"]] == [first, second]
    row = answer["transactions"][0]
    assert (row["group"], row["messages"], row["checks"], row["topics"]) == (group, 2, 0, [topic])
    assert first in shell("tx", "list", "--group", group)
    shell("tx", "list", "--group", group, "--count", "1")
    assert shell.error == "2 open; --count shows more\n"
    shown = shell("tx", "show", first)
    assert all(text in shown for text in ("two\\nlines", "open", group, "k1"))
    answer = shell.json("tx", "show", first)
    assert [row["preview"] for row in answer["contents"]] == ["one", "two\nlines"]
    assert answer["owner"] == f"127.0.0.1:{shell.server.ports['producer']}"


def test_an_operator_commits_and_rolls_back(
    shell: Shell, topic: str, calls: TransactionCalls, engine: str
) -> None:
    committed, dropped = begun(calls, topic, b"kept"), begun(calls, topic, b"dropped")
    assert shell("tx", "commit", committed, "--yes") == f"committed: transaction {committed} of group bank\n"
    assert shell.json("tx", "rollback", dropped, "--yes")["state"] == "rolled back"
    assert bodies(shell, topic) == ["kept"]
    assert calls.end(committed, COMMIT).outcome == 1
    if engine != "kafka":  # nothing finds how one ended there
        shown = shell("tx", "show", committed)
        assert "committed" in shown
        assert shell.json("tx", "commit", committed, "--yes")["state"] == "committed"
        assert "was committed" in shell.refused("tx", "rollback", committed, "--yes")


def test_without_a_yes_nothing_happens(
    shell: Shell, topic: str, calls: TransactionCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    transaction = begun(calls, topic, b"x")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    shell("tx", "commit", transaction, code=1)
    assert "nothing was done" in shell.error
    assert shell.json("tx", "show", transaction)["state"] == "open"


def test_missing_transactions_are_an_error(shell: Shell) -> None:
    never = new_id()
    assert "not known" in shell.refused("tx", "show", never)
    assert "not known" in shell.refused("tx", "commit", never, "--yes")
    assert "UUID of version 7" in shell.refused("tx", "show", "nonsense")
    status, answer = shell.server.request("POST", f"/transactions/{never}", body={"action": "destroy"})
    assert status == 400
    assert "commit, rollback" in str(answer)


@pytest.mark.slow
def test_every_process_tells_and_ends_them(installation: Installation, tmp_path: Path) -> None:
    with running(tmp_path, installation=installation) as server:
        other = RealServer(tmp_path, command="consumer", installation=installation)
        try:
            other.start()
            calls = TransactionCalls(server.ports["producer"])
            transaction = begun(calls, "orders", b"x")
            until(
                lambda: other.admin("GET", "transactions", transaction)["state"] == "open",
                "it has heard of it",
            )
            row = other.admin("POST", "transactions", transaction, body={"action": "commit"})
            assert row["state"] == "committed"
            assert calls.end(transaction, COMMIT).code == 0
            calls.close()
        finally:
            other.end()


def test_dead_ones_are_read_like_any_topic(shell: Shell, topic: str, calls: TransactionCalls) -> None:
    transaction = begun(calls, topic, f"of {topic}".encode())
    shell("topic", "delete", topic, "--yes")
    until(lambda: shell.server.request("GET", f"/topics/{topic}")[0] == 404, "the topic is gone")
    answer = calls.end(transaction, COMMIT)
    assert (answer.code, answer.outcome) == (11, 5)
    rows = shell.lines("pull", "TRANS_CHECK_MAX_TIME_TOPIC", "--group", f"d-{topic}"[:100], "--count", "100")
    (letter,) = [row for row in rows if row.get("body") == f"of {topic}"]
    assert letter["properties"]["dead-letter-reason"] == "topic gone"
    assert letter["properties"]["dead-letter-transaction"] == transaction


def test_dead_transactions_are_shown_resent_and_purged(
    shell: Shell, topic: str, calls: TransactionCalls, engine: str
) -> None:
    transaction = new_id()
    sent = [message(topic, b"one", key="k1"), message(topic, b"later", properties={"DELAY": "3"})]
    assert [calls.prepare(transaction, one).code for one in sent] == [0, 0]
    dropped = begun(calls, topic, b"dropped")
    shell("topic", "delete", topic, "--yes")
    until(lambda: shell.server.request("GET", f"/topics/{topic}")[0] == 404, "the topic is gone")
    for one in (transaction, dropped):
        assert calls.end(one, COMMIT).outcome == 5
    (row,) = shell.json("dlq", "list", DEAD)
    assert (row["topic"], row["letters"] >= 3) == (DEAD, True)
    shown = shell.json("dlq", "show", DEAD, "--topic", topic, "--count", "1000")["shown"]
    first, later, last = shown
    assert [one["preview"] for one in shown] == ["one", "later", "dropped"]
    assert [one["transaction"] for one in shown] == [transaction, transaction, dropped]
    assert [one["delay"] for one in shown] == ["", "level 3", ""]
    assert f"(transaction {transaction})" in shell("dlq", "show", DEAD, "--topic", topic)
    if engine != "kafka":  # nothing finds how one ended there
        assert "dead letter" in shell("tx", "show", transaction)
        assert f"`ddmq dlq show {DEAD}`" in shell.error
    resend = "dlq", "resend", DEAD, "--offset", str(first["offset"])
    shell(*resend, code=1)
    assert "does not exist any more" in shell.error
    shell("topic", "create", topic)
    output = f"resent 1 to {topic}, which no group consumes yet\n"
    assert output == shell(*resend, "--offset", str(later["offset"]), code=1)
    assert "1: it was to be delivered later" in shell.error
    (resent,) = shell.json("message", topic, "--count", "100")
    assert (resent["body"], resent["key"], resent["properties"]) == ("one", "k1", {"dead-letter-resent": "1"})
    shell(*resend, code=1)
    assert "no letter that waits" in shell.error
    left = shell.json("dlq", "show", DEAD, "--topic", topic, "--count", "1000")["shown"]
    assert [one["offset"] for one in left] == [later["offset"], last["offset"]]
    shell("dlq", "purge", DEAD, "--all", "--yes")
    assert shell.json("dlq", "list", DEAD)[0]["letters"] == 0
    assert bodies(shell, topic) == ["one"]
