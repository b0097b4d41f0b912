"""The report in short, for a terminal: verdict, totals, times, who is behind, promises missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddmq_common.plain_text import plain
from metrics_job.report.core import words
from metrics_job.report.core.facts import Report
from metrics_job.report.core.material import Waiting

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
    yield Text(_totals(report))
    if any(times.whole for times in report.times):
        yield _times(report)
    behind = [row for row in report.waiting if row.lag]
    if behind:
        rows = [
            (row.group, row.topic, words.count(row.lag), words.milliseconds(row.lag_age_ms), _drain(row))
            for row in sorted(behind, key=lambda row: -row.lag)
        ]
        yield _table("who is behind", ("group", "topic", "waiting", "oldest", "time to drain"), rows)
    yield from _promises(report)


def _drain(row: Waiting) -> str:
    if row.time_to_drain_s is None:
        return "never" if row.stuck else "keeps up"
    return words.span(row.time_to_drain_s)


def _totals(report: Report) -> str:
    totals = report.totals
    parts = [
        f"{words.count(totals.sent)} sent ({words.count(totals.refused)} refused)",
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
    missed = [row for row in report.slo if not row.met]
    if not missed:
        yield Text(f"all {words.plural(len(report.slo), 'promise')} kept")
        return
    rows = [
        (row.name, words.place(row.group, row.topic), *map(words.percent, (row.target, row.compliance)))
        for row in missed
    ]
    yield _table("promises missed", ("promise", "for", "promised", "reached"), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    heading = Text(title, "bold") if title else None
    built = Table(title=heading, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        built.add_column(column, overflow="fold", justify="left" if column in _LEFT else "right")
    for row in rows[:ROWS_SHOWN]:
        built.add_row(*(Text(plain(value)) for value in row))
    if len(rows) > ROWS_SHOWN:
        built.caption = f"… and {len(rows) - ROWS_SHOWN:,} more, on the page"
    return built


_LEFT = ("", "group", "topic", "promise", "for")
