"""A clock that is ahead of the job's own over a midnight is put back by one amount over the whole run."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from metrics_job.minutes import INTERVAL, MINUTE_MS, minutes_schema
from metrics_job.rollups.groups import lag_minute
from metrics_job.tables import COUNTERS_MINUTE

MIDNIGHT = 1_767_657_600_000  # 2026-01-06 00:00 UTC
STEP_MS = 10_000
AHEAD_MS = 4 * 3_600_000 + 17_000
STEPS = range(-18, 18)  # samples of three minutes before and after the midnight of the clock that is ahead


def row(kind: str, seq: int, to_ms: int, **other: Any) -> dict[str, Any]:
    """A row of metrics_job.minutes of one process."""
    base = {
        "kind": kind,
        "minute": to_ms // MINUTE_MS,
        "process": "p",
        "instance": "i",
        "seq": seq,
        "to_ms": to_ms,
    }
    return base | other


def history(midnight: int) -> list[dict[str, Any]]:
    """A lag that grows by 1 with each sample, as the workers give it: a row for each minute of its clock."""
    rows: list[dict[str, Any]] = []
    minutes: dict[int, list[tuple[int, int, float]]] = {}
    for seq, step in enumerate(STEPS):
        to_ms = midnight + step * STEP_MS
        is_last = seq == len(STEPS) - 1
        of_run = {"from_ms": to_ms - STEP_MS, "lines": 2, "copies": 2, "is_last": is_last}
        rows.append(row(INTERVAL, seq, to_ms, **of_run))
        minutes.setdefault(to_ms // MINUTE_MS, []).append((to_ms, seq, float(100 + seq)))
    for samples in minutes.values():
        to_ms, seq, value = samples[-1]
        names = {
            "metric": "ddmq_lag",
            "topic": "t",
            "group": "g",
            "detail": "",
            "last": value,
            "told": samples,
        }
        rows.append(row("gauge", seq, to_ms, **names))
    return rows


def minutes_of_lag(spark: SparkSession, rows: list[dict[str, Any]], now_ms: int) -> dict[int, float]:
    minutes = spark.createDataFrame(rows, minutes_schema())
    counters = spark.createDataFrame([], COUNTERS_MINUTE.schema)
    lags = lag_minute(minutes, counters, now_ms).select("minute", "lag").collect()
    assert len({one["minute"] for one in lags}) == len(lags), "a minute is there twice"
    return {one["minute"]: one["lag"] for one in lags}


@pytest.mark.parametrize("away_ms", [AHEAD_MS, AHEAD_MS + 43_000, 3 * STEP_MS, 7_000])
def test_a_clock_ahead_over_a_midnight_gives_the_minutes_of_a_right_one(
    spark: SparkSession, away_ms: int
) -> None:
    """The same history, once told by a right clock and once by one that is ahead."""
    now_ms = MIDNIGHT - away_ms + STEPS[-1] * STEP_MS
    right = minutes_of_lag(spark, history(MIDNIGHT - away_ms), now_ms)
    assert minutes_of_lag(spark, history(MIDNIGHT), now_ms) == right
    assert max(right.items())[1] == 100 + len(STEPS) - 2, "the last word of a process that stops says nothing"
