"""`ddmq op …`: operations on everything that matches a filter: plan, start, list, show, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.output import confirm, hint, print_facts, print_json, print_line, print_table
from ddmq.cli.values import GROUP, NAME, TOPIC, Integer, Name, parse_moment
from ddmq.moments import format_moment
from ddmq_client.admin.settings import DEAD_LETTER_REASONS

KINDS = {"dead-letters": "dead_letters", "keys": "keys", "delays": "delays", "retries": "retries"}
ACTIONS = (
    "resend", "purge", "park", "skip", "replay", "cancel", "fire", "reschedule", "hold", "release", "now",
    "dead-letter",
)  # fmt: skip
NOUNS = {
    "dead_letters": "dead letter", "keys": "key", "delays": "delayed message", "retries": "waiting message",
}  # fmt: skip
COLUMNS = ("id", "kind", "action", "state", "planned", "counted", "changed", "skipped")
FACTS = ("topic", "key", "error", "reason", "state", "due_ms", "preview")  # of a sample, in this order
TIMES = ("since_ms", "until_ms", "from_ms", "to_ms", "born_from_ms", "born_to_ms", "due_ms")
PLAN_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.5
GROUPS_NAMED = 5
ENDED = ("stopped", "done", "failed", "interrupted")
ID = Name()
Command = TypeVar("Command", bound=Callable[..., Any])
rate_option = click.option(
    "--rate", type=Integer(1, 1_000_000), help="Change at most so many per second; by default, no limit."
)
wait_option = click.option("--wait", is_flag=True, help="Show the progress until the operation ends.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def op() -> None:
    """Change everything that matches: dead letters, blocked keys, delayed messages, retries.

    A plan shows what will be changed, and changes nothing. A start changes exactly what the plan showed: what
    arrives later stays as it is. The operation runs in the server, also after a restart.

    \b
    Examples:
      ddmq op plan dead-letters resend --group billing --error KeyError
      ddmq op plan keys park --group billing --text "no address" --start
      ddmq op plan delays cancel --topic mail --born-from -1h --start --rate 500
      ddmq op plan retries now --group billing --start
      ddmq op start ID TOKEN
      ddmq op stop ID
    """


def _time_option(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, f"{name.strip('-').replace('-', '_')}_ms", metavar="TIME", help=text)


@op.command("plan", short_help="Show what an operation would change.")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("action", type=click.Choice(ACTIONS))
@click.option("--group", type=GROUP, help="Dead letters, keys and retries of this group.")
@click.option(
    "--topic", type=TOPIC, help="Dead letters and retries from this topic, or delayed messages to it."
)
@click.option(
    "--error",
    metavar="CLASS",
    help="Dead letters, keys and retries with this error class, as in `ddmq dlq facets`.",
)
@click.option("--text", help="Items with this text in the key, the error or the body; not for delays.")
@click.option(
    "--reason",
    metavar="REASON",
    type=click.Choice(DEAD_LETTER_REASONS),
    help="Dead letters with this reason: failed, timed-out, …",
)
@click.option("--offset", "offsets", multiple=True, type=Integer(0), help="Dead letters at these offsets.")
@_time_option("--since", "Dead letters since: 2026-11-21T12:00 (local), -2h, or epoch milliseconds.")
@_time_option("--until", "Dead letters before this time.")
@click.option("--to-topic", is_flag=True, help="Resend to every group of the topics, not to the group alone.")
@click.option("--state", type=click.Choice(["retrying", "in flight", "parked"]), help="Keys in this state.")
@click.option("--key", "keys", multiple=True, type=NAME, help="Keys, or messages with this key.")
@click.option("--id", "ids", multiple=True, type=NAME, help="Retries with these message ids.")
@click.option("--level", type=Integer(1), help="Retries at this delay level.")
@_time_option("--from", "Delayed messages and retries due at this time or later.")
@_time_option("--to", "Delayed messages and retries due before this time.")
@_time_option("--born-from", "Delayed messages sent at this time or later.")
@_time_option("--born-to", "Delayed messages sent before this time.")
@_time_option("--due", "The new due time of rescheduled messages.")
@click.option("--shift", "shift_ms", type=int, metavar="MS", help="Move due times by so many milliseconds.")
@click.option("--start", "starts", is_flag=True, help="Ask, and start the operation.")
@rate_option
@wait_option
@yes_option
@admin_options
def plan_operation(
    kind: str,
    action: str,
    starts: bool,
    rate: int | None,
    wait: bool,
    yes: bool,
    admin: AdminClient,
    as_json: bool,
    **options: Any,
) -> None:
    """Count what ACTION on KIND would change, and show a sample and the groups that are affected.

    \b
    Of dead letters, resend or purge those that match all of --group, --topic,
    --error, --text, --reason, --offset, --since, --until.
    Of keys, park, skip or replay those that match --group, --error, --text,
    --state, --key.
    Of delays, cancel, fire, reschedule, hold or release those that match
    --topic, --key, --from, --to, --born-from, --born-to.
    Of retries, deliver now or move to the dead letters (dead-letter) those that
    match --group, --id, --topic, --key, --error, --text, --level, --from, --to.

    \b
    Examples:
      ddmq op plan dead-letters resend --group billing --since -1d
      ddmq op plan delays reschedule --topic mail --to +2h --shift 3600000
      ddmq op plan retries dead-letter --group billing --error ValueError

    A plan expires after 15 minutes.
    """
    if not starts and (rate is not None or wait or yes):
        raise click.UsageError("--rate, --wait and --yes go with --start")
    body = _build_body(KINDS[kind], action, options)
    plan = AdminClient(admin.address, PLAN_TIMEOUT_S).post("operations", body=body)
    if starts:
        return _start_plan(admin, plan, plan["token"], rate, wait=wait, yes=yes, as_json=as_json)
    if as_json:
        return print_json(plan)
    _print_plan(plan)
    if _has_changes(plan):
        until = format_moment(plan["expires_ms"])
        hint(f"`ddmq op start {plan['id']} {plan['token']}` starts it, until {until}")
    return None


def _build_body(kind: str, action: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the request for the options that are stated."""
    stated = {name: value for name, value in options.items() if value not in (None, (), False)}
    for name in TIMES:
        if name in stated:
            stated[name] = parse_moment(stated[name], "--" + name.removesuffix("_ms").replace("_", "-"))
    options_of_action = ("to_topic", "due_ms", "shift_ms")
    body: dict[str, Any] = {name: stated.pop(name) for name in options_of_action if name in stated}
    for name in ("offsets", "keys", "ids"):
        if name in stated:
            stated[name] = list(stated[name])
    if kind in ("delays", "retries") and "keys" in stated:
        keys = stated.pop("keys")
        if len(keys) > 1:
            raise click.UsageError(f"--key is given more than once; for {kind}, give it once")
        stated["key"] = keys[0]
    if kind != "delays" and "group" not in stated:
        raise click.UsageError(f"--group is missing; {kind.replace('_', ' ')} are those of a group")
    return {"kind": kind, "action": action.replace("-", "_"), "filter": stated, **body}


def _print_plan(plan: Mapping[str, Any]) -> None:
    least = "" if plan["exact"] else "at least "
    print_line(f"{_name_action(plan)}: {least}{_count_items(plan, plan['counted'])}")
    for reason, count in plan["skipped"].items():
        print_line(f"not changed: {count:,}: {reason}")
    for topic, row in plan["reaches"].items():
        names = ", ".join(row["groups"][:GROUPS_NAMED]) or "no group yet"
        more = f" and {row['count'] - GROUPS_NAMED:,} more" if row["count"] > GROUPS_NAMED else ""
        print_line(f"reaches from {topic}: {names}{more}")
    facts = [name for name in FACTS if any(row.get(name) not in (None, "") for row in plan["sample"])]
    if facts:
        rows = [[_format_cell(name, row.get(name)) for name in facts] for row in plan["sample"]]
        print_table("sample", [name.removesuffix("_ms") for name in facts], rows)


def _format_cell(name: str, value: Any) -> Any:
    if name == "due_ms" and value is not None:
        return format_moment(value)
    return value if value is None else str(value)[:60]


def _has_changes(plan: Mapping[str, Any]) -> bool:
    """Return whether the operation will or may change anything."""
    return bool(plan["counted"]) or not plan["exact"]


def _name_action(plan: Mapping[str, Any]) -> str:
    """Return the action as the command line names it."""
    return str(plan["action"]).replace("_", "-")


def _count_items(plan: Mapping[str, Any], count: int) -> str:
    return f"{count:,} {NOUNS[plan['kind']]}{'' if count == 1 else 's'}"


@op.command("start", short_help="Start a plan, or continue an operation.")
@click.argument("operation", metavar="ID", type=ID)
@click.argument("token", type=NAME)
@rate_option
@wait_option
@yes_option
@admin_options
def start_operation(
    operation: str, token: str, rate: int | None, wait: bool, yes: bool, admin: AdminClient, as_json: bool
) -> None:
    """Start the plan ID with the TOKEN that `ddmq op plan` printed, after a question.

    An operation that was stopped, failed or interrupted continues. Exit code 1 if it fails while --wait
    waits.
    """
    plan = admin.get("operations", operation)
    _start_plan(admin, plan, token, rate, wait=wait, yes=yes, as_json=as_json)


def _start_plan(
    admin: AdminClient,
    plan: Mapping[str, Any],
    token: str,
    rate: int | None,
    *,
    wait: bool,
    yes: bool,
    as_json: bool,
) -> None:
    operation = plan["id"]
    is_empty = plan["state"] == "planned" and not _has_changes(plan)
    shows_first = is_empty or not yes  # without a question, an error should not stand below a long sample
    if shows_first and not as_json:
        _print_plan(plan)
    if is_empty:
        return print_json(plan) if as_json else hint("there is nothing to change; nothing was started")
    if not yes:
        remaining = "" if plan["state"] == "planned" else f", {plan['remaining']:,} remain"
        confirm(f"{_name_action(plan).capitalize()} {_count_items(plan, plan['counted'])}{remaining}?")
    row = admin.post("operations", operation, "start", body={"token": token, "rate": rate})
    if not shows_first and not as_json:
        _print_plan(plan)
    if wait:
        row = _wait_for_end(admin, operation, quiet=as_json)
    if as_json:
        print_json(row)
    else:
        _print_progress(row)
        if row["state"] not in ENDED:
            hint(f"`ddmq op show {operation}` shows the progress; `ddmq op stop {operation}` stops it")
    if row["state"] == "failed":
        raise click.ClickException(row["error"])
    return None


def _wait_for_end(admin: AdminClient, operation: str, *, quiet: bool) -> dict[str, Any]:
    """Poll the operation until it ends; return it."""
    changed = -1
    while True:
        row: dict[str, Any] = admin.get("operations", operation)
        if row["state"] in ENDED:
            return row
        if not quiet and row["changed"] != changed:
            changed = row["changed"]
            hint(f"{changed:,} changed, {row['remaining']:,} remain")
        time.sleep(POLL_INTERVAL_S)


def _print_progress(row: Mapping[str, Any]) -> None:
    print_line(f"{row['state']}: {_count_items(row, row['changed'])} changed, {row['remaining']:,} remain")
    for reason, count in row["skipped"].items():
        print_line(f"skipped: {count:,}: {reason}")


@op.command("list", short_help="Plans and operations, the newest first.")
@admin_options
def list_operations(admin: AdminClient, as_json: bool) -> None:
    """List the plans of the process that answers, and all started operations."""
    rows = admin.get("operations")["operations"]
    if as_json:
        return print_json(rows)
    if not rows:
        return hint("no operations; `ddmq op plan --help` shows how to make one")
    print_table("", COLUMNS, [_summary_cells(row) for row in rows])
    hint("`ddmq op show ID` shows one with its progress")
    return None


def _summary_cells(row: Mapping[str, Any]) -> list[Any]:
    planned = format_moment(row["planned_ms"])
    kind = row["kind"].replace("_", "-")
    skipped = sum(row["skipped"].values())
    return [
        row["id"],
        kind,
        _name_action(row),
        row["state"],
        planned,
        row["counted"],
        row["changed"],
        skipped,
    ]


@op.command("show", short_help="One operation: its plan and its progress.")
@click.argument("operation", metavar="ID", type=ID)
@admin_options
def show_operation(operation: str, admin: AdminClient, as_json: bool) -> None:
    """Show what operation ID changes, how far it is, and what it skipped."""
    row = admin.get("operations", operation)
    if as_json:
        return print_json(row)
    if row["state"] == "planned":
        return _print_plan(row)
    _print_progress(row)
    times = {
        name: None if row[f"{name}_ms"] is None else format_moment(row[f"{name}_ms"])
        for name in ("started", "ended")
    }
    facts = {"command": row["command"], "process": row["process"], "rate": row["rate"]}
    print_facts(facts | times | {"error": row["error"]})
    return None


@op.command("stop", short_help="Stop an operation after its current batch.")
@click.argument("operation", metavar="ID", type=ID)
@admin_options
def stop_operation(operation: str, admin: AdminClient, as_json: bool) -> None:
    """Stop operation ID. What it has changed stays changed; `ddmq op start` continues it."""
    row = admin.post("operations", operation, "stop")
    if as_json:
        return print_json(row)
    _print_progress(row)
    return None
