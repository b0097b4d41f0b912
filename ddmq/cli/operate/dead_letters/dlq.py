"""`ddmq dlq …`: look at dead letters, count them, send them again, be done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.old_names import count_option
from ddmq.cli.operate.dead_letters.dlq_export import export_dead_letters
from ddmq.cli.operate.dead_letters.dlq_filters import build_query, choice_options
from ddmq.cli.output import cell, confirm, hint, print_json, print_line, print_table, show_body
from ddmq.cli.values import GROUP, TOPIC, Integer, parse_moment
from ddmq.moments import format_moment
from ddmq_client.admin.settings import DEAD_LETTER_REASONS

COLUMNS = ("group", "letters", "oldest", "stored")
DEAD_LETTER_COLUMNS = ("offset", "died", "reason", "error", "from", "key", "attempts", "resent", "body")
GROUPS_NAMED = 5  # of those that resent letters reach
FACETS = {"by_reason": "reason", "by_error": "error", "by_topic": "topic", "by_hour": "hour"}
FACET_ROWS = 20  # of each facet that are printed
REQUESTS_MAX = 20  # to count all dead letters


@click.group()
def dlq() -> None:
    """List, show, count, export, resend and purge dead letters: messages that a group could not finish.

    \b
    Examples:
      ddmq dlq list
      ddmq dlq show billing
      ddmq dlq facets billing
      ddmq dlq export billing --output letters.ndjson
      ddmq dlq resend billing --all --dry-run
      ddmq dlq purge billing --before -7d

    Messages of transactions that nobody decided are the dead letters of the group TRANS_CHECK_MAX_TIME_TOPIC.
    """


@dlq.command("list", short_help="How many dead letters each group has.")
@click.argument("group", type=GROUP, required=False)
@admin_options
def list_dead_letters(group: str | None, admin: AdminClient, as_json: bool) -> None:
    """Show how many dead letters each group (or GROUP alone) has, and since when.

    "letters" wait to be resent or purged; "stored" also counts those that were resent or purged and are still
    in the dead-letter topic.
    """
    if as_json:
        return print_json([row for row in admin.get("dlq") if group in (None, row["group"])])
    rows = [row for row in admin.list_items("dlq", text=group) if group in (None, row["group"])]
    rows.sort(key=lambda row: -row["letters"])
    cells = [
        [
            row["group"],
            row["letters"],
            _format_moment(row.get("oldest_ms") if row["letters"] else None),
            row["stored"],
        ]
        for row in rows
    ]
    if rows:
        print_table("", COLUMNS, cells)
    else:
        hint(_describe_none(admin, group))
    if any(row["letters"] for row in rows):
        hint("`ddmq dlq show GROUP` says of each why it died")
    return None


def _describe_none(admin: AdminClient, group: str | None) -> str:
    """Return a text that states that there are no dead letters; the request raises if the group does not
    exist."""
    if group is None:
        return "no dead letters: every message was finished, or is still delivered or retried"
    admin.get("dlq", group, count=1)  # raises if there is no such group
    return f"no dead letters of group {group}; `ddmq lag {group}` shows what it has not finished"


@dlq.command("show", short_help="A group's dead letters: reason and origin.")
@click.argument("group", type=GROUP)
@count_option()
@choice_options
@admin_options
def show_dead_letters(group: str, count: int, admin: AdminClient, as_json: bool, **options: Any) -> None:
    """Show GROUP's dead letters, the oldest first: reason, origin, deliveries, start of the body.

    \b
    Examples:
      ddmq dlq show billing --since -1d
      ddmq dlq show billing --newest --text 4711
      ddmq dlq show billing --reason failed --topic orders

    `ddmq message %DLQ%billing --queue 0 --offset 17` shows one of them with its whole body. The server
    examines up to 10,000 dead letters for a few seconds at most; if there are more, the command says how to
    go on.
    """
    query = build_query(**options)
    answer = admin.get("dlq", group, count=count, **query)
    if as_json:
        return print_json(answer)
    if not answer["shown"] and answer["next"] is None:
        return _print_none(group, query)
    if answer["shown"]:
        print_table("", DEAD_LETTER_COLUMNS, [_dead_letter_cells(row) for row in answer["shown"]])
    elif answer["next"] is not None:
        print_line(f"none among the {answer.get('scanned', 0):,} dead letters that were examined")
    if answer["next"] is not None:
        backwards = " --newest" if options["newest"] else ""
        hint(f"{answer['letters']:,} letters in all; go on with{backwards} --from {answer['next']}")
    else:
        hint(f"`ddmq dlq resend {group} --all`, or --offset N, sends them to the group again")
    return None


def _print_none(group: str, query: Mapping[str, Any]) -> None:
    which = "such dead letter" if any(value is not None for value in query.values()) else "dead letter"
    print_line(f"no {which} of {group} waits to be resent or purged")
    hint("`ddmq dlq list` shows which groups have dead letters")


@dlq.command("facets", short_help="A group's dead letters counted by reason, error, topic, hour.")
@click.argument("group", type=GROUP)
@choice_options
@admin_options
def count_facets(group: str, admin: AdminClient, as_json: bool, **options: Any) -> None:
    """Count GROUP's dead letters by reason, error class, topic, and the hour of their death.

    An error class is the name of the exception with which the error begins, or else its first words. The
    command counts up to 200,000 dead letters, 10,000 by each request; if there are more, it says how to go
    on. With --json it sends one request.

    \b
    Examples:
      ddmq dlq facets billing
      ddmq dlq facets billing --error ValueError --since -1d
    """
    query = build_query(**options)
    answer = admin.get("dlq", group, "facets", **query)
    if as_json:
        return print_json(answer)
    if not answer["counted"] and answer["next"] is None:
        return _print_none(group, query)
    answers = [answer]
    while answers[-1]["next"] is not None and len(answers) < REQUESTS_MAX:
        answers.append(admin.get("dlq", group, "facets", **query | {"from": answers[-1]["next"]}))
        hint(f"{sum(each['scanned'] for each in answers):,} so far")
    answer = merge_facets(answers)
    for name, title in FACETS.items():
        _print_facet(title, answer[name], answer["others"][name])
    if answer["next"] is not None:
        backwards = " --newest" if options["newest"] else ""
        hint(
            f"counted {answer['scanned']:,} of {answer['letters']:,} dead letters; "
            f"go on with{backwards} --from {answer['next']}"
        )
    return None


def merge_facets(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the counts of requests that continue one another."""
    merged: dict[str, Any] = {"others": {}, "scanned": sum(answer["scanned"] for answer in answers)}
    for name in FACETS:
        counts: Counter[Any] = Counter()
        for row in (row for answer in answers for row in answer[name]):
            counts[row["value"]] += row["letters"]
        by_time = name == "by_hour"
        items = sorted(counts.items(), key=lambda item: item[0] if by_time else (-item[1], item[0]))
        merged[name] = [{"value": value, "letters": letters} for value, letters in items]
        merged["others"][name] = sum(answer["others"][name] for answer in answers)
    return {**answers[-1], **merged}


def _print_facet(title: str, rows: list[dict[str, Any]], others: int) -> None:
    top_rows = rows[-FACET_ROWS:] if title == "hour" else rows[:FACET_ROWS]
    remaining = others + sum(row["letters"] for row in rows) - sum(row["letters"] for row in top_rows)
    cells = [
        [_format_moment(row["value"]) if title == "hour" else row["value"] or None, row["letters"]]
        for row in top_rows
    ]
    print_table("", (title, "letters"), [*cells, *([["others", remaining]] if remaining else [])])


def _dead_letter_cells(row: dict[str, Any]) -> list[Any]:
    position = [row[name] for name in ("topic", "topic_queue", "topic_offset") if row[name] is not None]
    origin = "/".join(map(str, position)) if row["topic"] else None
    if row["transaction"]:
        origin = f"{origin or ''} (transaction {row['transaction']})".lstrip()
    return [
        str(row["offset"]), _format_moment(row["time_ms"]), row["reason"], row["error"][:80], origin,
        row["key"],
        row["attempts"], row["resent"], show_body(row["preview"].encode())[:60],
    ]  # fmt: skip


@dlq.command("resend", short_help="Send dead letters to their group again.")
@click.argument("group", type=GROUP)
@click.option("--all", "everything", is_flag=True, help="All dead letters that are there now.")
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    type=Integer(0),
    help="The dead letter at this offset (`ddmq dlq show` lists it); may be repeated.",
)
@click.option(
    "--reason",
    metavar="REASON",
    type=click.Choice(DEAD_LETTER_REASONS),
    help="Dead letters with this reason: failed, timed-out, …",
)
@click.option("--topic", type=TOPIC, help="Dead letters from this topic.")
@click.option(
    "--since",
    metavar="TIME",
    help="Dead letters since: 2026-11-21T12:00 (local), -2h, or epoch milliseconds.",
)
@click.option("--to-topic", is_flag=True, help="Send to every group of the topics, not to GROUP alone.")
@click.option("--dry-run", is_flag=True, help="Only show what would be sent, and which groups would get it.")
@admin_options
def resend(
    group: str,
    everything: bool,
    offsets: tuple[int, ...],
    reason: str | None,
    topic: str | None,
    since: str | None,
    to_topic: bool,
    dry_run: bool,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Send GROUP's dead letters to GROUP again, each once; no other group gets them.

    \b
    Examples:
      ddmq dlq resend billing --all
      ddmq dlq resend billing --offset 17 --offset 18
      ddmq dlq resend billing --reason failed --since -1d --dry-run

    Each becomes a new message of its original topic, at the end of its queue, with the same message id, key,
    tags and properties and one more property, dead-letter-resent. Its attempts start again at 1. With an
    order key it comes after the messages of its key that are already in the topic.

    With --to-topic every group that consumes the topic gets them, also groups that have finished the
    originals.

    Exit code 1 if a chosen letter could not be sent, or if no letter waits at an --offset.

    GROUP may be TRANS_CHECK_MAX_TIME_TOPIC: messages of transactions that nobody decided, or that could not
    be committed. No group has received them, so every group of their topic gets them. Each is sent by itself,
    without the others of its transaction: send only messages whose application says that they are committed.
    Messages that were to be delayed are not sent.
    """
    options = {"offsets": list(offsets), "reason": reason, "topic": topic, "since_ms": _parse_since(since)}
    criteria = {name: value for name, value in options.items() if value not in (None, [])}
    if everything == bool(criteria):
        raise click.UsageError("say which: either --all, or any of --offset, --reason, --topic, --since")
    body = criteria | {"all": everything, "to_topic": to_topic, "dry_run": dry_run}
    sent, not_sent, reached = _resend_all(admin, group, body)
    if as_json:
        counts = {"resent": dict(sent), "reached": reached, "kept": dict(not_sent)}
        print_json({"group": group, "dry_run": dry_run, **counts})
    else:
        _print_resent(group, sent, reached, dry_run=dry_run)
    missing = (
        len(set(offsets)) - sent.total() - not_sent.total()
        if offsets and not (reason or topic or since)
        else 0
    )
    if missing > 0:
        not_sent["there is no letter that waits at the offset"] += missing
    if not_sent:
        reasons = "; ".join(f"{count:,}: {why}" for why, count in not_sent.items())
        raise click.ClickException(f"not sent: {reasons}")


def _resend_all(
    client: AdminClient, group: str, body: dict[str, Any]
) -> tuple[Counter[str], Counter[str], dict[str, Any]]:
    sent: Counter[str] = Counter()
    not_sent: Counter[str] = Counter()
    reached: dict[str, Any] = {}
    while True:
        answer = client.post("dlq", group, "resend", body=body)
        sent.update(answer["resent"])
        not_sent.update(answer["kept"])
        reached.update(answer["reached"])
        if answer["cursor"] is None:
            return sent, not_sent, reached
        body = body | {"cursor": answer["cursor"]}
        hint(f"{sent.total():,} so far")


def _print_resent(group: str, sent: Counter[str], reached: Mapping[str, Any], *, dry_run: bool) -> None:
    if not sent:
        print_line(f"nothing to resend of group {group}")
        hint(f"`ddmq dlq show {group}` shows its dead letters")
    for topic, count in sorted(sent.items()):
        to = _groups_reached(group, reached[topic])
        print_line(f"{'would resend' if dry_run else 'resent'} {count:,} to {topic}, {to}")


def _groups_reached(group: str, row: Mapping[str, Any]) -> str:
    names, count = row["groups"][:GROUPS_NAMED], row["count"]
    if row["groups"] == [group]:
        return f"for group {group} alone"
    if not names:
        return "which no group consumes yet"
    more = f" and {count - len(names):,} more" if count > len(names) else ""
    return f"for every group there: {', '.join(names)}{more}"


@dlq.command("purge", short_help="Discard dead letters without resending them.")
@click.argument("group", type=GROUP)
@click.option("--all", "everything", is_flag=True, help="All dead letters that are there now.")
@click.option(
    "--before",
    metavar="TIME",
    help="Dead letters stored before: 2026-11-21T12:00 (local), -2h, or epoch milliseconds.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def purge(
    group: str, everything: bool, before: str | None, yes: bool, admin: AdminClient, as_json: bool
) -> None:
    """Discard GROUP's dead letters without resending them. They can no longer be shown or resent.

    Their disk space is freed later, with the log around them: when they are three days old, or later.

    \b
    Examples:
      ddmq dlq purge billing --before -7d
      ddmq dlq purge billing --all
    """
    if everything == (before is not None):
        raise click.UsageError("say which: either --all or --before")
    body = {"all": True} if before is None else {"before_ms": parse_moment(before, "--before")}
    answer: dict[str, Any] = {"group": group, "purged": 0}
    waiting = 0 if yes else admin.get("dlq", group, count=1)["letters"]
    if waiting:
        confirm(_purge_question(group, waiting, before))
    if yes or waiting:
        answer = admin.post("dlq", group, "purge", body=body)
    purged = answer["purged"]
    print_json(answer) if as_json else print_line(f"purged {_count_dead_letters(purged)} of {group}")
    if not (purged or as_json):
        hint(f"`ddmq dlq show {group}` shows those that wait, with their times")


def _purge_question(group: str, waiting: int, before: str | None) -> str:
    """Return the question before a purge: about all letters, or an unknown number from before a time."""
    if waiting == 1:
        bound = "" if before is None else f", if it was stored before {before}"
        return f"Purge the only dead letter of {group}{bound}? It is not sent again."
    if before is None:
        return f"Purge dead letters of {group}, all {waiting:,}? They are not sent again."
    which = f"those of the {waiting:,} dead letters of {group} stored before {before}"
    return f"Purge {which}? They are not sent again."


def _count_dead_letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"


def _parse_since(text: str | None) -> int | None:
    return None if text is None else parse_moment(text, "--since")


def _format_moment(wall_ms: int | None) -> str:
    return cell(None) if wall_ms is None else format_moment(wall_ms)


dlq.add_command(export_dead_letters)
