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
    """Print the report, about one screen. Names are printed literally, never as rich markup."""
    console.print(Group(*_report_parts(report)))


def _report_parts(report: Report) -> Iterator[RenderableType]:
    covered = report.covered
    yield Text(
        f"report of {words.format_range(*covered)}"
        if covered
        else "report: nothing was sampled in this range"
    )
    if report.is_well:
        yield Text("✓ all well", style="bold green")
    else:
        yield Text("✗ look here", style="bold red")
        for finding in report.findings:
            yield Text(plain(f"  · {finding.text}"))
    for remark in report.remarks:
        yield Text(plain(remark))
    yield Text(_totals_line(report))
    if any(times.whole for times in report.times):
        yield _times_table(report)
    behind = [row for row in report.waiting if row.lag]
    if behind:
        rows = [
            (
                row.group,
                row.topic,
                words.format_count(row.lag),
                words.format_ms(row.lag_age_ms),
                describe_outlook(row),
            )
            for row in sort_worst_first(behind)
        ]
        yield _build_table("who is behind", ("group", "topic", "waiting", "oldest", "time to drain"), rows)
    yield from _promises_part(report)


def _totals_line(report: Report) -> str:
    totals = report.totals
    parts = [
        f"{words.format_count(totals.sent)} sent ({words.describe_refusals(totals)})",
        f"{words.format_count(totals.delivered)} delivered ({words.format_count(totals.redelivered)} again)",
        f"{words.format_count(totals.acked)} acknowledged",
        f"{words.format_count(totals.failed)} failed",
        f"{words.format_count(totals.dead_lettered)} dead letters",
    ]
    if totals.fired:
        parts.append(f"{words.format_count(totals.fired)} delayed ones fired")
    return ", ".join(parts)


def _times_table(report: Report) -> Table:
    rows = [
        (
            times.title.lower(),
            *map(words.format_ms, times.whole[1:]),
            words.format_count(times.whole.measured),
        )
        for times in report.times
        if times.whole
    ]
    return _build_table("", ("", "p50", "p99", "p99.9", "longest", "measured"), rows)


def _promises_part(report: Report) -> Iterator[RenderableType]:
    if not report.slo:
        return
    tallies = report.tallies
    if not tallies.promises_missed:
        yield Text(f"all {words.format_plural(tallies.promises_kept, 'promise')} kept")
        return
    rows = [
        (
            row.name,
            words.name_place(row.group, row.topic),
            words.format_percent(row.target),
            row.shown_compliance,
        )
        for row in report.slo
        if not row.is_met
    ]
    title = f"promises missed: {tallies.promises_missed:,}"
    columns = ("promise", "for", "promised", "reached")
    yield _build_table(title, columns, rows, tallies.promises_missed)


def _build_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], count: int = 0) -> Table:
    """Build a table of the first rows. `count`: the number of all rows if `rows` has fewer."""
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
