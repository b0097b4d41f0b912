"""Numbers, times and durations as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from metrics_job.report.core.material import AtLeast, Totals, to_utc_time

_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def format_count(value: float) -> str:
    """Format a count: `12,345`; small rates keep their fraction: `0.25`."""
    if isinstance(value, AtLeast):
        return f"≥ {format_count(float(value))}"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def round_value(value: float) -> float:
    return type(value)(f"{value:.3g}")


def format_short(value: float) -> str:
    """Format a number for narrow space: `12.3 k`, `4.56 M`."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 10 or (size > 1e3 and abs(value) >= size):
            return f"{value / size:.3g} {name}"
    return format_count(value)


def format_plural(value: float, one: str, many: str | None = None) -> str:
    """Format a number with its noun: `1 message`, `2 messages`."""
    return f"{format_count(value)} {one if value == 1 else many or one + 's'}"


def format_ms(value: float | None) -> str:
    """Format milliseconds: `0.85 ms`, `12 ms`, `3.4 s`, `4 m 5 s`; `–` for None."""
    if value is None:
        return "–"
    if isinstance(value, AtLeast):
        return f"≥ {format_ms(float(value))}"
    if value < 1000:
        return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
    return format_duration(value / 1000)


def format_duration(seconds: float) -> str:
    """Format a duration in seconds: `340 ms`, `3.4 s`, `4 m 5 s`, `2 d 3 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    full_seconds = int(seconds)
    for size, unit, smaller, smaller_unit in _UNITS:
        if full_seconds >= size:
            rest = full_seconds % size // smaller
            return f"{full_seconds // size:,} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{full_seconds} s"


def describe_rejections(totals: Totals) -> str:
    """Describe refused sends: `12 refused`, `19 refused, 7 of them by a proxy that stops`."""
    text = f"{format_count(totals.refused)} refused"
    if totals.sent_elsewhere:
        text += f", {format_count(totals.sent_elsewhere)} of them by a proxy that stops"
    return text


def describe_step(seconds: float) -> str:
    """Describe the length of a step: `each minute`, `every 5 minutes`, `each hour`."""
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            many = round(seconds / size)
            return f"each {name}" if many == 1 else f"every {many} {name}s"
    return f"every {format_duration(seconds)}"


def format_percent(ratio: float | None) -> str:
    """Format a ratio: `12.3 %`, `99.987 %`; `–` for None. A ratio below 1 never becomes 100 %."""
    if ratio is None:
        return "–"
    value = ratio * 100
    if 99 < value < 100:
        for digits in (2, 3, 4, 6):
            text = f"{value:.{digits}f}"
            if not text.startswith("100"):
                return f"{text} %"
        return "just under 100 %"
    if 0 < value < 0.01:
        return "under 0.01 %"
    return f"{value:.3g} %" if value < 100 else f"{value:,.0f} %"


def describe_change(now: float, before: float) -> str:
    """Describe a change: `+12 %`, `-3 %`, `×14`, `new`, `gone`, `same`."""
    if now == before:
        return "same"
    if before == 0:
        return "new"
    if now == 0:
        return "gone"
    ratio = now / before
    if ratio >= 10:
        return f"×{ratio:,.0f}"
    text = f"{(ratio - 1) * 100:+.0f} %"
    return "about the same" if text in ("+0 %", "-0 %") else text


def format_time(wall_ms: int, with_date: bool = True) -> str:
    """Format epoch ms in UTC: `2026-11-22 03:05`, or the time alone."""
    return to_utc_time(wall_ms).strftime("%Y-%m-%d %H:%M" if with_date else "%H:%M")


def format_clock(wall_ms: int) -> str:
    """Format a time of the day, as `03:05:01`, in UTC."""
    return to_utc_time(wall_ms).strftime("%H:%M:%S")


def format_range(start_ms: int, end_ms: int) -> str:
    """Format a time range: `2026-11-22 03:05:01 to 03:06:30 UTC`; the same date is written once."""
    start, end = to_utc_time(start_ms), to_utc_time(end_ms)
    form = "%H:%M:%S" if end_ms - start_ms < 600_000 else "%H:%M"
    last = end.strftime(form if start.date() == end.date() else f"%Y-%m-%d {form}")
    return f"{start.strftime(f'%Y-%m-%d {form}')} to {last} UTC"


def name_subscription(group: str, topic: str) -> str:
    """Return the name of a subscription: `group on topic`, only the one that is not empty, or `all` if both
    are empty."""
    if group and topic:
        return f"{group} on {topic}"
    return group or topic or "all"


def list_names(names: Sequence[str], at_most: int = 3) -> str:
    """Join names for a text: `a, b and 3 more`."""
    if len(names) <= at_most:
        return ", ".join(names)
    return f"{', '.join(names[:at_most])} and {len(names) - at_most:,} more"
