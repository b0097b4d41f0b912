"""The picture of order: keys over time, for the terminal and for the page."""

from __future__ import annotations

import pytest

from metrics_job.report.core.order import KeyEvent, KeyMark, OrderPhase, OrderPicture, Outage, draw_order
from metrics_job.report.sections import _order_card
from metrics_job.report.terminal import order_lines

STORED, FINISHED, FAILED = KeyMark.STORED, KeyMark.FINISHED, KeyMark.FAILED


def picture() -> OrderPicture:
    """Key `bad` fails three times, is blocked meanwhile, and finishes in the end; `good` goes on."""
    events = [
        KeyEvent(0, "bad", STORED), KeyEvent(0, "good", STORED), KeyEvent(50, "good", FINISHED),
        *(KeyEvent(at_ms, "bad", FAILED) for at_ms in (40, 60, 80)),
        KeyEvent(70, "good", FINISHED), KeyEvent(100, "bad", FINISHED),
    ]  # fmt: skip
    drawn = draw_order(events, [Outage(10, 30)], [OrderPhase(0, "one"), OrderPhase(40, "<two>")])
    assert drawn is not None
    return drawn


def test_the_key_that_failed_comes_first_and_is_blocked_between_its_failures() -> None:
    drawn = picture()
    assert [(row.name, row.blocked) for row in drawn.rows] == [("bad", [(40, 80)]), ("good", [])]
    marks = ["".join(" ░·█✗"[mark] for mark in drawn.marks_of(row, 10)) for row in drawn.rows]
    assert marks == ["░   ✗·✗·✗█", "░    █ █  "]


def test_stretches_join_equal_marks_and_cover_what_the_marks_cover() -> None:
    drawn = picture()
    stretches = drawn.stretches_of(drawn.rows[1], 10)
    assert [(stretch.mark, round(stretch.start, 2), stretch.width) for stretch in stretches] == [
        (STORED, 0.0, 0.1), (FINISHED, 0.5, 0.1), (FINISHED, 0.7, 0.1),
    ]  # fmt: skip


def test_one_failure_blocks_nothing_and_other_keys_share_a_row() -> None:
    events = [KeyEvent(n, f"k{n:02}", FINISHED) for n in range(20)] + [KeyEvent(5, "x", FAILED)]
    drawn = draw_order(events)
    assert drawn is not None
    assert drawn.rows[0].name == "x"
    assert drawn.rows[0].blocked == []
    assert (drawn.rows[-1].name, drawn.rows[-1].keys) == ("13 other keys", 13)
    assert sum(len(row.events) for row in drawn.rows) == len(events)


def test_without_events_there_is_no_picture() -> None:
    assert draw_order([], [Outage(1, 2)]) is None


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_terminal_shows_a_row_a_key_with_the_kill_and_no_line_is_too_wide(width: int) -> None:
    lines = [line.plain for line in order_lines(picture(), width)]
    assert max(map(len, lines)) <= max(width, 47)  # the legend takes 47
    assert lines[0].split() == ["one", "<two>"]
    assert lines[1].index("▼") == lines[2].index("┃") == lines[3].index("┃")
    assert [line.split()[0] for line in lines[2:4]] == ["bad", "good"]
    assert lines[2].count("✗") == 3
    assert lines[4].split() == ["0", "s", "100", "ms"]


def test_names_in_the_picture_are_text_and_never_tags_or_escapes() -> None:
    drawn = draw_order([KeyEvent(0, "<b>\x1b[31m", FINISHED), KeyEvent(1, "k", FINISHED)])
    assert drawn is not None
    assert "<b>" not in _order_card(drawn)
    assert not any("\x1b" in line.plain for line in order_lines(drawn, 80))


def test_the_card_has_a_row_per_key_and_names_blocked_keys() -> None:
    card = _order_card(picture())
    assert card.count('class="keyrow"') == 2
    assert "While bad was blocked, the other keys went on." in card
    assert card.count('class="killed" style="left:10.00%;width:20.00%"') == 2
    assert "&lt;two&gt;" in card
