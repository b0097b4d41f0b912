"""A demo-sized run: of promises that were missed by few nothing is judged, and the report is green."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ddmq_common.metrics.cells import bucket_index
from ddmq_common.metrics.samples import folder, interval_name
from metrics_job.batch import run_batch
from metrics_job.report.run import read_report
from tests.spark import tables_read

NOON = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp()) * 1000
DAY_MS = 86_400_000
DAYS = {9: NOON, 10: NOON + DAY_MS}  # misses, and when
INTERVAL_MS = 10_000
OF_GROUP = {"group": "g", "topic": "few"}


def sends(topic: str, code: int, count: int) -> dict[str, object]:
    return {"metric": "ddmq_sends_total", "labels": {"topic": topic, "code": str(code)}, "value": count}


def waits(labels: dict[str, str], quick: int, slow: int) -> dict[str, object]:
    met = {bucket_index(wait_us): count for wait_us, count in ((1_000, quick), (30_000_000, slow)) if count}
    counted = {"sum": quick * 1_000 + slow * 30_000_000, "buckets": [*met], "counts": [*met.values()]}
    return {"metric": "ddmq_queue_wait_us", "labels": labels, **counted}


def put(samples: Path, noon: int, seq: int, *values: dict[str, object]) -> None:
    to_ms = noon + seq * INTERVAL_MS
    run = f"{noon:016x}"
    head = {"v": 1, "process": "p@h", "instance": run, "seq": seq, "from": to_ms - INTERVAL_MS, "to": to_ms}
    first = {"metric": "ddmq_process", "labels": {"state": "running" if seq else "first"}, "value": 1}
    path = samples / folder(to_ms) / str(interval_name(run, seq))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(head | one) + "\n" for one in (first, *values)))


@pytest.fixture(scope="module")
def out(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of both days."""
    root = tmp_path_factory.mktemp("few")
    for misses, noon in DAYS.items():
        put(
            root / "samples",
            noon,
            0,
            sends("few", 0, 5),
            sends("few", 13, misses),
            sends("few", 20, 500),  # by a proxy that stops: its clients sent to another one
            waits(OF_GROUP, 2, misses),
        )
        put(root / "samples", noon, 1, sends("few", 0, 5), waits(OF_GROUP, 1, 0))
    assert len(run_batch(root / "samples", root / "out", spark=spark)) == len(DAYS)
    return root / "out"


@pytest.mark.parametrize(("misses", "met"), [(9, None), (10, False)])
def test_a_promise_missed_by_few_is_not_judged(out: Path, misses: int, met: bool | None) -> None:
    noon = DAYS[misses]
    table = tables_read.rows(out, "slo_day", ("date", "slo", "topic", "group"), ("good", "total", "met"))
    rows = {tuple(key): row for (day, *key), row in table.items() if day == noon // DAY_MS}
    assert rows["sends stored", "few", ""] == (10, 10 + misses, met)
    assert rows["sends stored", "", ""] == (10, 10 + misses, met)
    assert rows["waiting at most 1 s", "few", "g"] == (3, 3 + misses, met)
    report = read_report(out, noon - 60_000, noon + 60_000)
    assert report.is_well is (met is None), report.findings
    assert {row.days_unjudged for row in report.slo} == {1 if met is None else 0}
