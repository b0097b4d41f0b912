"""How processes ended, judged at a given time."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from metrics_job.minutes import INTERVAL, minutes_schema
from metrics_job.rollups.processes import process_rows

NOW = 1_767_614_400_000  # 2026-01-05 12:00 UTC
INTERVAL_MS = 10_000


def interval(process: str, seq: int, to_ms: int) -> dict[str, object]:
    row = {"kind": INTERVAL, "minute": to_ms // 60_000, "process": process, "instance": process, "seq": seq}
    return row | {"from_ms": to_ms - INTERVAL_MS, "to_ms": to_ms, "lines": 1, "copies": 1, "is_last": False}


@pytest.mark.parametrize(("silent_s", "ended"), [(20, "running"), (119, "running"), (121, "vanished")])
def test_a_fast_clock_makes_no_process_vanish(spark: SparkSession, silent_s: int, ended: str) -> None:
    healthy, ahead = NOW - silent_s * 1000, NOW + 150_000
    minutes = [
        interval(process, seq, last - (1 - seq) * INTERVAL_MS)
        for process, last in (("healthy", healthy), ("ahead", ahead))
        for seq in (0, 1)
    ]
    rows = (
        process_rows(spark.createDataFrame(minutes, minutes_schema()), NOW)
        .select("process", "ended")
        .collect()
    )
    assert {row["process"]: row["ended"] for row in rows} == {"healthy": ended, "ahead": "running"}
