"""The cards of the page: each with its title, a sentence that says how to read it, a chart or a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from ddmq_common.findings.rule import SEVERITIES
from metrics_job.report import html
from metrics_job.report.core import behind, words
from metrics_job.report.core.facts import Report, Times
from metrics_job.report.core.health import (
    SILENT,
    STOPPED,
    VANISHED,
    Finding,
    ProcessFacts,
    SloFacts,
    console_page,
)
from metrics_job.report.core.material import Waiting
from metrics_job.report.core.offenders import Offender, Offenders
from metrics_job.report.core.order import KeyRow, OrderPicture, Outage
from metrics_job.report.html import Cell, number_cell

ROWS_SHOWN = 15
BEHIND_SHOWN = 8
TOPICS_SHOWN = 10
OFFENDERS_SHOWN = 8
ORDER_COLUMNS = 240
LEGEND = {"failed": "failed, tried again", "killed": "server killed, until the next is ready"}
NO_WEEK = "No earlier week to compare with: nothing was counted in the same hours seven days before."


def build_head(report: Report) -> str:
    """Build the page's header: range, verdict and totals."""
    start_ms, end_ms = report.covered or (report.time_range.start_ms, report.time_range.end_ms)
    length = f" ({words.format_duration((end_ms - start_ms) / 1000)})" if report.covered else ""
    when = words.format_range(start_ms, end_ms) + length
    return (
        f"<header><h1>ddmq: how messages flowed</h1>{html.paragraph(when, 'soft')}</header>"
        f"{_verdict_box(report)}{_total_tiles(report)}"
    )


def _verdict_box(report: Report) -> str:
    remarks = "".join(html.paragraph(remark, "note") for remark in report.remarks)
    if report.is_well:
        return (
            '<div class="verdict good"><strong>✓ All well.</strong> Promises kept, nothing stuck, '
            f"nothing dead, no process lost, no sample missing.{remarks}</div>"
        )
    findings = sorted(report.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    items = "".join(f"<li>{_describe_finding(report, finding)}</li>" for finding in findings)
    worst = findings[0].severity
    return f'<div class="verdict {worst}"><strong>✗ Look here.</strong><ul>{items}</ul>{remarks}</div>'


def _describe_finding(report: Report, finding: Finding) -> str:
    sentence = f'<a href="#{finding.section}">{escape(finding.shown_text)}</a>'
    if report.console and finding.page:
        sentence += " " + html.build_link("in the console", report.console + finding.page)
    return f"{html.build_badge(finding.severity)}<span>{sentence}</span>"


def _named_cell(report: Report, kind: str, name: str) -> Cell:
    """Return a cell with the name of a topic or group, which leads to its page in the console."""
    return Cell(name, href=report.console + console_page(kind, name) if report.console else "")


def _total_tiles(report: Report) -> str:
    totals = report.totals
    tiles = [
        ("sent and stored", words.format_count(totals.sent), words.describe_rejections(totals)),
        (
            "delivered",
            words.format_count(totals.delivered),
            f"{words.format_count(totals.redelivered)} of them again",
        ),
        ("acknowledged", words.format_count(totals.acked), f"{words.format_count(totals.failed)} failed"),
        (
            "dead letters",
            words.format_count(totals.dead_lettered),
            f"{words.format_count(totals.timeouts)} leases timed out",
        ),
        (
            "waiting at the end",
            words.format_count(sum(row.lag for row in report.waiting)),
            _count_waiting(report.waiting),
        ),
    ]
    if totals.fired:
        tiles.append(("delayed, fired", words.format_count(totals.fired), ""))
    cells = "".join(
        f'<div class="tile"><span class="soft">{escape(name)}</span><b>{escape(value)}</b>'
        f'<span class="note">{escape(detail)}</span></div>'
        for name, value, detail in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _count_waiting(rows: Sequence[Waiting]) -> str:
    """Return a text such as `in 3 of 5 subscriptions`."""
    return f"in {sum(row.lag > 0 for row in rows):,} of {words.format_plural(len(rows), 'subscription')}"


def build_cards(report: Report, drawn: dict[str, Any]) -> Iterator[str]:
    """Yield the HTML of all cards, in the order of a reader's questions."""
    if report.order is not None:
        yield _order_card(report.order)
    yield _throughput_card(report, drawn)
    yield _lag_card(report, drawn)
    if any(row.lag or row.lag_max for row in report.waiting):
        yield _behind_card(report)
    for index, times in enumerate(report.times):
        yield _times_card(times, f"times-{index}", drawn)
    yield _promises_card(report)
    yield _topics_card(report)
    yield _offenders_card(report.offenders)
    yield _changes_card(report)
    yield _heat_card(drawn)
    yield _processes_card(report)
    if report.rejects:
        yield _rejects_card(report)
    yield _measured_card(report)


def _order_card(picture: OrderPicture) -> str:
    """Build the card with the picture of the order of keys over time."""
    blocked = words.list_names([row.name for row in picture.rows if row.blocked])
    text = (
        "A row for each key, time from left to right. Messages of one key are delivered one after the other."
    )
    text += f" While {blocked} was blocked, the other keys went on." if blocked else ""
    outages = "".join(_outage_mark(picture, outage) for outage in picture.outages)
    rows = _phase_labels(picture) + "".join(_key_row(picture, row, outages) for row in picture.rows)
    length = words.format_duration((picture.end_ms - picture.start_ms) / 1000)
    axis = f"<span>{words.format_clock(picture.start_ms)} UTC</span><span>{escape(length)} later</span>"
    axis = f'<div class="keyrow note"><span></span><div class="axis">{axis}</div></div>'
    names = ("stored", "finished", "failed", "blocked", *(["killed"] if outages else []))
    legend = "".join(f'<span><i class="{name}"></i>{LEGEND.get(name, name)}</span>' for name in names)
    return html.render_section(
        "order", "Order: keys over time", html.paragraph(text, "note"),
        f'<div class="order">{rows}{axis}<div class="legend note">{legend}</div></div>', wide=True,
    )  # fmt: skip


def _phase_labels(picture: OrderPicture) -> str:
    """Return a row with the name of each phase at its beginning; a name is truncated where the next
    phase begins."""
    starts = [*(picture.share_of(phase.start_ms) for phase in picture.phases), 1.0]
    labels = "".join(
        f'<b style="{_position_style(start, end - start)}">{escape(phase.name)}</b>'
        for phase, start, end in zip(picture.phases, starts, starts[1:], strict=False)
    )
    return f'<div class="keyrow note"><span></span><div class="phases">{labels}</div></div>' if labels else ""


def _key_row(picture: OrderPicture, row: KeyRow, outages: str) -> str:
    marks = "".join(
        f'<i class="{stretch.mark.name.lower()}" style="{_position_style(stretch.start, stretch.width)}"></i>'
        for stretch in picture.stretches_of(row, ORDER_COLUMNS)
    )
    return f'<div class="keyrow"><span>{escape(row.name)}</span><div>{outages}{marks}</div></div>'


def _outage_mark(picture: OrderPicture, outage: Outage) -> str:
    start, end = picture.share_of(outage.killed_ms), picture.share_of(outage.ready_ms)
    return f'<i class="killed" style="{_position_style(start, end - start)}"></i>'


def _position_style(start: float, width: float) -> str:
    return f"left:{start * 100:.2f}%;width:{width * 100:.2f}%"


def _throughput_card(report: Report, drawn: dict[str, Any]) -> str:
    if "throughput" not in drawn:
        return html.render_section(
            "throughput",
            "Throughput",
            html.build_placeholder("No message was sent or delivered in this range."),
        )
    peaks = {
        line.name: max((value or 0 for _, value in line.points), default=0) for line in report.throughput
    }
    peaks_text = ", ".join(f"{name} {words.format_count(round(peak, 2))}/s" for name, peak in peaks.items())
    step = words.describe_step(report.time_range.step_ms / 1000)
    return html.render_section(
        "flow",
        "Throughput",
        html.paragraph(
            f"Mean of {step}; lines that lie on each other are messages that flow. At most: {peaks_text}.",
            "note",
        ),
        html.render_chart("throughput", f"Messages per second over time. At most: {peaks_text}."),
    )


def _lag_card(report: Report, drawn: dict[str, Any]) -> str:
    title = "Lag by group"
    if not report.waiting:
        reason = "No subscription had messages waiting, or no consumer proxy was sampled."
        return html.render_section("lag-card", title, html.build_placeholder(reason))
    caption = html.paragraph("Messages stored and not yet finished, the largest of each step.", "note")
    plot = (
        html.render_chart("lag", "Messages waiting over time, by group; the table below has the numbers.")
        if "lag" in drawn
        else html.build_placeholder("No group was ever behind.")
    )
    return html.render_section("lag-card", title, caption, plot)


def _behind_card(report: Report) -> str:
    """Build the card of all subscriptions that were behind at any time, the worst first."""
    rows = [row for row in report.waiting if row.lag or row.lag_max]
    columns = (
        "group", "topic", "at most", "at the end", "oldest waits", "arrive/s", "finished/s", "time to drain",
    )  # fmt: skip
    end_ms = (report.covered or (0, report.time_range.end_ms))[1]
    cells = [
        (
            _named_cell(report, "groups", row.group),
            _named_cell(report, "topics", row.topic),
            number_cell(words.format_count(row.lag_max)),
            number_cell(behind.add_time(words.format_count(row.lag), row, end_ms)),
            number_cell(words.format_ms(row.lag_age_ms) if row.lag else "–"),
            number_cell(words.format_count(round(row.arrived_per_s, 2))),
            number_cell(words.format_count(round(row.finished_per_s, 2))),
            _outlook_cell(row),
        )
        for row in behind.sort_worst_first(rows)
    ]
    caption = (
        f"Messages were waiting at the end {_count_waiting(report.waiting)}. The worst first: those that are "
        "old and not getting fewer, then the most messages. Time to drain: what is waiting over what is "
        "finished beyond what arrives. Growing: more arrives than is finished. Keeps up: as much. Nobody "
        "consumes: nothing was handed out lately, and nothing is in a consumer's hands."
    )
    return _table_card("waiting", "Who is behind", caption, columns, cells, shown=BEHIND_SHOWN)


def _table_card(
    name: str,
    title: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    none: str = "",
    shown: int = ROWS_SHOWN,
) -> str:
    """Return a wide card with a table, or with the text `none` if there are no rows."""
    if not rows:
        return html.render_section(name, title, html.build_placeholder(none), wide=True)
    return html.render_section(
        name, title, html.paragraph(caption, "note"), html.first_rows_table(columns, rows, shown), wide=True
    )


def _outlook_cell(row: Waiting) -> Cell:
    text = behind.describe_outlook(row)
    if not row.lag:
        return Cell(f"✓ {text}", "good")
    return Cell(f"✗ {text}", "bad") if behind.is_bad(row) else Cell(text)


def _times_card(times: Times, name: str, drawn: dict[str, Any]) -> str:
    caption = html.paragraph(times.meaning, "note")
    if name not in drawn or times.overall is None:
        text = html.build_placeholder("Nothing of this kind happened in this range.")
        return html.render_section(f"card-{name}", times.title, caption, text)
    overall = times.overall
    text = (
        f"Half within {words.format_ms(overall.p50)}, 99 % within {words.format_ms(overall.p99)}, "
        f"99.9 % within {words.format_ms(overall.p999)}, the longest {words.format_ms(overall.max)} "
        f"({words.format_count(overall.measured)} measured)."
    )
    if times.worst is not None and len(times.lines[0].points) > 1:
        text += f" Worst p99: {words.format_ms(times.worst[1])} at {words.format_time(times.worst[0])}."
    scale = html.paragraph("The scale is logarithmic: equal steps up are equal factors.", "note")
    return html.render_section(
        f"card-{name}",
        times.title,
        caption,
        html.paragraph(text),
        html.render_chart(name, f"{times.title} over time. {text}"),
        scale,
    )


def _promises_card(report: Report) -> str:
    tallies = report.tallies
    caption = (
        f"{tallies.promises_kept:,} kept, {tallies.promises_missed:,} missed, the worst first. Each UTC day "
        "is judged alone: a promise is missed when one day missed it, whatever the days reached together. "
        "Waits and times are counted by pulls, leases and requests. Answers of a proxy that stops do not "
        "count: the client sends to another one."
    )
    columns = ("promise", "for", "promised", "reached", "counted", "days missed", "")
    none = "Nothing to judge: no promise of conf/slo.yaml had anything measured on these days."
    return _table_card(
        "promises", "Promises (SLO)", caption, columns, [_promise_row(row) for row in report.slo], none
    )


def _promise_row(row: SloFacts) -> tuple[str | Cell, ...]:
    return (
        row.name,
        words.name_subscription(row.group, row.topic),
        number_cell(words.format_percent(row.target)),
        number_cell(row.shown_compliance),
        number_cell(words.format_count(row.total)),
        f"{len(row.days_missed)} of {row.days}"
        + (f": {words.list_names(row.days_missed)}" if row.days_missed else ""),
        Cell("too few to judge")
        if row.is_met and row.days_unjudged
        else html.mark_cell(row.is_met, "kept", "missed"),
    )


def _topics_card(report: Report) -> str:
    """Build the card of the busiest topics, with all groups of each topic together."""
    busiest = sorted(report.topics.items(), key=lambda item: (-item[1].sent, -item[1].delivered, item[0]))
    fields = ("sent", "refused", "delivered", "redelivered", "acked", "failed", "dead_lettered", "fired")
    cells: list[tuple[str | Cell, ...]] = [
        (
            _named_cell(report, "topics", topic),
            *(number_cell(words.format_count(getattr(totals, field))) for field in fields),
        )
        for topic, totals in busiest
    ]
    columns = (
        "topic", "sent", "refused", "delivered", "again", "acked", "failed", "dead letters", "delayed, fired",
    )  # fmt: skip
    caption = "The busiest first; what consumers did is of all groups of a topic together."
    none = "No topic was sent to or consumed."
    return _table_card("topics", "Topics", caption, columns, cells, none, TOPICS_SHOWN)


def _offenders_card(lists: list[Offenders]) -> str:
    full = [ranking for ranking in lists if ranking.rows]
    none = " ".join(ranking.none for ranking in lists if not ranking.rows)
    blocks = (
        [f'<div class="lists">{"".join(_offender_list(ranking) for ranking in full)}</div>'] if full else []
    )
    if none:
        blocks.append(html.paragraph(none, "note"))
    return html.render_section("top", "Who stands out", *blocks, wide=True)


def _offender_list(ranking: Offenders) -> str:
    top, rest = ranking.rows[:OFFENDERS_SHOWN], ranking.rows[OFFENDERS_SHOWN:]
    most = top[0].value or 1
    bars = _offender_bars(top, most) + (
        html.fold_others(len(rest), _offender_bars(rest[: html.OTHERS_MAX], most)) if rest else ""
    )
    return f"<div><h3>{escape(ranking.title)}</h3>{bars}</div>"


def _offender_bars(rows: list[Offender], most: float) -> str:
    return "".join(
        f'<div class="offender"><i style="width:{row.value / most * 100:.1f}%"></i>'
        f'<span class="value">{escape(row.value_text)}</span><span>{escape(row.name)}</span>'
        f"<small>{escape(row.details)}</small></div>"
        for row in rows
    )


def _changes_card(report: Report) -> str:
    cells = [
        (
            row.what,
            number_cell(row.now),
            number_cell(row.before),
            Cell(row.change, "bad" if row.worse else ""),
        )
        for row in report.changes
    ]
    table = (
        html.build_table(("", "now", "a week before", "change"), cells)
        if cells
        else html.build_placeholder(NO_WEEK)
    )
    more = _anomalies_table(report) if report.anomalies else ""
    return html.render_section("changes", "What changed since last week", table, more)


def _anomalies_table(report: Report) -> str:
    cells = [
        (
            words.format_time(row["start"]),
            row["metric"],
            words.name_subscription(row["group"] or "", row["topic"] or ""),
            number_cell(words.format_count(row["value"])),
            number_cell(words.format_count(row["usual"])),
        )
        for row in report.anomalies
    ]
    caption = html.paragraph("Hours unlike the same weekday and hour of up to four former weeks:", "note")
    return caption + html.first_rows_table(
        ("hour (UTC)", "metric", "of", "value", "usually"), cells, ROWS_SHOWN
    )


def _heat_card(drawn: dict[str, Any]) -> str:
    none = html.build_placeholder("Less than three hours of samples: too few for a pattern by hour.")
    return html.render_section(
        "hours",
        "Messages sent by hour",
        html.render_chart("heat", "Messages sent in each hour of each day.") if "heat" in drawn else none,
    )


def _processes_card(report: Report) -> str:
    columns = ("process", "seen", "restarts", "ended", "samples missing", "longest gap", "clock set back")
    cells = [
        (
            row.name,
            words.format_range(row.first_ms, row.last_ms),
            number_cell(f"{row.restarts:,}"),
            _end_state_cell(row),
            Cell(f"{row.missing:,}", "bad" if row.missing else "number"),
            number_cell(words.format_duration(row.longest_gap_s) if row.longest_gap_s else "–"),
            number_cell(f"{row.clock_steps:,}" if row.clock_steps else "–"),
        )
        for row in sorted(
            report.processes, key=lambda row: (-row.vanished_count, -row.missing, -row.restarts, row.name)
        )
    ]
    caption = (
        "Days (UTC) that the range touches. Vanished: no last sample, so killed or crashed. Silent: nothing "
        "of it when this was made, and of nobody after it. Gaps: also from an end to the next start."
    )
    return _table_card(
        "processes", "Processes", caption, columns, cells, "No process was seen in this range."
    )


def _end_state_cell(row: ProcessFacts) -> Cell:
    """Return a cell with the state of a process and the number of its starts that vanished."""
    now = "stopped" if row.ended == STOPPED else row.ended
    vanished = f"{row.vanished_count:,} vanished"
    text = vanished if row.ended == VANISHED else f"{now}, {vanished}" if row.vanished_count else now
    return html.mark_cell(not row.vanished_count and row.ended != SILENT, text, text)


def _rejects_card(report: Report) -> str:
    cells = [
        (row["file"], row["reason"], number_cell(f"{row['lines']:,}"), str(row["example"])[:200])
        for row in report.rejects
    ]
    caption = "Lines of sample files that were not understood and are in no number here."
    return _table_card("rejects", "Left out", caption, ("file", "reason", "lines", "example"), cells)


def _measured_card(report: Report) -> str:
    title = "Everything measured"
    if not report.measured:
        return html.render_section(
            "measured", title, html.build_placeholder("No histogram in this range."), wide=True
        )
    cells: list[tuple[str | Cell, ...]] = [
        (
            name,
            unit or "count",
            *(number_cell(words.format_count(words.round_value(value))) for value in values[1:]),
            number_cell(words.format_count(values.measured)),
        )
        for name, unit, values in report.measured
    ]
    columns = ("metric", "unit", "p50", "p99", "p99.9", "largest", "measured")
    details = (
        f"<details><summary>{len(cells)} histograms</summary>{html.build_table(columns, cells)}</details>"
    )
    return html.render_section("measured", title, details, wide=True)


def build_foot(created_ms: int) -> str:
    """Build the page's footer. It states how the numbers were computed."""
    return (
        '<footer class="note">Counts are exact sums of what the proxies counted; percentiles are '
        "merged exactly from logarithmic buckets and shown by the bucket's upper edge, at most 12.5 % above. "
        "What a killed process counted after its last sample is in no number. All times are UTC. "
        f"Made {words.format_time(created_ms)} UTC. How to read it: docs/report.md.</footer>"
    )
