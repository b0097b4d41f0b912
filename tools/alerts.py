"""Write the alert rules of Prometheus, and the facts in docs/alerts.md, from the table of findings.

The table is ddmq_common/findings/table.py. `--check` only says whether both files are up to date.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from itertools import groupby
from pathlib import Path

from ddmq_common.findings.conditions import (
    INSTANCE,
    Condition,
    FallsBelow,
    GaugeAbove,
    Grown,
    NoneOwned,
    NotConsumed,
    OnlyPrometheus,
    QuantileAbove,
    Selector,
    ShareAbove,
)
from ddmq_common.findings.rule import PLACEHOLDER, THRESHOLD, VALUE, FindingRule, format_time
from ddmq_common.findings.table import RULES

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "conf" / "prometheus" / "ddmq-alerts.yaml"
PAGE = ROOT / "docs" / "alerts.md"
WIDTH = 120
HEAD = """\
# Alert rules for the promises (docs/promises.md), one group for each promise. Load them with
#     rule_files: [ddmq-alerts.yaml]
# The names of the scrape jobs must begin with ddmq (job=~"ddmq.*"). critical: act now; warning: look today;
# info: no message is lost or late. Thresholds that depend on your traffic are marked "yours".
# Some counters begin with their first event, and increase() does not see a series begin: rules about those
# also check which series did not exist a while ago ("unless … offset").
# docs/alerts.md has a section for each alert. The annotation `runbook` names the section, as a path in the
# source tree; it is not a URL.
# Made by tools/alerts.py from ddmq_common/findings/table.py. A server uses the same table for GET /findings.

groups:
"""
WRAPPED = 100  # an expression that is longer is broken before its operators
VALUES = {  # how Prometheus formats the value of a rule, by its unit
    "": "{{ $value | humanize }}",
    "ms": "{{ $value | humanize }} ms",
    "us": "{{ $value | humanize }} µs",
    "bytes": "{{ $value | humanize1024 }}B",
    "share": "{{ $value | humanizePercentage }}",
    "rejected": "{{ if eq $value 1.0 }}client sends{{ else }}all writes{{ end }}",
}
FACT = re.compile(r"^### (\w+)\n(?:\*\*(?:Critical|Warning|Info)\*\*[^\n]*\n(?:[^\n]+\n)*)?\n?", re.MULTILINE)


def build_rules_file() -> str:
    """Return the text of the rules file."""
    groups = groupby(RULES, lambda rule: rule.promise)
    return HEAD + "\n".join(
        f"  - name: {name}\n    rules:\n{''.join(map(_alert, rules))}" for name, rules in groups
    )


def _alert(rule: FindingRule) -> str:
    lines = [f"      - alert: {rule.name}"]
    parts = build_expression(rule.condition)
    if len(" ".join(parts)) <= WRAPPED:
        lines.append(f"        expr: {' '.join(parts)}")
    else:
        lines += ["        expr: >-", *(f"          {part}" for part in parts)]
    if rule.for_s:
        lines.append(f"        for: {format_duration(rule.for_s)}")
    note = f"  # {rule.note}" if rule.note else ""
    lines += [
        f"        labels: {{severity: {rule.severity}}}{note}",
        "        annotations:",
        f"          summary: {_quote(to_template(rule))}",
        f"          action: {_quote(rule.action)}",
        f"          runbook: {rule.runbook}",
    ]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def to_template(rule: FindingRule) -> str:
    """Return the rule's sentence as a template of Prometheus."""

    def fill_placeholder(match: re.Match[str]) -> str:
        if match[1] == VALUE:
            return VALUES[rule.unit] + (f" {match[2]}s" if match[2] else "")
        return rule.shown_threshold if match[1] == THRESHOLD else f"{{{{ $labels.{match[1]} }}}}"

    return PLACEHOLDER.sub(fill_placeholder, rule.text)


def format_duration(seconds: int) -> str:
    """Return a duration as PromQL has it: 15m, 1h."""
    return f"{seconds // 3600}h" if seconds % 3600 == 0 else f"{seconds // 60}m"


def build_expression(condition: Condition) -> list[str]:
    """Return the PromQL of a condition, in parts that may go on lines of their own."""
    by = condition.by
    match condition:
        case OnlyPrometheus():
            return [condition.expression]
        case GaugeAbove():
            function = "sum" if condition.total else "max"
            level = f"{_aggregate(function, by, condition.metric.name)} > {_number(condition.above)}"
            return [level, *(f"unless {line}" for line in _exempt(condition))]
        case NoneOwned():
            name = condition.metric.name
            return [f"sum({name}) < 1", f"or absent({name})"]
        case Grown():
            return _join_with_or([part for each in condition.series for part in _grown(each, condition)])
        case ShareAbove():
            window = format_duration(condition.window_s)
            part, whole = (
                _aggregate("sum", by, f"rate({_selector(each)}[{window}])")
                for each in (condition.part, condition.whole)
            )
            return [part, f"/ {whole} > {_number(condition.above)}"]
        case QuantileAbove():
            rate = f"rate({condition.metric.name}_bucket[{format_duration(condition.window_s)}])"
            buckets = _aggregate("sum", (*by, "le"), rate)
            return [f"histogram_quantile({condition.quantile}, {buckets}) > {_number(condition.above)}"]
        case NotConsumed():
            window = format_duration(condition.window_s)
            flows = [
                f"{_aggregate('sum', by, f'increase({flow.name}[{window}])')} > 0" for flow in condition.flows
            ]
            lag = f"{_aggregate('sum', by, condition.lag.name)} > 0"
            excluded = _join_with_or([*flows, *_exempt(condition)])
            return [lag, "unless (", *(f"  {line}" for line in excluded), ")"]
        case FallsBelow():
            name = condition.metric.name
            slope = _aggregate("min", by, f"deriv({name}[{format_duration(condition.window_s)}])")
            level = _aggregate("min", by, name)
            return [level, f"+ {condition.ahead_s} * {slope} < {_number(condition.below)}"]


def _exempt(condition: GaugeAbove | NotConsumed) -> list[str]:
    if condition.unless is None:
        return []
    return [f"{_aggregate('max', condition.by, condition.unless.name)} > 0"]


def _grown(series: Selector, condition: Grown) -> list[str]:
    window, selector = format_duration(condition.window_s), _selector(series)
    function = "rate" if condition.steady else "increase"
    lines = [f"{_aggregate('sum', condition.by, f'{function}({selector}[{window}])')} > 0"]
    if condition.rare:
        begun = f"{selector} unless {selector} offset {window}"
        lines.append(f"{_aggregate('sum', condition.by, begun)} > 0")
    return lines


def _join_with_or(lines: list[str]) -> list[str]:
    return [lines[0], *(f"or {line}" for line in lines[1:])]


def _aggregate(function: str, by: tuple[str, ...], expression: str) -> str:
    labels = ", ".join("job, instance" if label == INSTANCE else label for label in by)
    return f"{function} by ({labels}) ({expression})" if labels else f"{function}({expression})"


def _selector(series: Selector) -> str:
    matchers = [
        f'{label}="{values[0]}"' if len(values) == 1 else f'{label}=~"{"|".join(values)}"'
        for label, values in series.only.items()
    ]
    matchers += [f'{label}!="{value}"' for label, values in series.without.items() for value in values]
    return series.metric.name + (f"{{{', '.join(matchers)}}}" if matchers else "")


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value}"


def build_page(page: str) -> str:
    """Return docs/alerts.md with the present facts below each heading."""
    facts = {rule.name: describe_rule(rule) for rule in RULES}
    return FACT.sub(lambda match: f"### {match[1]}\n{facts.get(match[1], '')}\n", page)


def describe_rule(rule: FindingRule) -> str:
    """Return the severity, the duration and the condition of a rule, as a paragraph of the page."""
    after = f", after {format_time(rule.for_s)}" if rule.for_s else ""
    text = f"**{rule.severity.capitalize()}**{after}: {_describe_condition(rule)}."
    return "\n".join(textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)) + "\n"


def _describe_condition(rule: FindingRule) -> str:
    condition, threshold = rule.condition, rule.shown_threshold
    if rule.unit == "rejected":
        threshold = _number(rule.threshold or 0)
    match condition:
        case OnlyPrometheus():
            return f"`{condition.expression}`. Only Prometheus can tell: {condition.reason}"
        case GaugeAbove():
            return f"`{condition.metric.name}` is above {threshold}{_describe_exemption(condition)}"
        case NoneOwned():
            return f"`{condition.metric.name}` is 0 in all processes"
        case Grown():
            names = " or ".join(f"`{_selector(each)}`" for each in condition.series)
            return f"{names} has grown within {format_time(condition.window_s)}"
        case ShareAbove():
            return (
                f"the growth of `{_selector(condition.part)}` is more than {threshold} of the growth of "
                f"`{_selector(condition.whole)}` within {format_time(condition.window_s)}"
            )
        case QuantileAbove():
            quantile = f"{condition.quantile * 100:g}th percentile"
            window = format_time(condition.window_s)
            return f"the {quantile} of `{condition.metric.name}` over {window} is above {threshold}"
        case NotConsumed():
            names = ", ".join(f"`{flow.name}`" for flow in condition.flows)
            window = format_time(condition.window_s)
            idle = f"`{condition.lag.name}` is above 0, and none of {names} has grown within {window}"
            return idle + _describe_exemption(condition)
        case FallsBelow():
            ahead, window = format_time(condition.ahead_s), format_time(condition.window_s)
            name = condition.metric.name
            return f"`{name}` falls below {threshold} within {ahead}, if the trend of {window} continues"


def _describe_exemption(condition: GaugeAbove | NotConsumed) -> str:
    return "" if condition.unless is None else f", unless `{condition.unless.name}` is above 0"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    texts = {FILE: build_rules_file(), PAGE: build_page(page)}
    stale = [file for file, text in texts.items() if file.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        print("alerts: run `python tools/alerts.py`" if stale else "alerts: rules and page are up to date")
        return int(bool(stale))
    for file in stale:
        file.write_text(texts[file], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
