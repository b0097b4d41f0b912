"""`ddmq findings`: what is wrong now, and what to do first."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.output import hint, print_alert, print_json, print_line, print_table, print_verdict
from ddmq.moments import format_age

COLUMNS = ("severity", "since", "what", "command")
FAILING = ("critical", "warning")  # severities with which the exit code is 1


@click.command("findings")
@admin_options
def list_findings(admin: AdminClient, as_json: bool) -> None:
    """List what is wrong now, the most urgent first, each with a command to start with.

    The findings are those of the alert rules, with the same names, thresholds and durations (docs/alerts.md);
    --json has the names. "since": for how long the condition has held. The commands change nothing. With
    `ddmq serve --processes` the list covers all processes of the server.

    \b
    Exit code:
      0  nothing is wrong, or only findings of severity info
      1  a finding is critical or a warning, the server is not ready, or one of
         its processes does not answer

    \b
    Examples:
      ddmq findings
      ddmq findings --json
    """
    answer = admin.get("findings")
    if as_json:
        print_json(answer)
    else:
        print_findings(answer, time.time_ns() // 1_000_000)
    severities = {item["severity"] for item in answer["items"]}
    if answer["missing"] or not answer["health"]["ready"] or severities.intersection(FAILING):
        raise click.exceptions.Exit(1)


def print_findings(answer: Mapping[str, Any], now_ms: int) -> None:
    """Print the answer of /findings as a table."""
    items, health = answer["items"], answer["health"]
    if not health["ready"]:
        print_alert(f"server: NOT READY: {health['reason']}")
    if "warning" in health:
        print_alert(f"server: {health['warning']}")
    if items:
        rows = [
            [item["severity"], format_since(item, now_ms), item["text"], item["command"]] for item in items
        ]
        print_table("", COLUMNS, rows)
    elif health["ready"] and not answer["missing"]:
        print_verdict(True, "nothing is wrong")
    for line in remark_lines(answer):
        print_line(line)
    if items:
        hint(f"docs/alerts.md explains each: {', '.join(dict.fromkeys(item['id'] for item in items))}")


def remark_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the items of /findings do not include."""
    for name, count in answer["left_out"].items():
        yield f"… and {count:,} more of {name}"
    for process in answer["missing"]:
        yield f"without findings of {process['name']}: no answer at {process['admin']}"


def format_since(item: Mapping[str, Any], now_ms: int) -> str:
    """Format for how long the condition of a finding has held."""
    return format_age((now_ms - item["since_ms"]) / 1000)
