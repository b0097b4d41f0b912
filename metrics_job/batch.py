"""The batch job: samples of whole days in, their tables out, replaced.

Everything is made from minutes (one reading of the files, persisted) and from tables made before. The job may
be repeated, on the same range or on one that overlaps: the dates it covers are replaced, nothing else is
touched. A date of which samples are gone (retention) keeps its tables (metrics_job.kept).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import date, timedelta
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ddmq_common.metrics.samples import day_of
from metrics_job.arrow.read import read_minutes
from metrics_job.folders import Days, Folders, days_of, near
from metrics_job.kept import notes_now, read_note, sort_days, write_note
from metrics_job.minutes import Keep
from metrics_job.rollups import anomalies, groups, latencies, numbers, objectives, processes
from metrics_job.rollups.objectives import Goals
from metrics_job.session import quiet_interrupt, session, settings_of_the_job
from metrics_job.tables import (
    ANOMALIES_HOUR,
    COUNTERS_HOUR,
    COUNTERS_MINUTE,
    GAUGES_HOUR,
    GAUGES_MINUTE,
    LAG_MINUTE,
    LATENCIES_HOUR,
    LATENCIES_MINUTE,
    PARTITION,
    PROCESSES,
    RATIOS_HOUR,
    REJECTS,
    SLO_DAY,
)
from metrics_job.write import Store, partition_path


def run_batch(
    samples: Path | str,
    out: Path | str,
    from_ms: int | None = None,
    to_ms: int | None = None,
    config: Path | None = None,
    spark: SparkSession | None = None,
    again: bool | None = None,
) -> list[date]:
    """Tables of every UTC day that [from_ms, to_ms) touches (None: open) and that has samples; these days.

    Days whose samples are as they were are computed again only with `again` (None: when a range is given),
    those of which samples are gone never. `config`: a folder with slo.yaml. Raises ConfigError when `samples`
    is not there or the range is empty.
    """
    wanted, goals = days_of(from_ms, to_ms), objectives.load_objectives(config)
    own = spark is None and SparkSession.getActiveSession() is None
    spark = spark or session()
    with settings_of_the_job(spark), quiet_interrupt(spark) if own else nullcontext():
        if again is None:
            again = not (from_ms is None and to_ms is None)
        return _run(spark, str(samples), str(out), wanted, goals, again)


def _run(spark: SparkSession, samples: str, out: str, wanted: Days, goals: Goals, again: bool) -> list[date]:
    folders = Folders(spark)
    hours = folders.hours(samples, wanted)
    days = sorted({hour.start.date() for hour in hours if wanted.hold(hour.start.date())})
    if not days:
        return []
    at = {day: partition_path(out, PROCESSES, day) for day in days}
    newest = max(filter(None, map(day_of, folders.names(samples))), default=days[-1])
    now = notes_now(folders, hours, days, goals)
    todo = sort_days(days, {day: read_note(folders, at[day]) for day in days}, now, newest, again)
    if todo.lost:
        listed = ", ".join(map(str, todo.lost))
        print(f"samples of {listed} are gone since their tables were made: they are kept", file=sys.stderr)
    if todo.compute:
        whole = Days(todo.compute[0], todo.compute[-1] + timedelta(days=1))
        paths = [hour.path for hour in hours if near(todo.compute, hour.start)]
        _write_tables(spark, out, paths, whole, todo.compute, goals)
    for day in todo.compute:
        write_note(folders, at[day], now[day])
    return days


def _write_tables(
    spark: SparkSession, out: str, paths: list[str], whole: Days, days: Sequence[date], goals: Goals
) -> None:
    """Every table of these days, from the lines of `whole`, which holds them, in these folders."""
    kept: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    try:
        store, found = Store(spark, out, days), read_minutes(spark, paths, whole, keep)
        now_ms = time.time_ns() // 1_000_000
        counters = write_series(store, found.made, keep)
        store.write(LAG_MINUTE, groups.lag_minute(found.made, counters, now_ms))
        store.write(PROCESSES, processes.processes(found.made, now_ms))
        odd = None if found.odd is None else processes.refused(found.odd)
        store.write(REJECTS, None if odd is None else processes.rejects(odd))
        write_judged(store, days, goals)
    finally:
        for rows in kept:
            rows.unpersist()


def write_series(store: Store, made: DataFrame, keep: Keep) -> DataFrame:
    """What was told by minute and by hour; gives counters_minute."""
    counters, gauges = keep(numbers.counters_minute(made)), keep(numbers.gauges_minute(made))
    histograms = keep(latencies.latencies(made))
    store.write(COUNTERS_MINUTE, counters)
    store.write(COUNTERS_HOUR, numbers.counters_hour(counters, made))
    store.write(GAUGES_MINUTE, gauges)
    store.write(GAUGES_HOUR, numbers.gauges_hour(gauges))
    store.write(LATENCIES_MINUTE, latencies.of_period(histograms, "minute"))
    store.write(LATENCIES_HOUR, latencies.of_period(histograms, "hour"))
    return counters


def write_judged(store: Store, days: Sequence[date], goals: Goals) -> None:
    """What compares hours: with what was promised, and with former weeks; from the tables as written."""
    day = F.col(PARTITION)
    all_counters, all_latencies = store.read(COUNTERS_HOUR), store.read(LATENCIES_HOUR)
    counters, slow = all_counters.filter(day.isin(list(days))), all_latencies.filter(day.isin(list(days)))
    store.write(RATIOS_HOUR, groups.ratios_hour(counters))
    lags, gauges = (store.read(table).filter(day.isin(list(days))) for table in (LAG_MINUTE, GAUGES_MINUTE))
    observed = objectives.Observed(counters, slow, lags, gauges.select("start").distinct())
    judged = objectives.slo_day(observed, goals)
    if judged is not None:
        store.write(SLO_DAY, judged)
    history = sorted({one - timedelta(weeks=week) for one in days for week in range(1, anomalies.WEEKS + 1)})
    former = anomalies.hour_values(
        all_counters.filter(day.isin(history)), all_latencies.filter(day.isin(history))
    )
    now, hours = anomalies.hour_values(counters, slow), counters.select("start").distinct()
    store.write(ANOMALIES_HOUR, anomalies.anomalies_hour(now, former, hours))
