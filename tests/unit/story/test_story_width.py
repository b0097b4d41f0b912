"""A story is readable at 80 columns, and uses more where the terminal has more."""

from __future__ import annotations

from typing import Any

import pytest

from ddmq.cli.messages import story

SENT_MS = 1_795_692_101_615
SPANS = [
    ("on its way into the log", 1, "shop@46ae (127.0.0.1:48750) → vm:9813", ""),
    ("behind an earlier message of its order key", 957, "vm:9813", 'key "k"'),
    ("with a client", 2, "worker-1 (127.0.0.1:50556)",
     "delivery 1 at vm:9813, lease extended 3 ×, then acknowledged"),
]  # fmt: skip


def build_answer(after_ms: int = 0) -> dict[str, Any]:
    """A story of one group; its last span begins so much later."""
    at_ms, spans = SENT_MS, []
    for what, ms, who, why in SPANS:
        spans.append({"start_ms": at_ms, "ms": ms, "what": what, "who": who, "why": why, "known": True})
        at_ms += ms
    spans[-1]["start_ms"] += after_ms
    one = {"group": "billing", "spans": spans, "ended_ms": at_ms + after_ms, "whole_ms": at_ms - SENT_MS}
    one |= {"end": "done", "end_why": "", "state": ""}
    facts = {"id": "46", "topic": "orders", "key": "", "sent_ms": SENT_MS, "trace_events": 6, "notes": []}
    return facts | {"stories": [one], "now_ms": at_ms}


def lines_at(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **how: Any
) -> list[str]:
    monkeypatch.setattr(story, "line_width", lambda: width)
    story.print_story(build_answer(**how))
    return capsys.readouterr().out.split("\n\n")[1].splitlines()


def test_at_80_columns_details_are_below_what_they_explain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    title, heading, *lines = lines_at(80, monkeypatch, capsys)
    assert max(map(len, lines)) <= 80
    assert title.startswith("billing, 2026-11-26")
    assert heading.split() == ["from", "seconds", "what"]
    shown = [line.rstrip() for line in lines]
    assert [line[12:] for line in shown] == [
        "    0.001  on its way into the log",
        "             shop@46ae (127.0.0.1:48750) → vm:9813",
        "    0.957  behind an earlier message of its order key",
        "             vm:9813",
        '             key "k"',
        "    0.002  with a client",
        "             worker-1 (127.0.0.1:50556)",
        "             delivery 1 at vm:9813, lease extended 3 ×, then",
        "             acknowledged",
        "    0.960  in all: acknowledged",
    ]


def test_the_date_stays_in_every_row_where_it_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    title, _, *lines = lines_at(80, monkeypatch, capsys, after_ms=86_400_000)
    assert title == "billing"
    assert max(map(len, lines)) <= 80
    assert {line[:7] for line in lines if line[0] != " "} == {"2026-11"}


def test_a_wide_terminal_has_one_line_for_each_span(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    title, heading, *lines = lines_at(200, monkeypatch, capsys)
    assert title.strip() == "billing"
    assert heading.split() == ["from", "seconds", "what", "who", "why"]
    assert len(lines) == len(SPANS) + 1
