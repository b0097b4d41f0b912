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
from metrics_job.report.core.order import KeyMark, OrderPicture

ROWS_SHOWN = 5
LABEL_MAX = 20  # characters of a key
COLUMNS_MIN = 20
KILL = "┃"
MARKS = {
    KeyMark.NOTHING: (" ", ""),
    KeyMark.STORED: ("░", "blue"),
    KeyMark.BLOCKED: ("·", "yellow"),
    KeyMark.FINISHED: ("█", "green"),
    KeyMark.FAILED: ("✗", "bold red"),
}
MARK_NAMES = {
    KeyMark.STORED: "stored",
    KeyMark.FINISHED: "finished",
    KeyMark.FAILED: "failed",
    KeyMark.BLOCKED: "blocked",
}


def print_report(report: Report, console: Console) -> None:
    """Print the report, about one screen. Names are printed literally, never as rich markup."""
    console.print(Group(*_report_blocks(report)))


def _report_blocks(report: Report) -> Iterator[RenderableType]:
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
            yield Text(plain(f"  · {finding.shown_text}"))
    for remark in report.remarks:
        yield Text(plain(remark))
    yield Text(_totals_line(report))
    if any(times.overall for times in report.times):
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
    yield from _promises_block(report)


def order_lines(picture: OrderPicture, width: int) -> list[Text]:
    """Draw the picture of order for a terminal of `width` columns: a row for each key, with time from left to
    right."""
    label = max(len(row.name) for row in picture.rows)
    label = min(label, LABEL_MAX)
    columns = max(COLUMNS_MIN, width - label - 3)
    kills = {picture.column_of(outage.killed_ms, columns) for outage in picture.outages}
    phases = [(picture.column_of(phase.start_ms, columns), phase.name) for phase in picture.phases]
    lines = [_labels_line(phases, label, "dim")] if phases else []
    lines += [_labels_line([(at, "▼ kill -9") for at in sorted(kills)], label, "bold red")] if kills else []
    for row in picture.rows:
        line = Text(f"{plain(row.name)[:label]:>{label}} ", "bold" if row.blocked else "")
        for column, mark in enumerate(picture.marks_of(row, columns)):
            line.append(*((KILL, "bold red") if column in kills else MARKS[mark]))
        lines.append(line)
    length = words.format_duration((picture.end_ms - picture.start_ms) / 1000)
    lines.append(Text(f"{'':>{label}} 0 s{length:>{columns - 3}}", "dim"))
    legend = Text(" " * label)
    for mark, name in MARK_NAMES.items():
        legend.append(" ").append(*MARKS[mark]).append(f" {name} ")
    return [*lines, legend]


def _labels_line(labels: Sequence[tuple[int, str]], indent: int, style: str) -> Text:
    """Write each label above its column; one that would overlap another is left out."""
    line = Text(" " * (indent + 1))
    for column, name in labels:
        gap = column - (len(line) - indent - 1)
        if gap >= 0:
            line.append(" " * gap).append(plain(name), style).append(" ")
    return line


def _totals_line(report: Report) -> str:
    totals = report.totals
    counts = [
        f"{words.format_count(totals.sent)} sent ({words.describe_rejections(totals)})",
        f"{words.format_count(totals.delivered)} delivered ({words.format_count(totals.redelivered)} again)",
        f"{words.format_count(totals.acked)} acknowledged",
        f"{words.format_count(totals.failed)} failed",
        f"{words.format_count(totals.dead_lettered)} dead letters",
    ]
    if totals.fired:
        counts.append(f"{words.format_count(totals.fired)} delayed ones fired")
    return ", ".join(counts)


def _times_table(report: Report) -> Table:
    rows = [
        (
            times.title.lower(),
            *map(words.format_ms, times.overall[1:]),
            words.format_count(times.overall.measured),
        )
        for times in report.times
        if times.overall
    ]
    return _build_table("", ("", "p50", "p99", "p99.9", "longest", "measured"), rows)


def _promises_block(report: Report) -> Iterator[RenderableType]:
    if not report.slo:
        return
    tallies = report.tallies
    if not tallies.promises_missed:
        yield Text(f"all {words.format_plural(tallies.promises_kept, 'promise')} kept")
        return
    rows = [
        (
            row.name,
            words.name_subscription(row.group, row.topic),
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
