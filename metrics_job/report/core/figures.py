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
from metrics_job.report.core.material import DAY_MS, moment

Figure = dict[str, Any]
FEW = 6  # points: as few as that are bars
BARS: Figure = {"type": "bar"}
DOTS: Figure = {"type": "scatter", "mode": "lines+markers"}  # a bar has no foot on a logarithmic scale
MARKERS_UP_TO = 60
NAME_MAX = 44  # characters
ROLES = {"sent": "c0", "delivered": "c1", "acked": "c2", "fired later": "c4", "refused": "c5"}


def figures(report: Report) -> dict[str, Figure]:
    """By the id of the chart's place; what has no data has no figure."""
    found: dict[str, Figure] = {}
    if report.throughput:
        found["throughput"] = _lines(report.throughput, ROLES, "messages per second", report)
    for number, times in enumerate(report.times):
        if times.lines:
            found[f"times-{number}"] = _times(times, report)
    if report.lag:
        names = [line.name for line in report.lag]
        roles = {name: f"c{place}" if place < 8 else "rest" for place, name in enumerate(names)}
        found["lag"] = _lines(report.lag, roles, "messages waiting", report)
    if report.heat is not None:
        found["heat"] = _heat(report.heat)
    return found


def _lines(
    lines: list[ChartLine], roles: dict[str, str], unit: str, report: Report, few: Figure = BARS
) -> Figure:
    """Lines over time; with only a few points what `few` says, and one place for each step."""
    sparse = max(len(_known(line)) for line in lines) <= FEW
    form = "%d %b %H:%M" if report.span.length_ms > DAY_MS else "%H:%M"
    data = [
        few | _sparse(line, roles[line.name], form) if sparse else _trace(line, roles[line.name])
        for line in lines
    ]
    layout = {
        "xaxis": _moments(lines, form) if sparse else _whole(report),
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "hovermode": "x unified",
        "barmode": "group",
    }
    return {"data": data, "layout": layout}


def _moments(lines: list[ChartLine], form: str) -> Figure:
    """In order, whichever line has which of them."""
    known = sorted({at for line in lines for at, _ in _known(line)})
    names = [moment(at).strftime(form) for at in known]
    return {"type": "category", "categoryorder": "array", "categoryarray": names}


def _whole(report: Report) -> Figure:
    """The whole range, so that charts can be compared, and what was not sampled shows."""
    steps = report.span.steps()
    return {"type": "date", "range": [_time(steps[0]), _time(steps[-1])]}


def _known(line: ChartLine) -> list[tuple[int, float]]:
    return [(at, value) for at, value in line.points if value is not None]


def _sparse(line: ChartLine, role: str, form: str) -> Figure:
    known = _known(line)
    return {
        "name": _name(line),
        "meta": {"role": role},
        "x": [moment(at).strftime(form) for at, _ in known],
        "y": [_rounded(value) for _, value in known],
    }


def _trace(line: ChartLine, role: str) -> Figure:
    """With a dot for each point, if they are few; else for those that stand alone, which no line shows."""
    alone = [] if len(_known(line)) <= MARKERS_UP_TO else _alone(line.points)
    return {
        "name": _name(line),
        "meta": {"role": role, "dots": alone} if any(alone) else {"role": role},
        "type": "scatter",
        "mode": "lines" if alone and not any(alone) else "lines+markers",
        "x": [_time(at) for at, _ in line.points],
        "y": [_rounded(value) for _, value in line.points],
        "connectgaps": False,
    }


def _alone(points: Points) -> list[int]:
    """1 for a point between two that are not known, else 0."""
    known = [False, *(value is not None for _, value in points), False]
    return [int(known[at] and not known[at - 1] and not known[at + 1]) for at in range(1, len(known) - 1)]


def _name(line: ChartLine) -> str:
    """Short enough for a legend: the middle of a long one is left out."""
    name = line.name
    if len(name) > NAME_MAX:
        name = f"{name[: NAME_MAX // 2]}…{name[-NAME_MAX // 2 + 1 :]}"
    return escape(name, quote=False)


def _times(times: Times, report: Report) -> Figure:
    """On a logarithmic scale: medians and outliers are often a hundred times apart."""
    figure = _lines(times.lines, {line.name: line.name for line in times.lines}, "", report, DOTS)
    ticks = _decades([line.points for line in times.lines])
    figure["layout"]["yaxis"] = {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [_tick(value) for value in ticks],
    }
    for trace in figure["data"]:
        trace["hovertemplate"] = "%{y:.3~g} ms"
    return figure


def _decades(lines: list[Points]) -> list[float]:
    """1, 10, 100, … from below the smallest value to above the largest; 1, 2, 5, 10 where that is close."""
    values = [value for points in lines for _, value in points if value]
    low, high = min(values, default=1.0), max(values, default=1.0)
    factors = (1, 2, 5) if high < low * 100 else (1,)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [round(factor * 10.0**decade, 6) for decade in decades for factor in factors]


def _tick(value_ms: float) -> str:
    if value_ms < 1:
        return f"{value_ms * 1000:.0f} µs"
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    return f"{value_ms / 1000:,.0f} s"


def _heat(heat: Heat) -> Figure:
    """Rows from above down, as one reads."""
    unit = "messages an hour (mean)" if heat.mean else "messages"
    trace = {
        "type": "heatmap",
        "x": [f"{hour:02}" for hour in range(24)],
        "y": heat.rows,
        "z": [[_rounded(cell) for cell in row] for row in heat.cells],
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


def _time(wall_ms: int) -> str:
    return moment(wall_ms).strftime("%Y-%m-%d %H:%M")


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
