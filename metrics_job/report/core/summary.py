"""The report for programs: the same facts as the page, without the points of its charts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from metrics_job.report.core.facts import Report, Times


def summary(report: Report) -> dict[str, Any]:
    """Plain data; times in epoch ms, durations as their names say. `ok` is the verdict."""
    return {
        "ok": report.ok,
        "from_ms": report.span.start_ms,
        "to_ms": report.span.end_ms,
        "covered_from_ms": report.covered[0] if report.covered else None,
        "covered_to_ms": report.covered[1] if report.covered else None,
        "findings": [finding.text for finding in report.findings],
        "totals": asdict(report.totals),
        "topics": {topic: asdict(totals) for topic, totals in report.topics.items()},
        "times_ms": {times.title: _times(times) for times in report.times if times.whole},
        "subscriptions": [row._asdict() for row in report.waiting],
        "slo": [{**asdict(row), "compliance": row.compliance, "met": row.met} for row in report.slo],
        "processes": [{**asdict(row), "restarts": row.restarts} for row in report.processes],
        "offenders": {
            found.title: [{"name": row.name, "value": row.value, "note": row.note} for row in found.rows]
            for found in report.offenders
        },
        "changes": [row._asdict() for row in report.changes],
        "anomalies": [{**row, "date": str(row.get("date"))} for row in report.anomalies],
        "rejects": [{**row, "date": str(row.get("date"))} for row in report.rejects],
    }


def _times(times: Times) -> dict[str, Any]:
    return times.whole._asdict() if times.whole else {}
