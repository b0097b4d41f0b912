"""The cards of the page: each with its title, a sentence that says how to read it, a chart or a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from metrics_job.report import html
from metrics_job.report.core import behind, words
from metrics_job.report.core.facts import Report, Times
from metrics_job.report.core.health import SILENT, STOPPED, VANISHED, ProcessFacts, SloFacts
from metrics_job.report.core.material import Waiting
from metrics_job.report.core.offenders import Offender, Offenders
from metrics_job.report.html import Cell, number

ROWS_SHOWN = 15
BEHIND_SHOWN = 8
TOPICS_SHOWN = 10
OFFENDERS_SHOWN = 8
NO_WEEK = "No earlier week to compare with: nothing was counted in the same hours seven days before."


def head(report: Report) -> str:
    """Range, verdict, totals."""
    start_ms, end_ms = report.covered or (report.span.start_ms, report.span.end_ms)
    length = f" ({words.span((end_ms - start_ms) / 1000)})" if report.covered else ""
    when = words.between(start_ms, end_ms) + length
    return (
        f"<header><h1>ddmq: how messages flowed</h1>{html.paragraph(when, 'soft')}</header>"
        f"{_verdict(report)}{_tiles(report)}"
    )


def _verdict(report: Report) -> str:
    remarks = "".join(html.paragraph(remark, "note") for remark in report.remarks)
    if report.ok:
        return (
            '<div class="verdict good"><strong>✓ All well.</strong> Promises kept, nothing stuck, '
            f"nothing dead, no process lost, no sample missing.{remarks}</div>"
        )
    items = "".join(
        f'<li><a href="#{finding.section}">{escape(finding.text)}</a></li>' for finding in report.findings
    )
    return f'<div class="verdict bad"><strong>✗ Look here.</strong><ul>{items}</ul>{remarks}</div>'


def _tiles(report: Report) -> str:
    totals = report.totals
    tiles = [
        ("sent and stored", words.count(totals.sent), words.describe_refusals(totals)),
        ("delivered", words.count(totals.delivered), f"{words.count(totals.redelivered)} of them again"),
        ("acknowledged", words.count(totals.acked), f"{words.count(totals.failed)} failed"),
        (
            "dead letters",
            words.count(totals.dead_lettered),
            f"{words.count(totals.timeouts)} leases timed out",
        ),
        (
            "waiting at the end",
            words.count(sum(row.lag for row in report.waiting)),
            _count_waiting(report.waiting),
        ),
    ]
    if totals.fired:
        tiles.append(("delayed, fired", words.count(totals.fired), ""))
    cells = "".join(
        f'<div class="tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b>'
        f'<span class="note">{escape(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _count_waiting(rows: Sequence[Waiting]) -> str:
    """`in 3 of 5 subscriptions`."""
    return f"in {sum(row.lag > 0 for row in rows):,} of {words.plural(len(rows), 'subscription')}"


def cards(report: Report, drawn: dict[str, Any]) -> Iterator[str]:
    """All of them, in the order of a reader's questions."""
    yield _throughput(report, drawn)
    yield _lag(report, drawn)
    if any(row.lag or row.lag_max for row in report.waiting):
        yield _behind(report)
    for place, times in enumerate(report.times):
        yield _times(times, f"times-{place}", drawn)
    yield _promises(report)
    yield _topics(report)
    yield _offenders(report.offenders)
    yield _changes(report)
    yield _heat(drawn)
    yield _processes(report)
    if report.rejects:
        yield _rejects(report)
    yield _measured(report)


def _throughput(report: Report, drawn: dict[str, Any]) -> str:
    if "throughput" not in drawn:
        return html.section(
            "throughput", "Throughput", html.empty("No message was sent or delivered in this range.")
        )
    peaks = {
        line.name: max((value or 0 for _, value in line.points), default=0) for line in report.throughput
    }
    said = ", ".join(f"{name} {words.count(round(peak, 2))}/s" for name, peak in peaks.items())
    step = words.step(report.span.step_ms / 1000)
    return html.section(
        "flow",
        "Throughput",
        html.paragraph(
            f"Mean of {step}; lines that lie on each other are messages that flow. At most: {said}.",
            "note",
        ),
        html.chart("throughput"),
    )


def _lag(report: Report, drawn: dict[str, Any]) -> str:
    title = "Lag by group"
    if not report.waiting:
        said = "No subscription had messages waiting, or no consumer proxy was sampled."
        return html.section("lag-card", title, html.empty(said))
    note = html.paragraph("Messages stored and not yet finished, the largest of each step.", "note")
    plot = html.chart("lag") if "lag" in drawn else html.empty("No group was ever behind.")
    return html.section("lag-card", title, note, plot)


def _behind(report: Report) -> str:
    """Every subscription that was behind at all, the worst first."""
    rows = [row for row in report.waiting if row.lag or row.lag_max]
    columns = (
        "group", "topic", "at most", "at the end", "oldest waits", "arrive/s", "finished/s", "time to drain",
    )  # fmt: skip
    end_ms = (report.covered or (0, report.span.end_ms))[1]
    cells = [
        (
            row.group,
            row.topic,
            number(words.count(row.lag_max)),
            number(behind.add_time(words.count(row.lag), row, end_ms)),
            number(words.milliseconds(row.lag_age_ms) if row.lag else "–"),
            number(words.count(round(row.arrived_per_s, 2))),
            number(words.count(round(row.finished_per_s, 2))),
            _outlook_cell(row),
        )
        for row in behind.sort_worst_first(rows)
    ]
    note = (
        f"Messages were waiting at the end {_count_waiting(report.waiting)}. The worst first: those that are "
        "old and not getting fewer, then the most messages. Time to drain: what is waiting over what is "
        "finished beyond what arrives. Growing: more arrives than is finished. Keeps up: as much. Nobody "
        "consumes: nothing was handed out lately, and nothing is in a consumer's hands."
    )
    return _table("waiting", "Who is behind", note, columns, cells, shown=BEHIND_SHOWN)


def _table(
    name: str,
    title: str,
    note: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    none: str = "",
    shown: int = ROWS_SHOWN,
) -> str:
    """A wide card with a table, or with what is said where there is nothing."""
    if not rows:
        return html.section(name, title, html.empty(none), wide=True)
    return html.section(
        name, title, html.paragraph(note, "note"), html.first(columns, rows, shown), wide=True
    )


def _outlook_cell(row: Waiting) -> Cell:
    text = behind.describe_outlook(row)
    if not row.lag:
        return Cell(f"✓ {text}", "good")
    return Cell(f"✗ {text}", "bad") if behind.is_bad(row) else Cell(text)


def _times(times: Times, name: str, drawn: dict[str, Any]) -> str:
    note = html.paragraph(times.meaning, "note")
    if name not in drawn or times.whole is None:
        said = html.empty("Nothing of this kind happened in this range.")
        return html.section(f"card-{name}", times.title, note, said)
    whole = times.whole
    said = (
        f"Half within {words.milliseconds(whole.p50)}, 99 % within {words.milliseconds(whole.p99)}, "
        f"99.9 % within {words.milliseconds(whole.p999)}, the longest {words.milliseconds(whole.max)} "
        f"({words.count(whole.measured)} measured)."
    )
    if times.worst is not None and len(times.lines[0].points) > 1:
        said += f" Worst p99: {words.milliseconds(times.worst[1])} at {words.when(times.worst[0])}."
    scale = html.paragraph("The scale is logarithmic: equal steps up are equal factors.", "note")
    return html.section(f"card-{name}", times.title, note, html.paragraph(said), html.chart(name), scale)


def _promises(report: Report) -> str:
    tallies = report.tallies
    note = (
        f"{tallies.promises_kept:,} kept, {tallies.promises_missed:,} missed, the worst first. Each UTC day "
        "is judged alone: a promise is missed when one day missed it, whatever the days reached together. "
        "Waits and times are counted by pulls, leases and requests. Answers of a proxy that stops do not "
        "count: the client sends to another one."
    )
    columns = ("promise", "for", "promised", "reached", "counted", "days missed", "")
    none = "Nothing to judge: no promise of conf/slo.yaml had anything measured on these days."
    return _table("promises", "Promises (SLO)", note, columns, [_promise(row) for row in report.slo], none)


def _promise(row: SloFacts) -> tuple[str | Cell, ...]:
    return (
        row.name,
        words.place(row.group, row.topic),
        number(words.percent(row.target)),
        number(row.shown_compliance),
        number(words.count(row.total)),
        f"{len(row.days_missed)} of {row.days}"
        + (f": {words.listed(row.days_missed)}" if row.days_missed else ""),
        Cell("too few to judge") if row.met and row.days_unjudged else html.mark(row.met, "kept", "missed"),
    )


def _topics(report: Report) -> str:
    """The busiest topics, all groups of each together."""
    busiest = sorted(report.topics.items(), key=lambda item: (-item[1].sent, -item[1].delivered, item[0]))
    fields = ("sent", "refused", "delivered", "redelivered", "acked", "failed", "dead_lettered", "fired")
    cells: list[tuple[str | Cell, ...]] = [
        (topic, *(number(words.count(getattr(totals, field))) for field in fields))
        for topic, totals in busiest
    ]
    columns = (
        "topic", "sent", "refused", "delivered", "again", "acked", "failed", "dead letters", "delayed, fired",
    )  # fmt: skip
    note = "The busiest first; what consumers did is of all groups of a topic together."
    none = "No topic was sent to or consumed."
    return _table("topics", "Topics", note, columns, cells, none, TOPICS_SHOWN)


def _offenders(lists: list[Offenders]) -> str:
    full = [found for found in lists if found.rows]
    none = " ".join(found.none for found in lists if not found.rows)
    parts = [f'<div class="lists">{"".join(_offender_list(found) for found in full)}</div>'] if full else []
    if none:
        parts.append(html.paragraph(none, "note"))
    return html.section("top", "Who stands out", *parts, wide=True)


def _offender_list(found: Offenders) -> str:
    top, rest = found.rows[:OFFENDERS_SHOWN], found.rows[OFFENDERS_SHOWN:]
    most = top[0].value or 1
    shown = _bars(top, most) + (html.others(len(rest), _bars(rest[: html.OTHERS_MAX], most)) if rest else "")
    return f"<div><h3>{escape(found.title)}</h3>{shown}</div>"


def _bars(rows: list[Offender], most: float) -> str:
    return "".join(
        f'<div class="offender"><i style="width:{row.value / most * 100:.1f}%"></i>'
        f'<span class="value">{escape(row.shown)}</span><span>{escape(row.name)}</span>'
        f"<small>{escape(row.note)}</small></div>"
        for row in rows
    )


def _changes(report: Report) -> str:
    cells = [
        (row.what, number(row.now), number(row.before), Cell(row.change, "bad" if row.worse else ""))
        for row in report.changes
    ]
    shown = html.table(("", "now", "a week before", "change"), cells) if cells else html.empty(NO_WEEK)
    more = _anomalies(report) if report.anomalies else ""
    return html.section("changes", "What changed since last week", shown, more)


def _anomalies(report: Report) -> str:
    cells = [
        (
            words.when(row["start"]),
            row["metric"],
            words.place(row["group"] or "", row["topic"] or ""),
            number(words.count(row["value"])),
            number(words.count(row["usual"])),
        )
        for row in report.anomalies
    ]
    note = html.paragraph("Hours unlike the same weekday and hour of up to four former weeks:", "note")
    return note + html.first(("hour (UTC)", "metric", "of", "value", "usually"), cells, ROWS_SHOWN)


def _heat(drawn: dict[str, Any]) -> str:
    none = html.empty("Less than three hours of samples: too few for a pattern by hour.")
    return html.section("hours", "Messages sent by hour", html.chart("heat") if "heat" in drawn else none)


def _processes(report: Report) -> str:
    columns = ("process", "seen", "restarts", "ended", "samples missing", "longest gap", "clock set back")
    cells = [
        (
            row.name,
            words.between(row.first_ms, row.last_ms),
            number(f"{row.restarts:,}"),
            _ended(row),
            Cell(f"{row.missing:,}", "bad" if row.missing else "number"),
            number(words.span(row.longest_gap_s) if row.longest_gap_s else "–"),
            number(f"{row.clock_steps:,}" if row.clock_steps else "–"),
        )
        for row in sorted(
            report.processes, key=lambda row: (-row.vanished, -row.missing, -row.restarts, row.name)
        )
    ]
    note = (
        "Days (UTC) that the range touches. Vanished: no last sample, so killed or crashed. Silent: nothing "
        "of it when this was made, and of nobody after it. Gaps: also from an end to the next start."
    )
    return _table("processes", "Processes", note, columns, cells, "No process was seen in this range.")


def _ended(row: ProcessFacts) -> Cell:
    """How it stands now, and how many of its starts vanished."""
    now = "stopped" if row.ended == STOPPED else row.ended
    gone = f"{row.vanished:,} vanished"
    said = gone if row.ended == VANISHED else f"{now}, {gone}" if row.vanished else now
    return html.mark(not row.vanished and row.ended != SILENT, said, said)


def _rejects(report: Report) -> str:
    cells = [
        (row["file"], row["reason"], number(f"{row['lines']:,}"), str(row["example"])[:200])
        for row in report.rejects
    ]
    note = "Lines of sample files that were not understood and are in no number here."
    return _table("rejects", "Left out", note, ("file", "reason", "lines", "example"), cells)


def _measured(report: Report) -> str:
    title = "Everything measured"
    if not report.measured:
        return html.section("measured", title, html.empty("No histogram in this range."), wide=True)
    cells: list[tuple[str | Cell, ...]] = [
        (name, unit or "count", *(number(words.count(words.rounded(value))) for value in values[1:]),
         number(words.count(values.measured)))
        for name, unit, values in report.measured
    ]  # fmt: skip
    columns = ("metric", "unit", "p50", "p99", "p99.9", "largest", "measured")
    shown = f"<details><summary>{len(cells)} histograms</summary>{html.table(columns, cells)}</details>"
    return html.section("measured", title, shown, wide=True)


def foot(made_ms: int) -> str:
    """What the numbers are."""
    return (
        '<footer class="note">Counts are exact sums of what the proxies counted; percentiles are '
        "merged exactly from logarithmic buckets and shown by the bucket's upper edge, at most 12.5 % above. "
        "What a killed process counted after its last sample is in no number. All times are UTC. "
        f"Made {words.when(made_ms)} UTC. How to read it: docs/report.md.</footer>"
    )
