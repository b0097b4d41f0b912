"""`ddmq keys`: the blocked and parked keys of all groups, by error and one by one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.operate.groups.group_show import ERROR_SHOWN, format_state
from ddmq.cli.output import hint, print_json, print_line, print_table
from ddmq.cli.values import GROUP, Integer
from ddmq.moments import format_age

STATES = ("ready", "in flight", "retrying", "parked", "being acknowledged", "to the dead letters")
KEY_COLUMNS = ("group", "key", "failing", "attempts", "state", "head", "waiting", "last error")
KEY_SPARE = ("head", "attempts", "waiting")  # left out in this order where it is narrow
ERROR_COLUMNS = ("error class", "keys", "waiting", "failing")
ERROR_ROWS = 10
REQUESTS_MAX = 40  # to count all keys
MISSING_ROWS = 10
REASONS = {
    "other proxy": "held by the proxy {holder}: ask the --admin address of that one",
    "no proxy": "no client pulls: `ddmq group keys {group}` loads the keys of one group",
    "loading": "being loaded: try again",
    "unknown": "it is not known which proxy holds them: try again",
}


@click.command("keys")
@click.option("--group", type=GROUP, help="Only keys of this group.")
@click.option(
    "--state", metavar="STATE", type=click.Choice(STATES), help="Only keys in this state: retrying, parked, …"
)
@click.option("--error", metavar="CLASS", help="Only this error class, as the first table shows it.")
@click.option("--text", metavar="TEXT", help="Only with this text in the key or the error; case matters.")
@click.option("--count", default=20, show_default=True, type=Integer(1, 1000), help="Show so many at most.")
@click.option("--after", metavar="CURSOR", help="Go on after this position, which the last page has printed.")
@admin_options
def list_keys(admin: AdminClient, as_json: bool, **query: Any) -> None:
    """List the blocked and parked order keys of all groups at this proxy, and count them by error.

    "failing": since the first failure after the last acknowledgement of the key. Keys of queues that this
    proxy does not hold are not included; the command names those with unfinished messages. `ddmq group keys
    GROUP` shows the keys of one group, also while no client pulls.

    \b
    Examples:
      ddmq keys
      ddmq keys --error ValueError --state retrying
      ddmq keys --text 4711
    """
    answer = admin.get("keys", **query)
    if as_json:
        return print_json(answer)
    now_ms = time.time() * 1000
    if answer["keys"]:
        counts = answer if answer["complete"] else _count_all(admin, query)
        print_table("", ERROR_COLUMNS, [_error_cells(row, now_ms) for row in counts["by_error"][:ERROR_ROWS]])
        print_line(_count_text(counts))
        print_table("", KEY_COLUMNS, [_key_cells(row, now_ms) for row in answer["keys"]], KEY_SPARE)
    elif answer["next"] is None:
        print_line("no such key is blocked or parked at this proxy")
    else:
        print_line("no such key among those that were examined")
    _print_missing(answer["missing"], answer["missing_more"])
    if answer["next"] is not None:
        hint(f"there may be more: go on with --after {answer['next']}")
    return None


def _count_all(admin: AdminClient, query: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the counts of all matching keys, by up to REQUESTS_MAX requests without rows."""
    answers: list[Mapping[str, Any]] = []
    after = query["after"]
    while len(answers) < REQUESTS_MAX and (not answers or after is not None):
        answers.append(admin.get("keys", **{**query, "count": 0, "after": after}))
        after = answers[-1]["next"]
    return merge_counts(answers)


def merge_counts(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Add up the counts of requests that continue one another."""
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for answer in answers for row in answer["by_error"]):
        before = rows.get(row["error"], row | {"keys": 0, "waiting": 0})
        times = [each["failing_since_ms"] for each in (before, row) if each["failing_since_ms"] is not None]
        rows[row["error"]] = {
            "error": row["error"],
            "keys": before["keys"] + row["keys"],
            "waiting": before["waiting"] + row["waiting"],
            "more": before["more"] or row["more"],
            "failing_since_ms": min(times, default=None),
        }
    return {
        "total": sum(answer["total"] for answer in answers),
        "complete": answers[-1]["complete"],
        "by_error": sorted(rows.values(), key=lambda row: (-row["keys"], row["error"])),
    }


def _count_text(answer: Mapping[str, Any]) -> str:
    total, classes = answer["total"], len(answer["by_error"])
    at_least = "" if answer["complete"] else "at least "
    more = f"; the {ERROR_ROWS} most frequent of {classes} error classes" if classes > ERROR_ROWS else ""
    return f"{at_least}{total:,} key{'' if total == 1 else 's'}{more}"


def _error_cells(row: Mapping[str, Any], now_ms: float) -> list[Any]:
    return [
        row["error"] or None,
        row["keys"],
        _format_waiting(row),
        _format_age(row["failing_since_ms"], now_ms),
    ]


def _key_cells(row: Mapping[str, Any], now_ms: float) -> list[Any]:
    return [
        row["group"],
        row["key"],
        _format_age(row["failing_since_ms"], now_ms),
        row["attempts"],
        format_state(row),
        f"{row['topic']}/{row['queue_id']}/{row['offset']}" if row["topic"] else None,
        _format_waiting(row),
        row["error"][:ERROR_SHOWN] or None,
    ]


def _format_waiting(row: Mapping[str, Any]) -> str:
    return f"{row['waiting']:,}{'+' if row['more'] else ''}"


def _format_age(since_ms: int | None, now_ms: float) -> str | None:
    return None if since_ms is None else format_age((now_ms - since_ms) / 1000)


def _print_missing(rows: Sequence[Mapping[str, Any]], more: int) -> None:
    for row in rows[:MISSING_ROWS]:
        reason = REASONS.get(row["why"], row["why"]).format(holder=row["holder"], group=row["group"])
        queues = ", ".join(map(str, row["queues"][:8])) + ("" if len(row["queues"]) <= 8 else ", …")
        hint(f"without the keys of {row['group']} on {row['topic']} (queues {queues}): {reason}")
    hidden_rows = len(rows) - len(rows[:MISSING_ROWS]) + more
    if hidden_rows:
        hint(f"and without those of {hidden_rows:,} more")
