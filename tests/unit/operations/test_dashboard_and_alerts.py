"""The ready dashboard and alert rules say only what there is: metrics, labels, PromQL, sections of docs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddmq_common.findings.conditions import GaugeAbove
from ddmq_common.findings.rule import SEVERITIES
from ddmq_common.metrics.catalogue import CATALOGUE
from tools import alerts, dashboard
from tools.promql import ExpressionError, find_errors, selectors

ROOT = Path(__file__).resolve().parents[3]
RULES = yaml.safe_load((ROOT / "conf" / "prometheus" / "ddmq-alerts.yaml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
SHOWN = json.loads(dashboard.FILE.read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
DURATION = re.compile(r"\d+[smhd]")


def panels(of: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in of:
        yield panel
        yield from panels(panel.get("panels", []))


def expressions() -> Iterator[str]:
    for panel in panels(SHOWN["panels"]):
        for target in panel.get("targets", ()):
            yield target["expr"]


# --- dashboard


def test_the_dashboard_matches_its_table() -> None:
    assert dashboard.dashboard() == SHOWN, "run python tools/dashboard.py"


def test_every_expression_of_the_dashboard_is_promql_over_the_catalogue() -> None:
    assert [error for expression in expressions() for error in find_errors(expression)] == []


def test_every_metric_has_a_panel() -> None:
    used = {
        use.metric.name
        for expression in expressions()
        for use in selectors(expression)
        if use.metric is not None
    }
    assert used == set(CATALOGUE)


def test_rows_panels_and_variables_hold_together() -> None:
    rows = [panel["title"] for panel in SHOWN["panels"] if panel["type"] == "row"]
    assert rows == ["Flow", "Latency", "Consumers", "Delay", "Log", "Kafka", "Processes", dashboard.REST]
    everything = list(panels(SHOWN["panels"]))
    assert len({panel["id"] for panel in everything}) == len(everything)
    variables = {variable["name"] for variable in SHOWN["templating"]["list"]}
    used_names = {name for text in expressions() for name in re.findall(r"\$(\w+)", text)} - {
        "__rate_interval"
    }
    assert used_names <= variables
    assert {panel["datasource"]["uid"] for panel in everything if "targets" in panel} == {"${datasource}"}


def test_panels_do_not_lie_on_each_other() -> None:
    for level in (SHOWN["panels"], *(panel["panels"] for panel in SHOWN["panels"] if panel.get("panels"))):
        occupied: set[tuple[int, int]] = set()
        for panel in level:
            at = panel["gridPos"]
            cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
            assert at["x"] + at["w"] <= dashboard.WIDTH
            assert not cells & occupied, panel["title"]
            occupied |= cells


# --- alerts


def test_rules_and_page_match_the_table_of_findings() -> None:
    assert alerts.build_rules_file() == alerts.FILE.read_text(encoding="utf-8"), "run python tools/alerts.py"
    assert alerts.build_page(PAGE) == PAGE, "run python tools/alerts.py"


def test_a_changed_threshold_makes_rules_and_page_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {rule.name: rule for rule in alerts.RULES}
    lag_old = rules["DdmqLagOld"]
    assert isinstance(lag_old.condition, GaugeAbove)
    rules["DdmqLagOld"] = lag_old._replace(condition=lag_old.condition._replace(above=123_000))
    monkeypatch.setattr(alerts, "RULES", list(rules.values()))
    assert "max by (group, topic) (ddmq_lag_age_ms) > 123000" in alerts.build_rules_file()
    assert "`ddmq_lag_age_ms` is above 2 min 3 s, unless " in alerts.build_page(PAGE)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_severity_summary_and_action(rule: dict[str, Any]) -> None:
    assert find_errors(rule["expr"]) == []
    assert rule["labels"]["severity"] in SEVERITIES
    assert DURATION.fullmatch(rule.get("for", "0s"))
    texts = rule["annotations"]
    assert texts["summary"]
    assert texts["action"]
    assert "runbook_url" not in texts, "a place in this tree is no URL"
    assert texts["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
    labels = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"])))) - {"le"}
    if not labels:
        labels = set[str]().union(*(use.labels for use in selectors(rule["expr"])))
    used_names = set(re.findall(r"\$labels\.(\w+)", " ".join(texts.values())))
    assert used_names <= labels, "the text names labels that the alert does not have"


# There with 0 from the start of their process, so increase() sees their first event.
FROM_THE_START = {"ddmq_log_rescues_total", "ddmq_takeovers_total", "ddmq_kafka_producers_replaced_total"}
# Of something that goes on happening: whoever misses the first hears the next.
REPEATING = {"ddmq_unkeyed_total", "ddmq_delay_order_outcomes_total"} | {
    f"ddmq_{flow}_total" for flow in ("delivered", "fetched", "pushes")
}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_about_rare_events_sees_the_first(rule: dict[str, Any]) -> None:
    """A group's counters begin when it first pulls from a process, which is when it finds what is gone."""
    for metric in re.findall(r"increase\((ddmq_\w+_total)", rule["expr"]):
        absence_rule = re.search(rf"{metric}(\{{[^}}]*\}})? unless {metric}", rule["expr"])
        assert absence_rule or metric in FROM_THE_START | REPEATING


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == names


def test_alerts_that_the_page_names_exist() -> None:
    assert set(re.findall(r"\bDdmq[A-Z]\w+", PAGE)) <= {rule["alert"] for rule in ALERTS}
    used_names = set(re.findall(r"\bddmq_[a-z_]+(?![/\w])", PAGE))
    assert used_names <= set(CATALOGUE)


# --- the reader of PromQL


@pytest.mark.parametrize(
    "expression",
    [
        'sum by (topic) (rate(ddmq_sends_total{code="0", topic=~"$topic"}[$__rate_interval]))',
        "sum(rate(ddmq_sends_total[5m])) without (job) / 2",
        "histogram_quantile(0.99, sum by (le) (rate(ddmq_send_latency_us_bucket[5m])))",
        "-(ddmq_lag + on (group) group_left (topic) ddmq_inflight offset 5m) >= bool 1e3",
        "sum by (topic) (ddmq_sends_total unless ddmq_sends_total offset 15m) > 0",
        "topk(5, max_over_time(ddmq_lag_age_ms[1h])) unless up == 0",
    ],
)
def test_valid_promql_is_accepted(expression: str) -> None:
    assert find_errors(expression) == []


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("rate(ddmq_sends[5m])", "ddmq_sends is not in the catalogue"),
        ("rate(ddmq_sends_total[5m]", "unclosed left parenthesis"),
        ("rate(ddmq_sends_total[5m]))", "unexpected right parenthesis"),
        ("rate(ddmq_sends_total)", "expected type matrix"),
        ("ddmq_lag[5m]", "a range has no value without a function"),
        ("ddmq_sends_total unless ddmq_lag offset 5m", "take its rate or increase"),
        ("ddmq_sends_total unless ddmq_sends_total", "take its rate or increase"),
        ("sum(ddmq_sends_total)", "take its rate or increase"),
        ("sum by (group) (rate(ddmq_sends_total[5m]))", "no label group to group by"),
        ("sum(rate(ddmq_sends_total[5m])) by (key)", "no label key to group by"),
        ('ddmq_lag{queue="1"}', "ddmq_lag has no label queue"),
        ("ddmq_lag{group=1}", "unexpected character inside braces"),
        ("rate(ddmq_send_latency_us[5m])", "use ddmq_send_latency_us_bucket"),
        ("histogram_quantile(0.9, rate(ddmq_send_latency_us_sum[5m]))", "needs buckets"),
        ("median(ddmq_lag)", "unknown function with name 'median'"),
        ("ddmq_lag >", "invalid promql query"),
        ("ddmq_lag & 1", "unexpected character: '&'"),
        ('ddmq_lag{group=~"(["}', "illegal regex"),
        ("sum(rate(ddmq_sends_total[5m])) + 'a'", "must contain only scalar and instant vector"),
        ("", "no expression found"),
    ],
)
def test_invalid_expressions_are_rejected_with_the_reason(expression: str, words: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(words)):
        selectors(expression)
