"""Write conf/grafana/ddmq-dashboard.json from the catalogue and the layout below; `--check` only compares.

The layout names metrics and what to split them by; expression, unit and description come from the
catalogue. What the layout does not name is shown in the last row, so no metric is ever without a panel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.metric import Metric

FILE = Path(__file__).resolve().parent.parent / "conf" / "grafana" / "ddmq-dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ALERTS = "docs/alerts.md"
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
QUANTILES = (0.5, 0.99, 0.999)
UNITS = {"": "short", "us": "µs", "ms": "ms", "bytes": "bytes", "1": "short"}
WORST_UNITS, WORST = {"ms", "1"}, {"ddmq_ack_span"}  # of several processes the highest counts, not the sum
RATE_UNITS = {"": "cps", "bytes": "Bps"}
VARIABLES = {
    "job": "label_values(ddmq_rpc_connections, job)",
    "instance": 'label_values(ddmq_rpc_connections{job=~"$job"}, instance)',
    "topic": "label_values(ddmq_sends_total, topic)",
    "group": "label_values(ddmq_lag, group)",
}


class Panel(NamedTuple):
    """A panel of one metric. `by`: one line for each value of these labels. `expr`: instead of the usual.

    `width` of 24 columns; `stat`: one number, not a graph.
    """

    title: str
    metric: str
    by: tuple[str, ...] = ()
    width: int = 8
    stat: bool = False
    expr: str = ""
    unit: str = ""


LAYOUT: dict[str, list[Panel]] = {
    "Flow": [
        Panel("Stored", "ddmq_sends_total", width=4, stat=True,
              expr='sum(rate(ddmq_sends_total{code="0", SELECT}[$__rate_interval]))', unit="cps"),
        Panel("Sends not stored", "ddmq_sends_total", width=4, stat=True, unit="percentunit",
              expr='1 - sum(rate(ddmq_sends_total{code="0", SELECT}[$__rate_interval]))'
                   " / sum(rate(ddmq_sends_total{SELECT}[$__rate_interval]))"),
        Panel("Delivered", "ddmq_delivered_total", width=4, stat=True),
        Panel("Unfinished", "ddmq_lag", width=4, stat=True),
        Panel("Oldest unfinished", "ddmq_lag_age_ms", width=4, stat=True),
        Panel("Dead letters, 24 h", "ddmq_dead_letters_total", width=4, stat=True,
              expr="sum(increase(ddmq_dead_letters_total{SELECT}[1d]))", unit="short"),
        Panel("Sends by topic", "ddmq_sends_total", ("topic",)),
        Panel("Sends by code", "ddmq_sends_total", ("code",)),
        Panel("Bytes stored by topic", "ddmq_send_bytes_total", ("topic",)),
        Panel("Delivered by group", "ddmq_delivered_total", ("group", "topic")),
        Panel("Finished by group", "ddmq_acked_total", ("group", "topic")),
        Panel("Fetched by group", "ddmq_fetched_total", ("group", "topic")),
    ],
    "Latency": [
        Panel("Send: frame to answer", "ddmq_send_latency_us"),
        Panel("Send, slowest 1 % by topic", "ddmq_send_latency_us", ("topic",)),
        Panel("Stored to handed out", "ddmq_queue_wait_us"),
        Panel("Stored to handed out, slowest 1 %", "ddmq_queue_wait_us", ("group", "topic")),
        Panel("Handed out to acknowledged", "ddmq_process_us"),
        Panel("Handed out to acknowledged, slowest 1 %", "ddmq_process_us", ("group", "topic")),
    ],
    "Consumers": [
        Panel("Lag", "ddmq_lag", ("group", "topic")),
        Panel("Age of the oldest unfinished", "ddmq_lag_age_ms", ("group", "topic")),
        Panel("In flight", "ddmq_inflight", ("group", "topic")),
        Panel("Failed", "ddmq_failed_total", ("group", "topic")),
        Panel("Ack time-outs", "ddmq_lease_timeouts_total", ("group", "topic")),
        Panel("Delivered again", "ddmq_redelivered_total", ("group", "topic")),
        Panel("Waiting for a quick retry", "ddmq_retrying", ("group", "topic")),
        Panel("Waiting on the retry path", "ddmq_retry_waiting", ("group", "topic")),
        Panel("Longest on the retry path", "ddmq_retry_waiting_age_ms", ("group", "topic")),
        Panel("Steps of the retry path", "ddmq_retry_steps_total", ("group", "step")),
        Panel("Dead letters by reason", "ddmq_dead_letters_total", ("group", "reason")),
        Panel("Blocked keys", "ddmq_blocked_keys", ("group", "topic")),
        Panel("Longest blocked key", "ddmq_blocked_key_age_ms", ("group", "topic")),
        Panel("Stalled queues", "ddmq_stalled_queues", ("group", "topic")),
        Panel("Paused", "ddmq_subscription_paused", ("group", "topic")),
        Panel("Ack span", "ddmq_ack_span", ("group", "topic")),
        Panel("Finished undelivered", "ddmq_skipped_total", ("group", "reason")),
        Panel("Results that changed nothing", "ddmq_results_ignored_total", ("group", "reason")),
        Panel("Pulls by outcome", "ddmq_pulls_total", ("outcome",)),
        Panel("Pushed by outcome", "ddmq_pushes_total", ("group", "outcome")),
        Panel("One try of a sink", "ddmq_push_latency_us", ("sink",)),
        Panel("Fetches by outcome", "ddmq_fetches_total", ("outcome",)),
    ],
    "Delay": [
        Panel("Pending", "ddmq_delay_pending", ("topic",)),
        Panel("Pending bytes", "ddmq_delay_pending_bytes", ("topic",)),
        Panel("Fired", "ddmq_delay_fired_total", ("topic",)),
        Panel("Lateness", "ddmq_delay_lateness_us"),
        Panel("Due and not fired, oldest", "ddmq_delay_overdue_ms", ("shard",)),
        Panel("Held", "ddmq_delay_held", ("topic",)),
        Panel("Orders by outcome", "ddmq_delay_orders_total", ("outcome",)),
        Panel("Orders not taken in", "ddmq_delay_ingest_lag", ("shard",)),
        Panel("Lateness of levels", "ddmq_levels_lateness_us"),
        Panel("Due in levels and not fired, oldest", "ddmq_levels_overdue_ms", ("level",)),
        Panel("Waiting in levels", "ddmq_levels_pending", ("level",)),
        Panel("Fired by levels", "ddmq_levels_fired_total", ("level",)),
        Panel("Steps that failed", "ddmq_delay_failed_total", ("what", "reason")),
    ],
    "Log": [
        Panel("Write and sync of a group commit", "ddmq_log_sync_us"),
        Panel("Records of a group commit", "ddmq_log_commit_records"),
        Panel("Bytes of a group commit", "ddmq_log_commit_bytes"),
        Panel("Records", "ddmq_log_records_total", ("instance",)),
        Panel("Group commits", "ddmq_log_commits_total", ("instance",)),
        Panel("Size of the log", "ddmq_log_bytes", ("instance",)),
        Panel("Free disk", "ddmq_log_disk_free_bytes", ("instance",)),
        Panel("Gate: 1 sends, 2 all writes refused", "ddmq_log_gate", ("instance",)),
        Panel("Damage found", "ddmq_log_damaged_total", ("file",)),
    ],
    "Kafka": [
        Panel("A commit", "ddmq_kafka_commit_us"),
        Panel("A commit, slowest 1 %", "ddmq_kafka_commit_us", ("kind",)),
        Panel("Commits by outcome", "ddmq_kafka_commits_total", ("kind", "outcome")),
        Panel("Sends on their way, bytes", "ddmq_kafka_pending_bytes", ("instance",)),
        Panel("Sends on their way", "ddmq_kafka_pending_records", ("instance",)),
        Panel("Producers replaced", "ddmq_kafka_producers_replaced_total", ("instance", "producer")),
        Panel("Sends refused by partition", "ddmq_kafka_sends_refused_total", ("instance", "reason")),
        Panel("Partitions in quarantine, moves", "ddmq_kafka_quarantines_total", ("instance",)),
        Panel("Retired transactional ids", "ddmq_kafka_retired_ids", ("instance",)),
        Panel("Feature level", "ddmq_kafka_feature_level", ("instance",)),
        Panel("Round trip to a broker, slowest 1 %", "ddmq_kafka_broker_rtt_ms", ("broker",)),
        Panel("Delayed by a quota", "ddmq_kafka_throttle_ms", ("broker",)),
        Panel("Follower lag", "ddmq_kafka_follower_lag_ms", ("instance",)),
    ],
    "Processes": [
        Panel("Up", "ddmq_rpc_connections", ("instance",), unit="short",
              expr='up{job=~"$job", instance=~"$instance"}'),
        Panel("Connections", "ddmq_rpc_connections", ("service", "instance")),
        Panel("Refused frames and connections", "ddmq_rpc_refused_total", ("service", "reason")),
        Panel("Event loop blocked", "ddmq_hub_blocked_us"),
        Panel("Event loop blocked, slowest 1 %", "ddmq_hub_blocked_us", ("instance",)),
        Panel("Takeovers of the log", "ddmq_takeovers_total", ("instance",)),
    ],
}  # fmt: skip
REST = "Everything else"


def dashboard() -> dict[str, Any]:
    """The whole dashboard as Grafana imports it."""
    return {
        "uid": "ddmq",
        "title": "DDMQ",
        "description": f"Made by tools/dashboard.py. What to do about an alert: {ALERTS}.",
        "tags": ["ddmq"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(*each) for each in VARIABLES.items())]},
        "panels": list(_panels(LAYOUT | {REST: rest()})),
    }


def rest() -> list[Panel]:
    """Panels of the metrics that the layout does not name."""
    named = {panel.metric for panels in LAYOUT.values() for panel in panels}
    return [
        Panel(metric.name, metric.name, metric.labels)
        for metric in CATALOGUE.values()
        if metric.name not in named
    ]


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels(layout: dict[str, list[Panel]]) -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for title, panels in layout.items():
        folded = title == REST
        row: dict[str, Any] = {"id": number, "type": "row", "title": title, "collapsed": folded, "panels": []}
        yield row | {"gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}}
        number, y, x, high = number + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + high
            high = STAT_HEIGHT if panel.stat else HEIGHT
            drawn = _panel(number, panel) | {"gridPos": {"x": x, "y": y, "w": panel.width, "h": high}}
            number, x = number + 1, x + panel.width
            if folded:
                row["panels"].append(drawn)
            else:
                yield drawn
        y += high


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    metric = CATALOGUE[panel.metric]
    defaults: dict[str, Any] = {"unit": panel.unit or _unit(metric), "min": 0}
    if not panel.stat:
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 10,
            "showPoints": "never",
            "spanNulls": False,
        }
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": f"{metric.name}: {metric.help}",
        "datasource": SOURCE,
        "targets": list(_targets(panel, metric)),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _stat_options() if panel.stat else _graph_options(),
    }


def _stat_options() -> dict[str, Any]:
    calculated = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    return {"reduceOptions": calculated, "colorMode": "none", "graphMode": "area"}


def _graph_options() -> dict[str, Any]:
    legend = {
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        "calcs": ["lastNotNull", "max"],
    }
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _unit(metric: Metric) -> str:
    return RATE_UNITS.get(metric.unit, "short") if metric.kind == "counter" else UNITS[metric.unit]


def _targets(panel: Panel, metric: Metric) -> Iterator[dict[str, Any]]:
    for number, (expression, legend) in enumerate(_expressions(panel, metric)):
        yield {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
            "range": not panel.stat,
            "instant": panel.stat,
        }


def _expressions(panel: Panel, metric: Metric) -> Iterator[tuple[str, str]]:
    chosen = _matchers(metric)
    legend = " ".join(f"{{{{{label}}}}}" for label in panel.by)
    if panel.expr:
        yield panel.expr.replace("SELECT", chosen), legend or panel.title
        return
    split = f" by ({', '.join(panel.by)})" if panel.by else ""
    if metric.kind != "histogram":
        series = f"{metric.name}{{{chosen}}}"
        value = series if metric.kind == "gauge" else f"rate({series}[$__rate_interval])"
        how = "max" if metric.unit in WORST_UNITS or metric.name in WORST else "sum"
        yield f"{how}{split} ({value})", legend or panel.title
        return
    inner = (
        f"sum by ({', '.join((*panel.by, 'le'))}) (rate({metric.name}_bucket{{{chosen}}}[$__rate_interval]))"
    )
    for quantile in (0.99,) if panel.by else QUANTILES:
        yield f"histogram_quantile({quantile}, {inner})", legend or f"p{100 * quantile:g}"


def _matchers(metric: Metric) -> str:
    labels = ["job", "instance", *(label for label in ("group", "topic") if label in metric.labels)]
    return ", ".join(f'{label}=~"${label}"' for label in labels)


def main() -> int:
    """Write it, or with `--check` say whether it is up to date."""
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv:
        fresh = FILE.exists() and FILE.read_text(encoding="utf-8") == text
        print("dashboard: it is up to date" if fresh else "dashboard: run `python tools/dashboard.py`")
        return 0 if fresh else 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
