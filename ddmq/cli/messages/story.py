"""The output of `ddmq message --story`: a message's time, span by span, for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from ddmq.cli.output import GAP, hint, line_width, print_facts, print_line, print_table
from ddmq.moments import format_moment
from ddmq_common.plain_text import plain

COLUMNS = ("from", "seconds", "what", "who", "why")
DATE_AND_TIME = 23  # characters of a moment without its zone
DATE = 10  # characters of its date
ENDS = {
    "done": "acknowledged", "dead": "dead letter", "passed": "finished undelivered",
    "rolled_back": "rolled back with its transaction", "cancelled": "cancelled before it was due",
}  # fmt: skip


class StoryRow(NamedTuple):
    """One span of a story, or its total. Times are in milliseconds, `at_ms` since the epoch."""

    at_ms: int
    ms: int
    what: str
    who: str
    why: str


def print_story(story: Mapping[str, Any]) -> None:
    """Print a story: a heading, a table for each group, and notes."""
    facts = {"id": story["id"], "topic": story["topic"]}
    if "offset" in story:
        facts["place"] = f"queue {story['queue']}, offset {story['offset']}"
    if story["key"]:
        facts["key"] = story["key"]
    print_facts(facts | {"sent": format_moment(story["sent_ms"]), "trace events": story["trace_events"]})
    for one in story["stories"]:
        print_line("")
        _print_one(one, story["now_ms"])
    for caveat in story["notes"]:
        hint(f"note: {caveat}")


def _print_one(one: Mapping[str, Any], now_ms: int) -> None:
    """Print the spans of one group: as a table if it fits into the terminal, else with details below each."""
    rows = [
        StoryRow(span["start_ms"], span["ms"], _span_text(span), span["who"], span["why"])
        for span in one["spans"]
    ]
    end_ms = now_ms if one["ended_ms"] is None else one["ended_ms"]
    rows.append(StoryRow(end_ms, one["whole_ms"], f"in all: {_end(one)}", "", one["end_why"]))
    title, width = one["group"] or "on its way", line_width()
    cells = [[_format_time(row.at_ms), _format_seconds(row.ms), row.what, row.who, row.why] for row in rows]
    widths = [max(len(plain(text)) for text in column) for column in zip(COLUMNS, *cells, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) <= width:
        print_table(title, COLUMNS, cells)
        return
    for line in fold_rows(title, rows, width):
        print_line(line)


def fold_rows(title: str, rows: Sequence[StoryRow], width: int) -> list[str]:
    """Return the lines of a story for a narrow terminal: time, seconds and what it was; below that, indented,
    who and why. Only a word that is longer than the rest of a line exceeds `width`."""
    moments = [_format_time(row.at_ms) for row in rows]
    days = {moment[:DATE] for moment in moments}
    if len(days) == 1:  # then the title has the date
        title, moments = f"{title}, {moments[0][:DATE]}", [moment[DATE + 1 :] for moment in moments]
    seconds = [_format_seconds(row.ms) for row in rows]
    at_width, seconds_width = max(map(len, moments)), max(len(COLUMNS[1]), *map(len, seconds))
    before = at_width + seconds_width + 2 * GAP
    lines = [title, f"{COLUMNS[0]:<{at_width}}  {COLUMNS[1]:>{seconds_width}}  {COLUMNS[2]}"]
    for row, moment, duration in zip(rows, moments, seconds, strict=True):
        texts = _fold_text(row.what, width - before)
        for text in filter(None, (row.who, row.why)):
            texts += [" " * GAP + line for line in _fold_text(text, width - before - GAP)]
        lines.append(f"{moment:<{at_width}}  {duration:>{seconds_width}}  {texts[0]}")
        lines += [" " * before + text for text in texts[1:]]
    return lines


def _fold_text(text: str, width: int) -> list[str]:
    lines = wrap(plain(text), max(width, 1), break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def _span_text(span: Mapping[str, Any]) -> str:
    return span["what"] if span["known"] else f"? {span['what']}"


def _end(one: Mapping[str, Any]) -> str:
    if one["end"] is not None:
        return ENDS.get(str(one["end"]), str(one["end"]))
    return f"now: {one['state']}" if one["state"] else "now"


def _format_time(wall_ms: int) -> str:
    return format_moment(wall_ms)[:DATE_AND_TIME]


def _format_seconds(ms: int) -> str:
    return f"{ms / 1000:,.3f}"
