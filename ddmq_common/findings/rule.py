"""A rule of the table of findings, and its texts for one finding.

Texts have placeholders: the labels of the finding, {threshold}, and {value}, which is what was measured, or
{value NOUN}, which is "1 NOUN" or "2 NOUNs".
Labels may be any text: a command quotes them for a shell, and the path of a page percent-encodes them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from ddmq_common.findings.conditions import (
    Condition,
    FallsBelow,
    GaugeAbove,
    QuantileAbove,
    ShareAbove,
)

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)  # the most urgent first
PLACEHOLDER = re.compile(r"\{(\w+)(?: ([\w ]+))?\}")
VALUE, THRESHOLD = "value", "threshold"
_TIMES = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class FindingRule(NamedTuple):
    """One way in which something can be wrong.

    `name`: the name of the alert and of its section in docs/alerts.md. `promise`: the alert's group. `for_s`:
    how long the condition must hold before it is a finding. `action`: the remedy in words. `command`: a first
    action that changes nothing. `page`: the console's page. `unit`: the unit of the value ("", ms, us, bytes,
    share or rejected). `note`: a remark on the threshold for the rules file.
    """

    name: str
    promise: str
    severity: str
    condition: Condition
    text: str
    action: str
    command: str
    page: str
    for_s: int = 0
    unit: str = ""
    note: str = ""

    @property
    def runbook(self) -> str:
        """The section of the docs that explains the rule, as a path in the source tree."""
        return f"docs/alerts.md#{self.name.lower()}"

    @property
    def threshold(self) -> float | None:
        """The value that must be passed; None if the condition has none."""
        match self.condition:
            case GaugeAbove(above=limit) | ShareAbove(above=limit) | QuantileAbove(above=limit):
                return limit
            case FallsBelow(below=limit):
                return limit
        return None

    @property
    def shown_threshold(self) -> str:
        """The threshold with its unit; empty if the condition has none."""
        return "" if self.threshold is None else format_value(self.threshold, self.unit)

    def build_text(self, labels: Mapping[str, str], value: float) -> str:
        """Return the sentence of one finding."""
        value_text = format_value(value, self.unit)
        values = {**labels, VALUE: value_text, THRESHOLD: self.shown_threshold}
        return _fill_template(self.text, values, str, singular=value_text == "1")

    def build_command(self, labels: Mapping[str, str]) -> str:
        """Return the command for one finding, with its labels quoted for a shell."""
        return _fill_template(self.command, labels, _quote_argument)

    def build_page(self, labels: Mapping[str, str]) -> str:
        """Return the path of the console's page for one finding."""
        return _fill_template(self.page, labels, lambda text: quote(text, safe=""))


def _fill_template(
    template: str, values: Mapping[str, str], encode: Callable[[str], str], *, singular: bool = False
) -> str:
    def fill_placeholder(match: re.Match[str]) -> str:
        text, noun = encode(values[match[1]]), match[2]
        return f"{text} {noun if singular else noun + 's'}" if noun else text

    return PLACEHOLDER.sub(fill_placeholder, template)


def _quote_argument(text: str) -> str:
    """Quote a value for a shell. `--` protects one that would be read as an option."""
    quoted = shlex.quote(text)
    return f"-- {quoted}" if text.startswith("-") else quoted


def format_value(value: float, unit: str) -> str:
    """Format a measured value, or a threshold, with its unit."""
    if unit == "ms":
        return format_time(value / 1_000)
    if unit == "us":
        return format_time(value / 1_000_000)
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "rejected":
        return "client sends" if value == 1 else "all writes"
    if unit == "bytes":
        return _format_size(value)
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def format_time(seconds: float) -> str:
    """Format a length of time: `250 ms`, `12 s`, `10 min`, `1 h 5 min`, `2 d 3 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = int(seconds)
    for size, unit, smaller, smaller_unit in _TIMES:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size:,} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{seconds:.3g} s"


def _format_size(size: float) -> str:
    for unit_size, unit in _SIZES:
        if abs(size) >= unit_size:
            return f"{size / unit_size:.3g} {unit}"
    return f"{size:,.0f} bytes"
