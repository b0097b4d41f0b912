"""`ddmq changes` and `ddmq undo`: the last changes by the admin API, and their undo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.old_names import count_option
from ddmq.cli.output import confirm, hint, print_facts, print_json, print_line, print_table
from ddmq.cli.values import NAME, Name
from ddmq.moments import format_moment

COLUMNS = ("id", "time", "who", "object", "request", "undo")
ID = Name()
REQUEST_CHARS = 80


@click.command("changes")
@click.argument("change", metavar="[ID]", type=ID, required=False)
@count_option()
@click.option("--after", type=NAME, help="Go on behind this change, as the command prints it.")
@admin_options
def list_changes(
    change: str | None, count: int, after: str | None, admin: AdminClient, as_json: bool
) -> None:
    """List the last changes of topics, groups, offsets, keys, dead letters and others, the newest first; or
    show the change with this ID, with the state before and after.

    The server remembers the last 1,000 changes that it got by its admin port: from commands, clients and
    scripts. Messages that are sent, and changes of single delayed messages, are not among them.

    \b
    Examples:
      ddmq changes
      ddmq changes 0193c0a1b2c3d4e5f607
      ddmq undo 0193c0a1b2c3d4e5f607
    """
    if change is not None:
        return _show_change(admin.get("changes", change), as_json)
    answer = admin.get("changes", count=count, after=after)
    if as_json:
        return print_json(answer)
    if not answer["items"]:
        return hint("no changes yet")
    print_table("", COLUMNS, [_to_cells(row) for row in answer["items"]])
    if answer["next"] is not None:
        hint(f"go on with --after {answer['next']}")
    return None


def _to_cells(row: Mapping[str, Any]) -> list[Any]:
    time = format_moment(row["at_ms"])
    request = row["request"][:REQUEST_CHARS]
    return [row["id"], time, row["who"], row["object"], request, _undo_text(row)]


def _undo_text(row: Mapping[str, Any]) -> str:
    return "undone" if row["undone_by"] else "possible" if row["undoable"] else "no"


def _show_change(row: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        return print_json(row)
    facts = {"id": row["id"], "time": format_moment(row["at_ms"])}
    facts |= {name: row[name] for name in ("who", "address", "object", "request") if row.get(name)}
    before, after = row["before"], row["after"]
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        facts |= {name: f"{before.get(name)} → {after.get(name)}" for name in sorted(names)}
    others = ("undoes", "undone_by")
    facts |= {name.replace("_", " "): row[name] for name in others if row[name]}
    facts["undo"] = row["final"] or ("done" if row["undone_by"] else f"`ddmq undo {row['id']}`")
    print_facts(facts)
    return None


@click.command("undo")
@click.argument("change", metavar="ID", type=ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def undo_change(change: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Undo the change with this ID, which `ddmq changes` lists: changed settings of a topic or subscription
    (also closing a topic to sends, a hold and a pause), a reset of offsets, or a parked key.

    \b
    Examples:
      ddmq undo 0193c0a1b2c3d4e5f607

    If the topic, subscription, offsets or key were changed again since, nothing is changed, and the exit code
    is 1. After the undo of a reset, messages that were finished since are delivered again.
    """
    row = admin.get("changes", change)
    if row["undoable"] and not yes:
        confirm(f"Undo the change of {row['object']} at {format_moment(row['at_ms'])}: {row['request']}?")
    answer = admin.post("changes", change, "undo")
    if as_json:
        return print_json(answer)
    print_line(f"{answer['object']} is as it was before; this change has the id {answer['id']}")
    return None
