"""`ddmq topic search` and `ddmq group retries`: messages that the server walks over, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.old_names import count_option
from ddmq.cli.output import hint, print_json, print_line, print_table, show_row_body
from ddmq.cli.values import GROUP, TOPIC, parse_moment
from ddmq.moments import format_moment

MESSAGE_COLUMNS = ("queue/offset", "stored", "key", "body")
RETRY_COLUMNS = ("due", "topic", "queue/offset", "key", "deliveries", "error")
PAGE_MAX = 100
Rows = list[dict[str, Any]]


@click.command("search", short_help="Search the bodies and properties of messages.")
@click.argument("topic", type=TOPIC)
@click.option("--text", help="Messages with this text in the body, key, tags or properties.")
@click.option(
    "--sql", metavar="FILTER", help="Messages that match an SQL filter, such as \"size = 'large'\"."
)
@click.option(
    "--from", "from_text", metavar="TIME", help="Stored at this time or later: 2026-11-21T12:00, -2h."
)
@click.option("--to", "to_text", metavar="TIME", help="Stored before this time.")
@count_option()
@admin_options
def search_messages(
    topic: str,
    text: str | None,
    sql: str | None,
    from_text: str | None,
    to_text: str | None,
    count: int,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Search the messages of TOPIC at the server, the oldest first, until COUNT messages are found.

    Each request examines up to 10,000 messages; the command sends as many requests as it needs. --from and
    --to make it quicker.

    \b
    Examples:
      ddmq topic search orders --text "customer 17" --from -2h
      ddmq topic search orders --sql "size = 'large' AND TAGS = 'express'"
    """
    if text is None and sql is None:
        raise click.UsageError("say what to search for: --text TEXT or --sql FILTER")
    body: dict[str, Any] = {"text": text, "sql": sql}
    body["from_ms"] = None if from_text is None else parse_moment(from_text, "--from")
    body["to_ms"] = None if to_text is None else parse_moment(to_text, "--to")
    body = {name: value for name, value in body.items() if value is not None}

    def fetch(page: int, after: str | None) -> Mapping[str, Any]:
        more = {} if after is None else {"after": after}
        answer: Mapping[str, Any] = admin.post("topics", topic, "search", body=body | {"count": page} | more)
        return answer

    items, scanned, following = _collect_pages(fetch, count)
    if as_json:
        return print_json({"items": items, "scanned": scanned, "next": following})
    if items:
        print_table("", MESSAGE_COLUMNS, [_message_row(item) for item in items])
    print_line(f"{len(items):,} found in {scanned:,} examined messages")
    if following is not None:
        hint("there may be more: --count shows more")
    return None


@click.command("retries", short_help="The messages that wait for a retry, one by one.")
@click.argument("group", type=GROUP)
@click.option("--topic", type=TOPIC, help="Only messages of this topic.")
@click.option("--text", help="Only messages with this text in the key, the error or the body.")
@count_option()
@admin_options
def list_retries(
    group: str, topic: str | None, text: str | None, count: int, admin: AdminClient, as_json: bool
) -> None:
    """List the messages of GROUP on the retry path: those whose retry is due first, then those that wait.

    \b
    Examples:
      ddmq group retries billing
      ddmq group retries billing --topic orders --count 100
    """

    def fetch(page: int, after: str | None) -> Mapping[str, Any]:
        query = {"group": group, "topic": topic, "text": text, "count": page, "after": after}
        answer: Mapping[str, Any] = admin.get("retries", **query, form=2)
        return answer

    items, scanned, following = _collect_pages(fetch, count)
    if as_json:
        return print_json({"items": items, "scanned": scanned, "next": following})
    if items:
        print_table("", RETRY_COLUMNS, [_retry_row(item) for item in items])
    else:
        hint(f"no message of {group} waits for a retry")
    if following is not None:
        hint("there may be more: --count shows more")
    return None


def _collect_pages(
    fetch: Callable[[int, str | None], Mapping[str, Any]], count: int
) -> tuple[Rows, int, str | None]:
    """Return up to `count` rows, the number of examined messages, and the position behind them."""
    items: Rows = []
    scanned, following = 0, None
    while True:
        answer = fetch(min(count - len(items), PAGE_MAX), following)
        items += answer["items"]
        scanned += answer["scanned"]
        following = answer.get("next")
        if following is None or len(items) >= count:
            return items, scanned, following


def _message_row(item: Mapping[str, Any]) -> list[Any]:
    place = f"{item['queue']}/{item['offset']}"
    return [place, format_moment(item["stored_ms"]), item["key"], show_row_body(item)]


def _retry_row(item: Mapping[str, Any]) -> list[Any]:
    due = "now" if item["state"] == "due" else format_moment(item["due_ms"])
    place = f"{item['queue']}/{item['offset']}"
    return [due, item["topic"], place, item.get("key", ""), item["deliveries"], item.get("error", "")]
