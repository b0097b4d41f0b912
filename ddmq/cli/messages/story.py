"""The output of `ddmq message --story`: a message's time, span by span, for each group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddmq.cli.output import hint, print_facts, print_table, say
from ddmq.moments import format_moment

COLUMNS = ("from", "seconds", "what", "who", "why")
DATE_AND_TIME = 23  # characters of a moment without its zone
ENDS = {
    "done": "acknowledged", "dead": "dead letter", "passed": "finished undelivered",
    "rolled_back": "rolled back with its transaction", "cancelled": "cancelled before it was due",
}  # fmt: skip


def print_story(story: Mapping[str, Any]) -> None:
    """Print a story: a heading, a table for each group, and notes."""
    facts = {"id": story["id"], "topic": story["topic"]}
    if "offset" in story:
        facts["place"] = f"queue {story['queue']}, offset {story['offset']}"
    if story["key"]:
        facts["key"] = story["key"]
    print_facts(facts | {"sent": format_moment(story["sent_ms"]), "trace events": story["trace_events"]})
    for one in story["stories"]:
        say("")
        _print_one(one, story["now_ms"])
    for note in story["notes"]:
        hint(f"note: {note}")


def _print_one(one: Mapping[str, Any], now_ms: int) -> None:
    rows = [
        [
            _format_time(span["start_ms"]),
            _format_seconds(span["ms"]),
            _span_text(span),
            span["who"],
            span["why"],
        ]
        for span in one["spans"]
    ]
    end_ms = now_ms if one["ended_ms"] is None else one["ended_ms"]
    rows.append(
        [_format_time(end_ms), _format_seconds(one["whole_ms"]), f"in all: {_end(one)}", "", one["end_why"]]
    )
    print_table(one["group"] or "on its way", COLUMNS, rows)


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
