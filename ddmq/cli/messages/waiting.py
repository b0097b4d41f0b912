"""Which delayed messages a command is about: of a topic, with a key, due in a time; walked page by page.

However many there are, a command holds one page of them, and the server looks at a bounded number for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, UnknownResourceError
from ddmq.cli.options import combine_options
from ddmq.cli.output import hint, print_line, print_table, show_body
from ddmq.cli.values import NAME, parse_moment
from ddmq.moments import format_moment
from ddmq_common.delays.command import is_uuid, parse_delay_id

PAGE = 1_000  # messages in one answer
COUNTED = 100_000  # messages in one answer that only counts them
UUID_LENGTH = 36  # the end of an id, which names its message alone
COLUMNS = ("id", "due", "topic", "repeats", "key", "body")
ID_EXAMPLE = "5d0f6c1e-8a3b-4f27-9c64-1b2e7d90a3f5"
Selection = dict[str, Any]
choice_options = combine_options(
    click.option(
        "--from", "from_ms", metavar="TIME",
        help="Due at this time or later: 2026-11-21T12:00 (local), +2h (from now), or epoch milliseconds.",
    ),
    click.option("--to", "to_ms", metavar="TIME", help="Due before this time."),
    click.option("--key", type=NAME, help="Only messages with this key."),
)  # fmt: skip


def find_delay_id_error(text: str) -> str | None:
    """Return why the text is not the id of a delayed message, and where ids can be found; None if it is
    one."""
    raw = text.encode(errors="replace")
    if parse_delay_id(raw) is not None or is_uuid(raw):
        return None
    return (
        f"{text[:140]!r} is not a delay id; ids look like {ID_EXAMPLE}, or are longer and end like that; "
        "`ddmq send --delay` and `ddmq delay list` print them"
    )


def choice_of(topic: str | None, options: Mapping[str, str | None]) -> Selection:
    """Return the query of the admin API for the options; {} for all waiting messages."""
    choice: Selection = {"topic": topic, "key": options["key"]}
    for name, option in (("from_ms", "--from"), ("to_ms", "--to")):
        text = options[name]
        choice[name] = None if text is None else parse_moment(text, option)
    return {name: value for name, value in choice.items() if value is not None}


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Describe in words which messages a choice contains: ` for topic todo with key "a", due from …`."""
    text = f" for topic {choice['topic']}" if "topic" in choice else ""
    text += f" with key {choice['key']!r}" if "key" in choice else ""
    due = [f"from {format_moment(choice['from_ms'])}"] if "from_ms" in choice else []
    due += [f"before {format_moment(choice['to_ms'])}"] if "to_ms" in choice else []
    return text + (f", due {' and '.join(due)}" if due else "")


def walk_pages(admin: AdminClient, choice: Selection) -> Iterator[dict[str, Any]]:
    """Yield page after page of the chosen messages; messages that arrive meanwhile may be missing."""
    after = None
    while True:
        page = admin.get("delay", "messages", count=PAGE, after=after, **choice)
        yield page
        after = page["next"]
        if after is None:
            return


def first_matches(admin: AdminClient, choice: Selection, count: int, after: str | None) -> dict[str, Any]:
    """Return one answer with the first `count` chosen messages after `after`, or all if there are fewer."""
    answer: dict[str, Any] = admin.get("delay", "messages", count=count, after=after, **choice)
    while len(answer["messages"]) < count and answer["next"] is not None:
        missing = count - len(answer["messages"])
        more = admin.get("delay", "messages", count=missing, after=answer["next"], **choice)
        answer = more | {"messages": answer["messages"] + more["messages"]}
    return answer


def count_matches(admin: AdminClient, choice: Selection) -> dict[str, Any]:
    """Return the number of chosen messages; `exact` is false if not every shard answered."""
    if not choice.keys() - {"topic"}:
        return dict(admin.get("delay", "count", **choice))
    number, after = 0, None
    while True:
        answer: dict[str, Any] = admin.get("delay", "count", count=COUNTED, after=after, **choice)
        number, after = number + answer["count"], answer.get("next")
        if after is None:
            return answer | {"count": number}


def count_levels(admin: AdminClient) -> list[dict[str, Any]]:
    """Return how many messages wait at each delay level; empty from a server of the release before."""
    try:
        rows: list[dict[str, Any]] = admin.get("delay", "levels")
    except UnknownResourceError:
        return []
    return rows


def hint_levels(admin: AdminClient) -> None:
    """Print how many messages wait at delay levels, which no listing contains; nothing if there are none."""
    waiting = sum(row["waiting"] for row in count_levels(admin))
    if waiting:
        verb = "message waits" if waiting == 1 else "messages wait"
        hint(
            f"not among these: {waiting:,} {verb} at RocketMQ's delay levels (sent with --delay-level, or "
            "retries); `ddmq delay levels` counts them"
        )


def hint_nothing_waits(choice: Mapping[str, Any]) -> None:
    """Print that no message of this choice waits, and how to send one."""
    topic = choice.get("topic", "TOPIC")
    hint(
        f"nothing waits{describe_choice(choice)}; "
        f"`ddmq delay add {topic} BODY --delay 90s` sends a message for later"
    )


def held_text(topic: str, since_ms: int) -> str:
    """Describe a topic whose delayed messages are held."""
    return (
        f"the delays of {topic} are held since {format_moment(since_ms)}: none fires until "
        f"`ddmq delay release {topic}`"
    )


def print_held(answer: Mapping[str, Any]) -> None:
    """Print a line for each held topic that an answer of /delay names."""
    for topic, since_ms in answer.get("held", {}).items():  # a server of the release before states none
        print_line(held_text(topic, since_ms))


def print_messages(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of these messages, without columns that are empty in all rows; without messages, print
    nothing."""
    if not rows:
        return
    cells = [
        [row["id"][-UUID_LENGTH:], format_moment(row["due_ms"]) + (" (held)" if row.get("held") else ""),
         row["topic"], row.get("repeats") or None,
         row.get("key") or None, show_body(row.get("preview", "").encode())[:40]]
        for row in rows
    ]  # fmt: skip
    used = [at for at, _ in enumerate(COLUMNS) if any(row[at] for row in cells)]
    print_table("", [COLUMNS[at] for at in used], [[row[at] for at in used] for row in cells])


def hint_incomplete(answer: dict[str, Any]) -> None:
    """Print which shards or commands the server could not include in its answer."""
    if answer.get("orders_waiting"):
        hint(f"{answer['orders_waiting']:,} orders are not taken in yet: what they add is not among these")
    if answer["not_open"]:
        hint(f"shards {_join_numbers(answer['not_open'])} are not open: what waits there is not among these")
    if answer["elsewhere"]:
        elsewhere = _join_numbers(answer["elsewhere"])
        hint(f"shards {elsewhere} are not among these: other delay services hold them")


def _join_numbers(shards: list[int]) -> str:
    return ", ".join(str(number) for number in shards)
