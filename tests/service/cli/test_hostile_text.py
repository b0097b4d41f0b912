"""Texts of others through every command: nothing of them is more than text, and no command stumbles over it.

Every leaf of the command tree stands in READS, ACTS or APART; a new command without one fails a test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import click
import pytest

from ddmq.cli.root import COMMANDS, Tree, root
from ddmq_client import Consumer, Producer, PullError
from tests.scenarios.real_server import RealServer
from tests.service.cli.conftest import Shell
from tests.service.cli.terminal import Terminal, acts
from tests.support.transaction_calls import TransactionCalls, message, new_id
from tests.support.waits import until

NASTY = (
    "\x1b]0;pwned\x07\x1b[2J\x1b[8m\x9b5m\x85"
    "\nFORGED line\r\tb\x00\x7f [/nope] [red]x[/red] [link=http://x.example]y[/link] "
    ":smile: \u202eevil\u2066\u2028"
)
TOPIC, GROUP, ORDERED = "hostile-text", "hostile-dead", "hostile-ordered"
ESCAPED = "[/nope] [red]x[/red]"  # of NASTY, whole where such a text is shown


class Case(NamedTuple):
    """A command line; `seen`: whether the hostile text is among what it shows."""

    line: tuple[str, ...]
    is_shown: bool = True


READS = {
    "message": [
        Case(("message", TOPIC)),
        Case(("message", TOPIC, "--count", "1")),
        Case(("message", f"%DLQ%{GROUP}")),
        Case(("message", TOPIC, "--key", NASTY)),
        Case(("message", TOPIC, "--group", GROUP)),
    ],
    "tail": [
        Case(("tail", TOPIC, "--no-follow")),
        Case(("tail", TOPIC, "--no-follow", "--key", NASTY, "--grep", NASTY)),
        Case(("tail", TOPIC, "--no-follow", "--grep", "absent" + NASTY), is_shown=False),
    ],
    "pull": [
        Case(("pull", TOPIC, "--group", "hostile-pull")),
        Case(("pull", f"%DLQ%{GROUP}", "--group", "hostile-pull-letters", "--no-ack")),
    ],
    "dlq list": [Case(("dlq", "list"), is_shown=False)],
    "dlq show": [Case(("dlq", "show", GROUP)), Case(("dlq", "show", GROUP, "--newest", "--text", "[/nope]"))],
    "dlq facets": [Case(("dlq", "facets", GROUP), is_shown=False)],
    "delay list": [Case(("delay", "list", TOPIC))],
    "delay show": [Case(("delay", "show", "{delay_id}"))],
    "delay count": [Case(("delay", "count"), is_shown=False)],
    "delay levels": [Case(("delay", "levels"), is_shown=False)],
    "group list": [Case(("group", "list"), is_shown=False)],
    "group show": [Case(("group", "show", GROUP)), Case(("group", "show", ORDERED))],
    "group keys": [Case(("group", "keys", ORDERED))],
    "keys": [Case(("keys",)), Case(("keys", "--group", ORDERED, "--text", "[/nope]"))],
    "offset show": [Case(("offset", "show", GROUP), is_shown=False)],
    "topic list": [Case(("topic", "list"), is_shown=False)],
    "topic show": [Case(("topic", "show", TOPIC), is_shown=False)],
    "tx list": [Case(("tx", "list"), is_shown=False)],
    "tx show": [Case(("tx", "show", "{transaction}"))],
    "findings": [Case(("findings",), is_shown=False)],
    "lag": [Case(("lag",), is_shown=False)],
    "stats": [Case(("stats",), is_shown=False)],
    "op plan": [
        Case(("op", "plan", "dead-letters", "resend", "--group", GROUP)),
        Case(("op", "plan", "keys", "park", "--group", ORDERED)),
        Case(("op", "plan", "delays", "cancel", "--topic", TOPIC)),
        Case(("op", "plan", "retries", "now", "--group", GROUP, "--id", NASTY), is_shown=False),
    ],
    "op list": [Case(("op", "list"), is_shown=False)],
    "changes": [Case(("changes",), is_shown=False)],
    "clients": [Case(("clients",), is_shown=False), Case(("clients", NASTY), is_shown=False)],
    "processes": [Case(("processes",), is_shown=False)],
    "config running": [Case(("config", "running"), is_shown=False)],
    "log show": [Case(("log", "show"), is_shown=False)],
    "topic search": [Case(("topic", "search", TOPIC, "--text", "[/nope]"), is_shown=False)],
    "group retries": [Case(("group", "retries", GROUP), is_shown=False), Case(("group", "retries", NASTY))],
    "delay histogram": [
        Case(("delay", "histogram"), is_shown=False),
        Case(("delay", "histogram", NASTY), is_shown=False),
    ],
    "auth usage": [Case(("auth", "usage"), is_shown=False)],
    "doctor": [Case(("doctor", "--config", NASTY.replace("\0", "")))],
}
ACTS = {  # what they refuse or do with a hostile name or value
    "config show": [Case(("config", "show", "--config", NASTY.replace("\0", "")), is_shown=False)],
    "send": [
        Case(("send", NASTY, "x"), is_shown=False),
        Case(("send", TOPIC, NASTY, "--key", NASTY), is_shown=False),
    ],
    "delay add": [Case(("delay", "add", NASTY, "x", "--delay", "1s"), is_shown=False)],
    "delay cancel": [Case(("delay", "cancel", NASTY, NASTY))],
    "delay fire": [Case(("delay", "fire", NASTY, NASTY))],
    "delay reschedule": [Case(("delay", "reschedule", NASTY, "--delay", "9s"), is_shown=False)],
    "delay hold": [Case(("delay", "hold", NASTY))],
    "delay release": [Case(("delay", "release", NASTY))],
    "delay backup": [Case(("delay", "backup", "/dev/null/" + NASTY.replace("\0", "")))],
    "delay restore": [Case(("delay", "restore", NASTY.replace("\0", ""), "--data-dir", "x"))],
    "topic create": [Case(("topic", "create", NASTY), is_shown=False)],
    "topic set": [Case(("topic", "set", NASTY, "--queues", "2"))],
    "topic delete": [Case(("topic", "delete", NASTY, "--yes"))],
    "group create": [Case(("group", "create", NASTY, "--topic", TOPIC), is_shown=False)],
    "group set": [
        Case(("group", "set", NASTY, "--topic", TOPIC), is_shown=False),
        Case(("group", "set", "hostile-sql", "--topic", TOPIC, "--sql", f"a = '{NASTY}'"), is_shown=False),
    ],
    "group delete": [Case(("group", "delete", NASTY, "--yes"))],
    "group park": [Case(("group", "park", ORDERED, NASTY))],
    "group pause": [Case(("group", "pause", NASTY))],
    "group resume": [Case(("group", "resume", NASTY))],
    "group replay": [Case(("group", "replay", ORDERED, NASTY))],
    "group skip": [Case(("group", "skip", ORDERED, NASTY))],
    "offset reset": [Case(("offset", "reset", GROUP, "--topic", TOPIC, "--to", NASTY))],
    "op show": [Case(("op", "show", NASTY))],
    "op start": [Case(("op", "start", NASTY, NASTY, "--yes"))],
    "op stop": [Case(("op", "stop", NASTY))],
    "tx commit": [Case(("tx", "commit", NASTY, "--yes"))],
    "tx rollback": [Case(("tx", "rollback", NASTY, "--yes"))],
    "dlq resend": [Case(("dlq", "resend", GROUP, "--reason", NASTY), is_shown=False)],
    "dlq export": [Case(("dlq", "export", NASTY), is_shown=False)],
    "log clean": [Case(("log", "clean", "--before", NASTY))],
    "auth explain": [Case(("auth", "explain", NASTY, "send", NASTY, "--config", "conf"), is_shown=False)],
    "undo": [Case(("undo", NASTY))],
    "console": [Case(("console", "--admin", NASTY))],
    "dlq purge": [Case(("dlq", "purge", NASTY, "--all", "--yes"))],
}
APART = {
    "serve", "producer", "consumer", "delay-service",  # they print `ready`; their log has a test below
    "demo", "bench", "completion", "kafka up", "kafka down", "kafka status",  # they say nothing of others
    "auth identities", "auth token", "secure init", "secure renew",  # of files that the operator writes
    "move",  # of two installations, none of which is the server's: tests/service/move
    "report",  # its terminal form: tests/unit/metrics_job
}  # fmt: skip
CASES = [
    pytest.param(case, id=re.sub(r"[^A-Za-z0-9%-]+", " ", " ".join(case.line))[:50])
    for cases in (READS | ACTS).values()
    for case in cases
]


def test_every_command_has_its_case() -> None:
    names = set()
    for name in COMMANDS:
        assert isinstance(root, Tree)
        command = root.get_command(click.Context(root), name)
        subcommands = command.commands if isinstance(command, click.Group) else None
        names |= (
            {name}
            if subcommands is None
            else {
                f"{name} {subcommand}"
                for subcommand, each in subcommands.items()
                if not each.hidden  # an old name of one
            }
        )
    assert names == READS.keys() | ACTS.keys() | APART


@pytest.fixture(scope="module")
def hostile(server: RealServer) -> Iterator[dict[str, str]]:
    """Hostile text in every field that a client can fill; a delay's id, and that of an open transaction."""
    ports = server.ports
    server.admin("POST", "topics", TOPIC, body={"queues": 1})
    settings = {"topics": [TOPIC], "start": "first", "retry_intervals_ms": []}
    server.admin("POST", "groups", GROUP, body=settings | {"retry_steps": 0})
    slow = {"order_key": "KEY", "ordered_interval_ms": 600_000, "ordered_deliveries_max": -1}
    server.admin("POST", "groups", ORDERED, body=settings | slow)
    with Producer(f"127.0.0.1:{ports['producer']}") as producer:
        for body in (NASTY, "second " + NASTY):
            producer.send(TOPIC, body, key=NASTY, tags=NASTY, properties={NASTY: NASTY, "b": NASTY})
        later = producer.send(
            TOPIC, NASTY, key=NASTY, tags=NASTY, properties={NASTY: NASTY}, delay=timedelta(hours=3)
        )
    address = f"127.0.0.1:{ports['consumer']}"
    for group in (GROUP, ORDERED):
        with Consumer(address, group, [TOPIC], client_id=NASTY, linger_ms=50, auto_ack=False) as consumer:
            for message in until(lambda: consumer.pull(1, timeout_ms=500), "delivered"):
                message.fail(reason=NASTY)
    until(lambda: server.admin("GET", "dlq", GROUP)["shown"], "the letter")
    until(lambda: server.admin("GET", "groups", ORDERED, "keys"), "the key")
    assert later.delay_id is not None
    ids = {"{delay_id}": later.delay_id, "{transaction}": _open_transaction(ports["producer"])}
    with Consumer(address, GROUP, [TOPIC], client_id=NASTY, tags="x\x1b[2J\nFORGED") as consumer:
        with pytest.raises(PullError, match="the pull states tags"):
            consumer.pull(1, timeout_ms=5_000)
        yield ids  # a client that has stopped is not listed


def _open_transaction(port: int) -> str:
    calls, transaction = TransactionCalls(port), new_id()
    sent = message(TOPIC, NASTY.encode(), key=NASTY, tags=NASTY, properties={NASTY.encode(): NASTY.encode()})
    assert calls.prepare_when_owned(transaction, sent).code == 0
    calls.close()
    return transaction


def _line(case: Case, ids: dict[str, str]) -> list[str]:
    return [ids.get(word, word) for word in case.line]


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_text_is_text(
    case: Case, hostile: dict[str, str], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, written = Terminal(monkeypatch)(*_line(case, hostile))
    assert code in (0, 1, 2)
    assert acts(written) == []
    assert not case.is_shown or ESCAPED in written, written


@pytest.mark.parametrize("case", CASES[: sum(map(len, READS.values())) - 1])
def test_json_is_harmless_too(
    case: Case, hostile: dict[str, str], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, written = Terminal(monkeypatch)(*_line(case, hostile), "--json")
    assert code == 0 or case.line == ("findings",), "which tells by its exit code whether there are some"
    assert acts(written) == []
    for line in written.splitlines():
        json.loads(line)


@pytest.mark.parametrize("case", [*READS["tail"][:2], READS["pull"][0]])
def test_hostile_properties_are_shown_as_text(
    case: Case, hostile: dict[str, str], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [word.replace("hostile-pull", "hostile-properties") for word in case.line]
    _, written = Terminal(monkeypatch)(*line)
    assert acts(written) == []
    properties = re.findall(r" properties=\{(.*?)\}  ", written)
    assert len(properties) == 2
    assert all(shown.count(ESCAPED) == 3 for shown in properties), properties


def test_json_means_what_was_sent(hostile: dict[str, str], shell: Shell) -> None:
    row = shell.json("message", TOPIC, "--queue", "0", "--offset", "0", "--count", "1")[0]
    assert (row["key"], row["tags"], row["properties"]["b"]) == (NASTY, NASTY, NASTY)
    assert row["body"].endswith(NASTY)


def test_the_log_has_no_line_of_others(hostile: dict[str, str], shell: Shell) -> None:
    lines = shell.server.log.split("\n")
    assert [line for line in lines if "FORGED" in line], "the client's text is in the log"
    assert acts(shell.server.log) == []
