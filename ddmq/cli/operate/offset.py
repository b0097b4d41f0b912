"""`ddmq offset …`: where a group stands on a topic, and putting it elsewhere."""

from __future__ import annotations

import datetime
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.output import confirm, hint, print_json, print_line, print_table
from ddmq.cli.values import GROUP, TOPIC, Integer
from ddmq.moments import ALLOWED, is_relative, read_moment

SHOW_COLUMNS = (
    "topic",
    "queue",
    "min",
    "committed",
    "next",
    "lag",
    "finished_above",
    "attempted",
    "generation",
)
RESET_COLUMNS = ("queue", "from", "to", "again", "passed_over")


@click.group()
def offset() -> None:
    """Show and reset the offsets of consumer groups.

    \b
    Examples:
      ddmq offset show billing
      ddmq offset reset billing --topic orders --to -2h --dry-run
      ddmq offset reset billing --topic orders --to last
    """


@offset.command("show", short_help="Offsets of a group, queue by queue.")
@click.argument("group", type=GROUP)
@click.option("--topic", type=TOPIC, help="Only this topic.")
@admin_options
def show_offsets(group: str, topic: str | None, admin: AdminClient, as_json: bool) -> None:
    """Show the offsets of GROUP, queue by queue.

    "committed": all messages below it are finished; "finished above": the number of finished messages above
    it; "attempted": the number of unfinished messages that failed or timed out before; "generation" grows
    with each reset.
    """
    if as_json:
        return print_json(admin.get("groups", group, "offsets", topic=topic))
    rows = admin.list_items("groups", group, "offsets", topic=topic)
    if rows:
        print_table("", SHOW_COLUMNS, ([row[name] for name in SHOW_COLUMNS] for row in rows))
    else:
        hint(f"no topic of group {group} exists yet: `ddmq group show {group}` lists its topics")
    return None


@offset.command("reset", short_help="Move the offsets of a group: replay, or skip.")
@click.argument("group", type=GROUP)
@click.option("--topic", type=TOPIC, required=True, help="A topic that GROUP consumes.")
@click.option(
    "--to",
    required=True,
    metavar="first|last|TIME|OFFSET",
    help="first: the oldest message; last: behind the newest one; TIME: the first message stored since, as "
    "2026-11-21T12:00+01:00 (without a zone: local), -2h (ago) or epoch milliseconds; OFFSET: a number below "
    "1,000,000,000,000.",
)
@click.option("--queue", type=Integer(0), help="Only this queue.")
@click.option("--dry-run", is_flag=True, help="Only show what would happen.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def reset(
    group: str,
    topic: str,
    to: str,
    queue: int | None,
    dry_run: bool,
    yes: bool,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Move GROUP's offsets on a topic, while its clients stay connected.

    All messages from the new offset on are delivered (again). Acknowledgements of messages that were
    delivered before no longer count. Retries that wait are still delivered; dead letters stay. The numbers
    shown include messages that the filter of the group leaves out.

    \b
    Examples:
      ddmq offset reset billing --topic orders --to first --dry-run
      ddmq offset reset billing --topic orders --to 2026-11-21T12:00
      ddmq offset reset billing --topic orders --to 4711 --queue 3
    """
    body = {"topic": topic, "to": _with_zone(to), "queue": queue, "dry_run": dry_run}
    if not (dry_run or yes):
        would = admin.post("groups", group, "offsets", body=body | {"dry_run": True})
        confirm(
            f"Reset {group} on {topic} to {would['to']}? {would['passed_over']:,} messages are passed over, "
            f"{would['again']:,} finished ones come again.{_describe_filter(would)}"
        )
    answer = admin.post("groups", group, "offsets", body=body)
    if as_json:
        return print_json(answer)
    print_line(f"{'would reset' if dry_run else 'reset'} {group} on {topic} to {answer['to']}")
    print_table("", RESET_COLUMNS, ([row[name] for name in RESET_COLUMNS] for row in answer["queues"]))
    verb = "would come" if dry_run else "come"
    hint(
        f"{answer['again']:,} finished messages {verb} again; {answer['passed_over']:,} are passed over"
        + _describe_filter(answer, ".")
    )
    return None


def _describe_filter(answer: dict[str, Any], before: str = "") -> str:
    """Return a sentence, after `before`, if the numbers of a reset include messages that the filter of the
    group leaves out."""
    text = answer.get("filter")  # a server of the release before does not state it
    if text is None:
        return ""
    return f"{before} Both numbers include messages that the filter of the group ({text}) leaves out."


def _with_zone(text: str) -> Any:
    """Return the value of --to. A time without a zone gets the zone of this machine, because the server
    requires one."""
    if text in ("first", "last") or text.isdecimal() or is_relative(text):
        return text
    try:
        wall_ms = read_moment(text, 0, local=True)
    except ValueError as error:
        raise click.UsageError(f"--to {text!r}: allowed: first, last, an offset, {ALLOWED}") from error
    return datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC).isoformat()
