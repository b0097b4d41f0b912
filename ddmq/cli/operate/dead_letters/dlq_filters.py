"""The options by which commands choose dead letters, and the query of the admin API for them."""

from __future__ import annotations

from typing import Any

import click

from ddmq.cli.options import combine_options
from ddmq.cli.values import TOPIC, Integer, parse_moment
from ddmq_client.admin.settings import DEAD_LETTER_REASONS

filter_options = combine_options(
    click.option(
        "--reason",
        metavar="REASON",
        type=click.Choice(DEAD_LETTER_REASONS),
        help="Only dead letters with this reason: failed, timed-out, …",
    ),
    click.option("--error", metavar="CLASS", help="Only this error class, as `ddmq dlq facets` shows it."),
    click.option("--topic", type=TOPIC, help="Only dead letters from this topic."),
    click.option(
        "--text", metavar="TEXT", help="Only with this text in the key, the error or the body; case matters."
    ),
    click.option(
        "--since",
        metavar="TIME",
        help="Only dead letters since: 2026-11-21T12:00 (local), -2h, or epoch milliseconds.",
    ),
    click.option("--until", metavar="TIME", help="Only dead letters before this time."),
)
choice_options = combine_options(
    click.option("--from", "start", type=Integer(0), help="From this offset of the dead-letter topic on."),
    click.option(
        "--newest", is_flag=True, help="The newest dead letters first; with --from, from there backwards."
    ),
    filter_options,
)  # of the commands that search dead letters


def read_filters(
    reason: str | None,
    error: str | None,
    topic: str | None,
    text: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    """Return the query of the admin API for the filter of a search; an option that was not given is None."""
    return {
        "reason": reason,
        "error": error,
        "topic": topic,
        "text": text,
        "since_ms": None if since is None else parse_moment(since, "--since"),
        "until_ms": None if until is None else parse_moment(until, "--until"),
    }


def build_query(start: int | None, newest: bool, **filters: str | None) -> dict[str, Any]:
    """Return the query of the admin API for the options of a search; an option that was not given is None."""
    return {"from": start, "order": "newest" if newest else None} | read_filters(**filters)
