"""Report → descriptions of charts in plotly's terms, as plain dicts: data, layout, and nothing of a theme.

A trace's colour is a role in `meta.role` (`c0` … `c7`, `rest`, `p50`, `p99`, `p99.9`); page.js gives it the
colour of light, dark or print. Names come from topics and groups and are escaped here, because plotly reads
tags in them.
"""

from __future__ import annotations

from html import escape
from math import ceil, floor, log10
from typing import Any

from metrics_job.report.core.facts import ChartLine, Heat, Points, Report, Times
from metrics_job.report.core.material import DAY_MS, to_utc_time

Figure = dict[str, Any]
FEW = 6  # points: as few as that are bars
BARS: Figure = {"type": "bar"}
DOTS: Figure = {"type": "scatter", "mode": "lines+markers"}  # a bar has no foot on a logarithmic scale
MARKERS_UP_TO = 60
NAME_MAX = 44  # characters
ROLES = {"sent": "c0", "delivered": "c1", "acked": "c2", "fired later": "c4", "refused": "c5"}


def build_figures(report: Report) -> dict[str, Figure]:
    """Build the figures by chart id. A chart without data has no figure."""
    charts: dict[str, Figure] = {}
    if report.throughput:
        charts["throughput"] = _lines_figure(report.throughput, ROLES, "messages per second", report)
    for number, times in enumerate(report.times):
        if times.lines:
            charts[f"times-{number}"] = _times_figure(times, report)
    if report.lag:
        names = [line.name for line in report.lag]
        roles = {name: f"c{index}" if index < 8 else "rest" for index, name in enumerate(names)}
        charts["lag"] = _lines_figure(report.lag, roles, "messages waiting", report)
    if report.heat is not None:
        charts["heat"] = _heat_figure(report.heat)
    return charts


def _lines_figure(
    lines: list[ChartLine], roles: dict[str, str], unit: str, report: Report, few: Figure = BARS
) -> Figure:
    """Draw lines over time. Lines with few points are drawn in the style `few`, one category per step."""
    sparse = max(len(_points_with_value(line)) for line in lines) <= FEW
    form = "%d %b %H:%M" if report.time_range.length_ms > DAY_MS else "%H:%M"
    data = [
        few | _sparse_trace(line, roles[line.name], form) if sparse else _trace(line, roles[line.name])
        for line in lines
    ]
    layout = {
        "xaxis": _moment_axis(lines, form) if sparse else _range_axis(report),
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "hovermode": "x unified",
        "barmode": "group",
    }
    return {"data": data, "layout": layout}


def _moment_axis(lines: list[ChartLine], form: str) -> Figure:
    """Return a category axis with the times of all lines, in order."""
    moments = sorted({at for line in lines for at, _ in _points_with_value(line)})
    names = [to_utc_time(at).strftime(form) for at in moments]
    return {"type": "category", "categoryorder": "array", "categoryarray": names}


def _range_axis(report: Report) -> Figure:
    """Return a time axis over the entire range, so that charts are comparable and gaps are visible."""
    steps = report.time_range.step_starts()
    return {"type": "date", "range": [_plotly_time(steps[0]), _plotly_time(steps[-1])]}


def _points_with_value(line: ChartLine) -> list[tuple[int, float]]:
    return [(at, value) for at, value in line.points if value is not None]


def _sparse_trace(line: ChartLine, role: str, form: str) -> Figure:
    points = _points_with_value(line)
    return {
        "name": _legend_name(line),
        "meta": {"role": role},
        "x": [to_utc_time(at).strftime(form) for at, _ in points],
        "y": [_round_value(value) for _, value in points],
    }


def _trace(line: ChartLine, role: str) -> Figure:
    """Draw one line.

    All points have dots if they are few; otherwise only isolated points, which no line shows.
    """
    alone = [] if len(_points_with_value(line)) <= MARKERS_UP_TO else _isolated_points(line.points)
    return {
        "name": _legend_name(line),
        "meta": {"role": role, "dots": alone} if any(alone) else {"role": role},
        "type": "scatter",
        "mode": "lines" if alone and not any(alone) else "lines+markers",
        "x": [_plotly_time(at) for at, _ in line.points],
        "y": [_round_value(value) for _, value in line.points],
        "connectgaps": False,
    }


def _isolated_points(points: Points) -> list[int]:
    """Return 1 for each point between two points without a value, else 0."""
    has_value = [False, *(value is not None for _, value in points), False]
    return [
        int(has_value[at] and not has_value[at - 1] and not has_value[at + 1])
        for at in range(1, len(has_value) - 1)
    ]


def _legend_name(line: ChartLine) -> str:
    """Return the line's name for the legend, with the middle of a long name left out."""
    name = line.name
    if len(name) > NAME_MAX:
        name = f"{name[: NAME_MAX // 2]}…{name[-NAME_MAX // 2 + 1 :]}"
    return escape(name, quote=False)


def _times_figure(times: Times, report: Report) -> Figure:
    """Draw times on a logarithmic scale, because medians and outliers often differ by a factor of a
    hundred."""
    figure = _lines_figure(times.lines, {line.name: line.name for line in times.lines}, "", report, DOTS)
    ticks = _decade_ticks([line.points for line in times.lines])
    figure["layout"]["yaxis"] = {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [_tick_text(value) for value in ticks],
    }
    for trace in figure["data"]:
        trace["hovertemplate"] = "%{y:.3~g} ms"
    return figure


def _decade_ticks(lines: list[Points]) -> list[float]:
    """Return ticks 1, 10, 100, … that enclose all values; 1, 2, 5, 10 for a small range."""
    values = [value for points in lines for _, value in points if value]
    low, high = min(values, default=1.0), max(values, default=1.0)
    factors = (1, 2, 5) if high < low * 100 else (1,)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [round(factor * 10.0**decade, 6) for decade in decades for factor in factors]


def _tick_text(value_ms: float) -> str:
    if value_ms < 1:
        return f"{value_ms * 1000:.0f} µs"
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    return f"{value_ms / 1000:,.0f} s"


def _heat_figure(heat: Heat) -> Figure:
    """Draw the heat map, with its first row at the top."""
    unit = "messages an hour (mean)" if heat.mean else "messages"
    trace = {
        "type": "heatmap",
        "x": [f"{hour:02}" for hour in range(24)],
        "y": heat.rows,
        "z": [[_round_value(cell) for cell in row] for row in heat.cells],
        "meta": {"role": "heat"},
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "hovertemplate": f"%{{y}} %{{x}}:00 UTC<br>%{{z:,.0f}} {unit}<extra></extra>",
        "colorbar": {"thickness": 12, "title": {"text": unit, "side": "right"}},
    }
    layout = {
        "xaxis": {"type": "category", "title": {"text": "hour of the day, UTC"}, "tickangle": 0, "dtick": 2},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "height": 110 + 26 * len(heat.rows),
    }
    return {"data": [trace], "layout": layout}


def _plotly_time(wall_ms: int) -> str:
    return to_utc_time(wall_ms).strftime("%Y-%m-%d %H:%M")


def _round_value(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
