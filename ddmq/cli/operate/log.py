"""`ddmq log …`: the disk of the log, what fills it, and what keeps its segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.output import confirm, hint, print_facts, print_json, print_line, print_table
from ddmq.cli.values import parse_moment
from ddmq.moments import format_moment

WRITER_COLUMNS = ("topic", "MiB since the start")
SEGMENT_COLUMNS = ("segment", "MiB", "newest message", "kept for")
SEGMENTS_SHOWN = 10
MIB = 1 << 20


@click.group("log")
def log() -> None:
    """The files of the log: how full the disk is, what fills it, and delete old messages now.

    \b
    Examples:
      ddmq log show
      ddmq log clean --before -1d --dry-run
    """


@log.command("show", short_help="Show the disk, what fills it, and what keeps segments.")
@admin_options
def show_log(admin: AdminClient, as_json: bool) -> None:
    """Show the free space and its marks, when the disk will be full, the topics that were written most, and
    the oldest segments.

    The segments are known only to the process that writes the log. On Kafka, only the topics are shown.
    """
    answer = admin.get("log")
    if as_json:
        return print_json(answer)
    disk = answer["disk"]
    if disk is not None:
        print_facts(_disk_facts(answer, disk))
    if answer["writers"]:
        rows = [[row["topic"], round(row["bytes"] / MIB, 1)] for row in answer["writers"]]
        print_table("written most", WRITER_COLUMNS, rows)
    if answer["items"]:
        rows = [_segment_row(row) for row in answer["items"][:SEGMENTS_SHOWN]]
        print_table(f"oldest of {answer['total']:,} segments", SEGMENT_COLUMNS, rows)
    for hold in answer["holds"]:
        print_line(f"kept from log position {hold['position']:,} on: {hold['reason']}")
    if disk is None:
        hint("the files of the log are not known here: another process writes them, or the engine is Kafka")
    for name, address in answer["missing"].items():
        hint(f"{name} at {address} does not answer")
    return None


def _disk_facts(answer: Mapping[str, Any], disk: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        "free": f"{_to_mib(disk['free_bytes'])} of {_to_mib(disk['total_bytes'])}",
        "log": _to_mib(answer["log_bytes"]),
        "cleaning below": _to_mib(disk["clean_bytes"]),
        "sends rejected below": _to_mib(disk["refuse_bytes"]),
    }
    if answer["fill_bytes_per_s"] is not None:
        facts["stored per second"] = f"{answer['fill_bytes_per_s'] / MIB:,.2f} MiB (mean of 10 minutes)"
    if answer["full_at_ms"] is not None:
        facts["sends rejected from"] = format_moment(answer["full_at_ms"]) + ", if nothing is deleted"
    return facts


def _to_mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


def _segment_row(row: Mapping[str, Any]) -> list[Any]:
    kept_for = row.get("held_by", "dead letters" if row["dead_letters_only"] else "")
    newest = format_moment(row["newest_ms"]) if row["newest_ms"] else "-"
    return [row["start"], round(row["bytes"] / MIB, 1), newest, kept_for]


@log.command("clean", short_help="Delete old segments now.")
@click.option("--before", required=True, metavar="TIME", help="2026-11-21T12:00 (local), or -1d (from now).")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def clean_log(before: str, dry_run: bool, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Delete the segments all of whose messages were stored before a time, whether or not they were consumed.

    What a hold keeps is not deleted: young dead letters, for example (docs/retention.md). First, the command
    shows what would be deleted, and how many messages each group has not finished.
    """
    before_ms = parse_moment(before, "--before")
    plan = admin.post("log", "clean", body={"before_ms": before_ms, "dry_run": True})
    if not as_json or not dry_run:
        _print_plan(plan)
    if dry_run or not plan["segments"]:
        return print_json(plan) if as_json else None
    if not yes:
        confirm(f"Delete {plan['segments']} segments, {_to_mib(plan['bytes'])}?")
    answer = admin.post("log", "clean", body={"before_ms": before_ms})
    if as_json:
        return print_json(answer)
    print_line(f"deleted {answer['segments']} segments, {_to_mib(answer['bytes'])}")
    return None


def _print_plan(plan: Mapping[str, Any]) -> None:
    if not plan["segments"]:
        hint("no segment can be deleted: all have newer messages, or are kept")
    else:
        hint(
            f"{plan['segments']} segments, {_to_mib(plan['bytes'])}, up to {format_moment(plan['newest_ms'])}"
        )
    for row in plan["held"]:
        hint(f"segment {row['start']} stays: {row['held_by']}")
    for row in plan["unread"]:
        hint(f"{row['group']} has not finished {row['messages']:,} of these messages in {row['topic']}")
