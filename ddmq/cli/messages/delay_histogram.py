"""`ddmq delay histogram`: how many delayed messages are due when."""

from __future__ import annotations

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.output import hint, print_json, print_line, print_table
from ddmq.cli.values import TOPIC, Integer, parse_moment
from ddmq.moments import format_moment

STEPS_DEFAULT = 20
STEPS_MAX = 200
BAR_CHARS = 40
COLUMNS = ("due from", "messages", "")


@click.command("histogram", short_help="Count the messages that wait, by due time.")
@click.argument("topic", type=TOPIC, required=False)
@click.option(
    "--from", "from_text", metavar="TIME",
    help="Due at this time or later: 2026-11-21T12:00 (local), +2h (from now), or epoch milliseconds.",
)  # fmt: skip
@click.option("--to", "to_text", metavar="TIME", help="Due before this time.")
@click.option(
    "--steps", type=Integer(1, STEPS_MAX), default=STEPS_DEFAULT, show_default=True,
    help="The most steps into which the time is divided.",
)  # fmt: skip
@admin_options
def count_by_time(
    topic: str | None,
    from_text: str | None,
    to_text: str | None,
    steps: int,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Count the delayed messages that wait, in all topics or in TOPIC alone, by due time.

    The answer comes from counters, so it is quick however many messages wait. It includes all delay services.
    The time is divided into steps of whole minutes, hours or days (in UTC).

    \b
    Examples:
      ddmq delay histogram
      ddmq delay histogram reminders --from +0s --to +1d
    """
    answer = admin.get(
        "delay", "histogram", topic=topic, buckets=steps,
        from_ms=None if from_text is None else parse_moment(from_text, "--from"),
        to_ms=None if to_text is None else parse_moment(to_text, "--to"),
    )  # fmt: skip
    if as_json:
        return print_json(answer)
    most = max((item["count"] for item in answer["items"]), default=0)
    rows = [
        [format_moment(item["from_ms"]), item["count"], "#" * -(-item["count"] * BAR_CHARS // max(most, 1))]
        for item in answer["items"]
    ]
    if most:
        print_table("", COLUMNS, rows)
    print_line(f"{answer['total']:,} in all" + _describe_others(answer["before"], answer["after"]))
    for name, why in answer["missing"].items():
        hint(f"{name} is not counted: {why}")
    if not answer["exact"] and not answer["missing"]:
        hint("some messages are not counted yet; try again later")
    return None


def _describe_others(before: int, after: int) -> str:
    parts = [f"{before:,} before"] if before else []
    parts += [f"{after:,} after"] if after else []
    return f" ({', '.join(parts)} this time)" if parts else ""
