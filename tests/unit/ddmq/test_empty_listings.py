"""Where a command has nothing to show, it says what is empty and what to do next, without a bare heading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ddmq.cli.admin_client import AdminClient
from ddmq.cli.root import run

COMPLETE = {"orders_waiting": 0, "elsewhere": [], "not_open": []}
NO_DELAYS = {"messages": [], "next": None} | COMPLETE
GROUP = {
    "group": "g", "subscriptions": [], "dead_letters_open": 0, "blocked_keys": [], "clients": [],
    "differences": [],
}  # fmt: skip
Answers = Mapping[tuple[str, ...], Any]


@pytest.mark.parametrize(
    ("command", "answers", "printed", "hint"),
    [
        ("topic list", {("topics",): []}, "", "no topics yet: `ddmq topic create NAME`"),
        ("group list", {("groups",): []}, "", "no groups yet: `ddmq group create NAME --topic TOPIC`"),
        ("lag", {("lag",): []}, "", "`ddmq pull TOPIC --group NAME`"),
        ("offset show g", {("groups", "g", "offsets"): []}, "", "`ddmq group show g` lists its topics"),
        ("dlq list", {("dlq",): []}, "", "no dead letters: every message was finished"),
        ("dlq list g", {("dlq",): [], ("dlq", "g"): {}}, "", "no dead letters of group g; `ddmq lag g`"),
        (
            "dlq show g",
            {("dlq", "g"): {"shown": [], "next": None}},
            "no dead letter of g waits to be resent or purged\n",
            "`ddmq dlq list` shows which groups",
        ),
        (
            "dlq facets g",
            {("dlq", "g", "facets"): {"counted": 0, "next": None}},
            "no dead letter of g waits to be resent or purged\n",
            "`ddmq dlq list` shows which groups",
        ),
        (
            "tx list",
            {("transactions",): {"transactions": [], "open": 0, "whole": True}},
            "",
            "no open transactions: each is committed or rolled back; `ddmq dlq show TRANS_CHECK",
        ),
        (
            "group keys g",
            {("groups", "g", "keys"): [], ("groups", "g"): GROUP},
            "no key of g is blocked at this proxy\n",
            "group g has no order key, so no message waits for another one; `ddmq group set g",
        ),
        (
            "delay list t",
            {("delay", "messages"): NO_DELAYS, ("delay", "levels"): []},
            "",
            "nothing waits for topic t; `ddmq delay add t BODY --delay 90s`",
        ),
        (
            "delay count",
            {("delay",): {"topics": {}, "pending": 0, "shards": []} | COMPLETE, ("delay", "levels"): []},
            "0 in all\n",
            "nothing waits; `ddmq delay add TOPIC BODY",
        ),
        (
            "delay levels",
            {("delay", "levels"): [{"level": 1, "delay_ms": 1_000, "waiting": 0}]},
            "",
            "`ddmq send TOPIC BODY --delay-level N` uses one",
        ),
        (
            "tail t --no-follow",
            {("topics", "t"): {"messages": 0, "by_queue": []}},
            "",
            "topic t is empty; `ddmq send t hello`",
        ),
        ("message t", {("topics", "t", "messages"): []}, "", "no message in topic 't'; `ddmq send t hello`"),
        (
            "delay cancel --topic t --yes",
            {("delay", "messages"): NO_DELAYS},
            "0 cancelled\n",
            "nothing waits for topic t; `ddmq delay list`",
        ),
        (
            "delay cancel --topic t --dry-run",
            {("delay", "messages"): NO_DELAYS},
            "would cancel 0 for topic t\n",
            "nothing waits for topic t; `ddmq delay list`",
        ),
        (
            "dlq purge g --all",
            {("dlq", "g"): {"letters": 0}},
            "purged 0 dead letters of g\n",
            "`ddmq dlq show g` shows those that wait",
        ),
        ("config show --changed", {}, "", "every setting has its default"),
    ],
)
def test_it_says_what_is_empty_and_what_to_do_next(
    command: str,
    answers: Answers,
    printed: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(AdminClient, "get", lambda _, *path, **query: answers[path])
    run(command.split())
    shown = capsys.readouterr()
    assert shown.out == printed
    assert hint in shown.err
    run([*command.split(), "--json"])
    assert capsys.readouterr().err.removeprefix("Error: ").partition(";")[0] in hint, (
        "programs get the answer alone"
    )


def test_delay_count_names_topics_whose_due_messages_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overview = {"topics": {"t": 3}, "pending": 3, "shards": [], "set_aside": {"t": "no leader"}} | COMPLETE
    answers: Answers = {("delay",): overview, ("delay", "levels"): []}
    monkeypatch.setattr(AdminClient, "get", lambda _, *path, **query: answers[path])
    assert run(["delay", "count"]) == 0
    assert "due messages of t wait until it is available: no leader\n" in capsys.readouterr().out
