"""The report in short, for a terminal: verdict, totals, times, who is behind, promises missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddmq_common.plain_text import plain
from metrics_job.report.core import words
from metrics_job.report.core.behind import describe_outlook, sort_worst_first
from metrics_job.report.core.facts import Report

ROWS_SHOWN = 5


def print_report(report: Report, console: Console) -> None:
    """About a screen. Names are plain text to rich, never markup."""
    console.print(Group(*_parts(report)))


def _parts(report: Report) -> Iterator[RenderableType]:
    covered = report.covered
    yield Text(
        f"report of {words.between(*covered)}" if covered else "report: nothing was sampled in this range"
    )
    if report.ok:
        yield Text("✓ all well", style="bold green")
    else:
        yield Text("✗ look here", style="bold red")
        for finding in report.findings:
            yield Text(plain(f"  · {finding.text}"))
    for remark in report.remarks:
        yield Text(plain(remark))
    yield Text(_totals(report))
    if any(times.whole for times in report.times):
        yield _times(report)
    behind = [row for row in report.waiting if row.lag]
    if behind:
        rows = [
            (
                row.group,
                row.topic,
                words.count(row.lag),
                words.milliseconds(row.lag_age_ms),
                describe_outlook(row),
            )
            for row in sort_worst_first(behind)
        ]
        yield _table("who is behind", ("group", "topic", "waiting", "oldest", "time to drain"), rows)
    yield from _promises(report)


def _totals(report: Report) -> str:
    totals = report.totals
    parts = [
        f"{words.count(totals.sent)} sent ({words.describe_refusals(totals)})",
        f"{words.count(totals.delivered)} delivered ({words.count(totals.redelivered)} again)",
        f"{words.count(totals.acked)} acknowledged",
        f"{words.count(totals.failed)} failed",
        f"{words.count(totals.dead_lettered)} dead letters",
    ]
    if totals.fired:
        parts.append(f"{words.count(totals.fired)} delayed ones fired")
    return ", ".join(parts)


def _times(report: Report) -> Table:
    rows = [
        (times.title.lower(), *map(words.milliseconds, times.whole[1:]), words.count(times.whole.measured))
        for times in report.times
        if times.whole
    ]
    return _table("", ("", "p50", "p99", "p99.9", "longest", "measured"), rows)


def _promises(report: Report) -> Iterator[RenderableType]:
    if not report.slo:
        return
    tallies = report.tallies
    if not tallies.promises_missed:
        yield Text(f"all {words.plural(tallies.promises_kept, 'promise')} kept")
        return
    rows = [
        (row.name, words.place(row.group, row.topic), words.percent(row.target), row.shown_compliance)
        for row in report.slo
        if not row.met
    ]
    title = f"promises missed: {tallies.promises_missed:,}"
    columns = ("promise", "for", "promised", "reached")
    yield _table(title, columns, rows, tallies.promises_missed)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], count: int = 0) -> Table:
    """The first rows; `count` is how many there are, if that is more than the rows given."""
    heading = Text(title, "bold") if title else None
    built = Table(title=heading, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        built.add_column(column, overflow="fold", justify="left" if column in _LEFT else "right")
    for row in rows[:ROWS_SHOWN]:
        built.add_row(*(Text(plain(value)) for value in row))
    if max(count, len(rows)) > ROWS_SHOWN:
        built.caption = f"… and {max(count, len(rows)) - ROWS_SHOWN:,} more, on the page"
    return built


_LEFT = ("", "group", "topic", "promise", "for")
