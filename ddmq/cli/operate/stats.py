"""`ddmq stats` and `ddmq lag`: findings, rates, lag; with --watch a view that fits the terminal.

Rates of `stats` need two moments, so they are shown by --watch only. `--json` gives the counters themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.operate.findings import format_since
from ddmq.cli.operate.groups.pause import paused_text, with_paused_column
from ddmq.cli.output import (
    console,
    hint,
    print_alert,
    print_json,
    print_line,
    print_table,
    show,
    state_style,
    table,
)
from ddmq.cli.values import GROUP, Number
from ddmq.moments import format_age
from ddmq_common.metrics.cells import TOP
from ddmq_common.plain_text import plain

GROUP_COLUMNS = ("group", "topic", "lag", "in_flight", "retrying", "later", "dead")
GROUP_SPARE = ("later", "dead", "retrying")  # left out in this order where it is narrow
FRAME_LINES = 18  # lines of a view beside the rows of its three tables
ROWS_MIN = 4  # of topics and groups together
LATENCIES = {  # these first, then others
    "ddmq_send_latency_us": "send, request to answer",
    "ddmq_queue_wait_us": "stored to handed out",
    "ddmq_process_us": "handed out to acknowledged",
    "ddmq_log_sync_us": "group commit, write and fsync",
    "ddmq_hub_blocked_us": "event loop busy",
}
LATENCIES_MAX = 6  # rows
FINDINGS_MAX = 5  # lines of a live view
LATENCY_NAME_MAX = 40
LAG_COLUMNS = (
    "group", "topic", "lag", "unfinished", "oldest", "drains", "why", "clients", "in flight", "retrying",
    "later", "stored/s", "delivered/s", "acked/s",
)  # fmt: skip
LAG_SPARE = (
    "acked/s", "stored/s", "delivered/s", "later", "retrying", "unfinished", "drains", "why",
)  # fmt: skip  # left out in this order where it is narrow
LAG_FRAME_LINES = 7
NOBODY_MAX = 10  # subscriptions that nobody consumes, told one by one
Stats = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def watch_options(what: str, interval_s: float) -> Callable[[F], F]:
    """Return a decorator with the options --watch and --interval. `what`: what the live view shows, for the
    help."""
    watch = click.option("--watch", is_flag=True, help=f"Refresh the view{what} until Ctrl-C.")
    interval = click.option(
        "--interval", default=interval_s, show_default=True, type=Number(0.1, 60),
        help="Seconds between two updates of --watch.",
    )  # fmt: skip
    return lambda command: watch(interval(command))


def _print_stream(fetch: Callable[[], Any], interval: float | None) -> None:
    """Print the result of `fetch` as one JSON document; with an interval, print a new document each time it
    passes."""
    print_json(fetch())
    while interval is not None:
        time.sleep(interval)
        print_json(fetch())


def _show_live(fetch: Callable[[], T], interval: float, view: Callable[[T | None, T, int], Any]) -> None:
    """Show the live view until Ctrl-C. `view` gets the previous answer, the present one, and the height of
    the terminal."""
    screen, before, now = console(), None, fetch()
    with Live(view(before, now, screen.height), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            before, now = now, fetch()
            live.update(view(before, now, screen.height), refresh=True)


@click.command()
@watch_options(", with rates,", 1.0)
@admin_options
def stats(watch: bool, interval: float, admin: AdminClient, as_json: bool) -> None:
    """Show what is wrong, topics, groups with their lag, and latencies since the server started.

    Of a group's failed messages some wait for a quick retry ("retrying"), others for a later one, 10 s to 2 h
    apart ("later"); "dead": its dead letters that were neither resent nor purged. Rates need --watch.

    \b
    Examples:
      ddmq stats
      ddmq stats --watch
    """
    fetch = partial(admin.get, "stats")
    if as_json:
        _print_stream(fetch, interval if watch else None)
    elif watch:
        _show_live(fetch, interval, build_view)
    else:
        show(build_view(None, fetch()))


@click.command()
@click.argument("group", type=GROUP, required=False)
@click.option("--group", "group_option", type=GROUP, hidden=True, help="GROUP, as other commands name it.")
@watch_options("", 2.0)
@admin_options
def lag(
    group: str | None,
    group_option: str | None,
    watch: bool,
    interval: float,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Show how far behind each group (or GROUP alone) is, the furthest first.

    "lag": messages from the first unfinished one of each queue on; "unfinished": those of them that are not
    finished; "oldest": how long the oldest of them has waited; "drains": when none is left at the present
    rates; "why": what holds them up (`ddmq group show GROUP` explains it); "clients": consumers that are
    connected to this proxy and pull the topic; "retrying": messages that wait for a quick retry; "later":
    messages that wait for a later retry, 10 s to 2 h apart, or whose later retry is due. Rates are over the
    last 5 to 10 seconds. `ddmq group show GROUP` shows each queue.

    \b
    Examples:
      ddmq lag
      ddmq lag billing --watch
    """
    if group_option and group:
        raise click.UsageError("name the group once: GROUP or --group")
    fetch = partial(admin.get, "lag", group=group or group_option)
    if as_json:
        return _print_stream(fetch, interval if watch else None)
    if watch:
        return _show_live(fetch, interval, lambda _, rows, height: _lag_view(rows, height))
    print_lag(fetch())
    return None


def print_lag(rows: Sequence[dict[str, Any]]) -> None:
    """Print the answer of /lag, and a line for each group that no client consumes."""
    if rows:
        print_table("", *with_paused_column(LAG_COLUMNS, lag_cells(rows), rows), LAG_SPARE)
    else:
        hint("no groups yet: `ddmq group create NAME --topic TOPIC`, or `ddmq pull TOPIC --group NAME`")
    for row in [row for row in rows if row.get("paused")][:NOBODY_MAX]:
        print_line(paused_text(row))
    idle = [row for row in rows if row.get("consumed") is False]
    for row in idle[:NOBODY_MAX]:
        print_alert(f"nobody consumes {row['topic']} for group {row['group']}: {nobody_text(row)}")
    if len(idle) > NOBODY_MAX:
        print_line(f"nor {len(idle) - NOBODY_MAX:,} more")


def nobody_text(row: Mapping[str, Any]) -> str:
    """Describe a subscription that is behind and that no client consumes."""
    count = row["lag"] if row.get("unfinished") is None else row["unfinished"]
    wait = "1 message waits" if count == 1 else f"{count:,} messages wait"
    return f"{wait}, and no client pulls it at this proxy; is the consumer running?"


def build_view(before: Stats | None, now: Stats, height: int | None = None) -> Group:
    """Build the tables for the answer `now`, cut to `height` lines. Rates are computed against the answer
    `before`."""
    topics, groups = [row for row in now["topics"] if not row["internal"]], now.get("groups", [])
    finding_lines = _finding_lines(now, height)
    rest = None if height is None else height - len(finding_lines)
    latencies = _latency_table(now, rest)
    paused = [f"{row['group']} on {row['topic']}" for row in groups if row.get("paused")]
    lines_left = rest and rest - latencies.lines - bool(paused)
    for_topics, for_groups = _share_rows(len(topics), len(groups), lines_left)
    renderables: list[Any] = [_health_line(now), *finding_lines]
    if topics:
        renderables += _truncated_table(
            "topics", _topic_columns(before), _topic_rows(before, now, topics), for_topics
        )
    else:
        renderables.append("no topics yet: `ddmq send NAME hello` creates one")
    if groups:
        rows = _group_rows(before, now, groups)
        renderables += _truncated_table("groups", _group_columns(before), rows, for_groups, GROUP_SPARE)
    if paused:
        text = plain(f"paused, nothing is delivered: {', '.join(paused)}")
        renderables.append(Text(text, no_wrap=True, overflow="ellipsis"))
    return Group(*renderables, *latencies.renderables)


def _share_rows(topics: int, groups: int, height: int | None) -> tuple[int, int]:
    """Return how many rows of each fit: half of the lines each, or more if the other needs less."""
    if height is None:
        return topics, groups
    rows_max = max(ROWS_MIN, height - FRAME_LINES)
    for_topics = min(topics, max(rows_max // 2, rows_max - groups))
    return for_topics, rows_max - for_topics


def _truncated_table(
    title: str, columns: Sequence[str], rows: list[list[Any]], rows_max: int, spare: Sequence[str] = ()
) -> list[Any]:
    """Return a table with at most `rows_max` rows, and a line with the number of rows left out."""
    renderables = [table(title, columns, rows[:rows_max], spare)]
    return [*renderables, f"… and {len(rows) - rows_max:,} more"] if len(rows) > rows_max else renderables


def _health_line(now: Stats) -> Text:
    """Return a line with the readiness; with --processes also which components did not answer."""
    health = now["health"]
    state = "ready" if health["ready"] else plain(f"NOT READY: {health['reason']}")
    silent = ", ".join(sorted(now.get("silent_parts", ())))
    more = plain(f"; without figures of {silent}: no answer") if silent else ""
    return Text.assemble("server: ", (state, state_style(state)), (more, "yellow"))


def _finding_lines(now: Stats, height: int | None) -> list[Text]:
    """Return a line for each finding; in a live view as many as fit, at most FINDINGS_MAX."""
    answer = now.get("findings")
    if answer is None:
        return []  # a server of the release before
    items, live = answer["items"], height is not None
    if height is not None:
        lines_max = max(1, min(FINDINGS_MAX, (height - FRAME_LINES - ROWS_MIN - 1) // 3))
        items = items if len(items) <= lines_max else items[: lines_max - 1]
    lines = [
        Text.assemble(
            (item["severity"], state_style(item["severity"])),
            plain(f" for {format_since(item, now['at_ms'])}: {item['text']}"),
            no_wrap=live,
            overflow="ellipsis" if live else "fold",
        )
        for item in items
    ]
    more = len(answer["items"]) - len(items) + sum(answer["left_out"].values())
    if not more:
        return lines
    return [
        *lines,
        Text(
            f"… and {more:,} more findings: `ddmq findings`"
            if lines
            else f"{more:,} findings: `ddmq findings`"
        ),
    ]


def _topic_columns(before: Stats | None) -> list[str]:
    return ["topic", "queues", "messages", *(["stored/s"] if before else [])]


def _topic_rows(before: Stats | None, now: Stats, topics: list[Stats]) -> list[list[Any]]:
    """Return the rows of the topics' table. If rates are known, the busiest topics come first."""
    rows: list[list[Any]] = [[row["topic"], row["queues"], row["messages"]] for row in topics]
    if before is None:
        return rows
    stored = {row["topic"]: row["stored"] for row in before["topics"]}
    for cells, row in zip(rows, topics, strict=True):
        cells.append((row["stored"] - stored.get(row["topic"], 0)) / _seconds_between(before, now))
    return sorted(rows, key=lambda cells: -float(cells[-1]))


def _group_columns(before: Stats | None) -> list[str]:
    return [*GROUP_COLUMNS, *(["acked/s"] if before else [])]


def _group_rows(before: Stats | None, now: Stats, groups: list[Stats]) -> list[list[Any]]:
    rows = [
        [
            (row | {"later": retry_path(row), "dead": row.get("dead_letters_open")}).get(name)
            for name in GROUP_COLUMNS
        ]
        for row in groups
    ]
    if before is None:
        return sorted(rows, key=lambda cells: -int(cells[2] or 0))
    earlier, later = _acked_counts(before), _acked_counts(now)
    for cells in rows:
        at = (str(cells[0]), str(cells[1]))
        cells.append((later.get(at, 0.0) - earlier.get(at, 0.0)) / _seconds_between(before, now))
    return sorted(rows, key=lambda cells: (-float(cells[-1] or 0), -int(cells[2] or 0)))


def _acked_counts(moment: Stats) -> dict[tuple[str, str], float]:
    cells = moment["counters"].get("ddmq_acked_total", [])
    return {(cell["group"], cell["topic"]): float(cell["value"]) for cell in cells}


def _seconds_between(before: Stats, now: Stats) -> float:
    return max(float(now["at_ms"] - before["at_ms"]) / 1000, 0.001)


class Latencies(NamedTuple):
    """The table of latencies, the last one of a view. `lines`: its rows, and one line for rows left out."""

    renderables: list[Any]
    lines: int


def _latency_table(now: Stats, height: int | None) -> Latencies:
    """Return the table with a row for each histogram of times. For a histogram with labels, only those with
    the highest p99 have rows."""
    order = {name: at for at, name in enumerate(LATENCIES)}
    names = sorted(
        (name for name in now["counters"] if name.endswith("_us")), key=lambda name: order.get(name, 99)
    )
    rows = []
    for name in names:
        cells = [cell for cell in now["counters"][name] if cell.get("count")]
        if cells:
            worst = max(cells, key=lambda cell: float(cell["p99"]))
            milliseconds = [_format_milliseconds(worst[key]) for key in ("p50", "p99", "max")]
            rows.append(
                [_latency_name(name, worst), int(sum(cell["count"] for cell in cells)), *milliseconds]
            )
    columns = ["what", "count", "p50 ms", "p99 ms", "max ms"]
    rows_max = (
        len(rows) if height is None else min(LATENCIES_MAX, max(1, height - FRAME_LINES - ROWS_MIN - 1))
    )
    renderables = _truncated_table("latencies since the start", columns, rows, rows_max)
    return Latencies(renderables, min(len(rows), rows_max) + len(renderables) - 1)


def _format_milliseconds(us: float) -> float | str:
    """Format a time given in µs as milliseconds. Of a value above all buckets only a lower bound is known and
    shown."""
    return f"≥ {TOP / 1000:,.1f}" if us > TOP else us / 1000


def _latency_name(name: str, cell: Stats) -> str:
    labels = [str(value) for key, value in cell.items() if key not in ("count", "mean", "p50", "p99", "max")]
    label = LATENCIES.get(name, name.removeprefix("ddmq_").removesuffix("_us"))
    name = f"{label} (worst: {' '.join(labels)})" if labels else label
    return name if len(name) <= LATENCY_NAME_MAX else name[: LATENCY_NAME_MAX - 1] + "…"


def _lag_view(rows: Sequence[dict[str, Any]], height: int) -> Group:
    rows_max = max(1, height - LAG_FRAME_LINES)
    hidden_rows = len(rows) - rows_max
    title = f"the {rows_max} furthest behind; {hidden_rows:,} more" if hidden_rows > 0 else ""
    idle = [f"{row['group']} on {row['topic']}" for row in rows if row.get("consumed") is False]
    warning = plain(f"nobody consumes: {', '.join(idle)}") if idle else ""
    top_rows = rows[:rows_max]
    view = table(title, *with_paused_column(LAG_COLUMNS, lag_cells(top_rows), top_rows), LAG_SPARE)
    return Group(view, Text(warning, no_wrap=True, overflow="ellipsis"))


def retry_path(row: Mapping[str, Any]) -> str | None:
    """Count the messages on the retry path; None where their number is not known."""
    if row.get("retry_waiting") is None:
        return None
    return ("" if row["retry_waiting_whole"] else "≥ ") + f"{row['retry_waiting']:,}"


def drain_text(row: Mapping[str, Any]) -> str | None:
    """Return in which time no message is unfinished at the present rates, or "never"; None if it is not
    known."""
    if not row.get("unfinished"):
        return None
    if row["drain_s"] is not None:
        return format_age(row["drain_s"])
    is_known = None not in (row["arriving_per_s"], row["finished_per_s"])
    return "never" if is_known else None


def lag_cells(rows: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return the rows of /lag as cells of a table."""
    return [
        [
            row["group"],
            row["topic"],
            row["lag"],
            row.get("unfinished"),  # a server of the release before does not state this and other columns
            None if row["lag_age_s"] is None else format_age(row["lag_age_s"]),
            drain_text(row),
            row.get("why"),
            row.get("clients"),
            row["in_flight"],
            row["retrying"],
            retry_path(row),
            row.get("arriving_per_s"),
            row["delivered_per_s"],
            row["acked_per_s"],
        ]
        for row in rows
    ]
