"""The batch job: compute the tables of complete UTC days from their samples, and replace them.

All tables are computed from minutes (one reading of the files, persisted), which stay in memory until the
last table is written; only former weeks are read from tables. The job may be repeated, on the same range or
on one that overlaps: the dates it covers are replaced, nothing else is touched. One run at a time writes
into a folder (metrics_job.lock).

The names and sizes of sample files decide which days are computed again. A file next to a day's tables
records how many intervals and bytes each of its hours had when the tables were computed:

* A day whose hours have the same numbers is unchanged.
* A day with fewer intervals has lost samples (retention). Its tables hold more than could be computed again,
  so they are kept. The same holds for fewer bytes in as many intervals, unless a range names the day.

Merging files changes no number.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ddmq_common.metrics.samples import day_of, parse
from metrics_job import tables
from metrics_job.arrow.read import read_minutes
from metrics_job.folders import Days, Folders, Hour, days_of, is_near_days
from metrics_job.lock import locked_folder
from metrics_job.minutes import Keep, caching_rows
from metrics_job.rollups import groups, judged, processes, series
from metrics_job.rollups.judged import Goals
from metrics_job.session import quiet_interrupt, session, settings_of_the_job
from metrics_job.tables import PARTITION, Store, Table, partition_path


def run_batch(
    samples: Path | str,
    out: Path | str,
    from_ms: int | None = None,
    to_ms: int | None = None,
    config: Path | None = None,
    spark: SparkSession | None = None,
    recompute: bool | None = None,
) -> list[date]:
    """Compute the tables of the UTC days in [from_ms, to_ms) that have samples, and return these days.

    None leaves an end of the range open. Days with unchanged samples are computed only with `recompute`
    (None: if a range is given), days that have lost samples never. `config`: a folder with slo.yaml. Raises
    ConfigError if `samples` does not exist, the range is empty, or another run writes into `out`.
    """
    date_range, goals = days_of(from_ms, to_ms), judged.load_objectives(config)
    own = spark is None and SparkSession.getActiveSession() is None
    spark = spark or session()
    with settings_of_the_job(spark), quiet_interrupt(spark) if own else nullcontext():
        if recompute is None:
            recompute = not (from_ms is None and to_ms is None)
        return _run(spark, str(samples), str(out), date_range, goals, recompute)


def _run(
    spark: SparkSession, samples: str, out: str, date_range: Days, goals: Goals, recompute: bool
) -> list[date]:
    folders = Folders(spark)
    hours = folders.list_hours(samples, date_range)
    days = sorted({hour.start.date() for hour in hours if date_range.contains(hour.start.date())})
    if not days:
        return []
    with locked_folder(folders.find_local_path(out), "metrics_job batch"):
        _update_days(spark, folders, samples, out, hours, days, goals, recompute)
    return days


def _update_days(
    spark: SparkSession,
    folders: Folders,
    samples: str,
    out: str,
    hours: list[Hour],
    days: list[date],
    goals: Goals,
    recompute: bool,
) -> None:
    """Compute the days whose samples have changed, and record the samples that they were computed from."""
    at = {day: partition_path(out, tables.PROCESSES, day) for day in days}
    newest = max(filter(None, map(day_of, folders.list_names(samples))), default=days[-1])
    now = build_sources(folders, hours, days, goals)
    todo = sort_days(days, {day: read_source(folders, at[day]) for day in days}, now, newest, recompute)
    if todo.lost:
        listed = ", ".join(map(str, todo.lost))
        print(f"samples of {listed} are gone since their tables were made: they are kept", file=sys.stderr)
    if todo.compute:
        day_range = Days(todo.compute[0], todo.compute[-1] + timedelta(days=1))
        paths = [hour.path for hour in hours if is_near_days(todo.compute, hour.start)]
        _write_tables(spark, out, paths, day_range, todo.compute, goals)
    for day in todo.compute:
        write_source(folders, at[day], now[day])


def _write_tables(
    spark: SparkSession, out: str, paths: list[str], day_range: Days, days: Sequence[date], goals: Goals
) -> None:
    """Write all tables of these days from the samples in `paths`.

    `day_range`: from the first day to the last.
    """
    store, now_ms = Store(spark, out, days), time.time_ns() // 1_000_000
    with caching_rows() as keep:
        samples = read_minutes(spark, paths, day_range, keep)
        written = write_series(store, samples.minutes, keep)
        lags = keep(groups.lag_minute(samples.minutes, written[tables.COUNTERS_MINUTE], now_ms))
        written[tables.LAG_MINUTE] = store.shape_rows(tables.LAG_MINUTE, lags)
        store.write(tables.LAG_MINUTE, lags)
        store.write(tables.PROCESSES, processes.process_rows(samples.minutes, now_ms))
        refused = None if samples.spark_lines is None else processes.refused_lines(samples.spark_lines)
        store.write(tables.REJECTS, None if refused is None else processes.count_rejects(refused))
        write_judged(store, written, days, goals)


Written = dict[Table, DataFrame]  # tables as they were written, from memory


def write_series(store: Store, minutes: DataFrame, keep: Keep) -> Written:
    """Write the counter, gauge and latency tables by minute and by hour; return their rows, without reading
    the files back."""
    counters, gauges = keep(series.counters_minute(minutes)), keep(series.gauges_minute(minutes))
    histograms = keep(series.latency_rows(minutes))
    rows = {
        tables.COUNTERS_MINUTE: counters,
        tables.COUNTERS_HOUR: keep(series.counters_hour(counters, minutes)),
        tables.GAUGES_MINUTE: gauges,
        tables.GAUGES_HOUR: series.gauges_hour(gauges),
        tables.LATENCIES_MINUTE: histograms.filter(F.col("period") == "minute"),
        tables.LATENCIES_HOUR: histograms.filter(F.col("period") == "hour"),
    }
    for table, some in rows.items():
        store.write(table, some)
    return {table: store.shape_rows(table, some) for table, some in rows.items()}


def write_judged(store: Store, written: Written, days: Sequence[date], goals: Goals) -> None:
    """Write the tables of objectives and anomalies for these days. The rows of this run are taken from
    memory, because readers may replace files meanwhile; the rows of earlier weeks are read from the
    tables."""
    counters, slow = written[tables.COUNTERS_HOUR], written[tables.LATENCIES_HOUR]
    store.write(tables.RATIOS_HOUR, groups.ratios_hour(counters))
    sampled = written[tables.GAUGES_MINUTE].select("start").distinct()
    observed = judged.Observed(counters, slow, written[tables.LAG_MINUTE], sampled)
    promises = judged.slo_day(observed, goals)
    if promises is not None:
        store.write(tables.SLO_DAY, promises)
    now, hours = judged.hour_values(counters, slow), counters.select("start").distinct()
    store.write(tables.ANOMALIES_HOUR, judged.anomalies_hour(now, _former_weeks(store, written, days), hours))


def _former_weeks(store: Store, written: Written, days: Sequence[date]) -> DataFrame:
    """Return the hourly values of earlier weeks from the tables; those of this run's own days come from
    memory."""
    history = {one - timedelta(weeks=week) for one in days for week in range(1, judged.WEEKS + 1)}
    day = F.col(PARTITION)
    counters, slow = (
        written[table]
        .filter(day.isin(sorted(history & set(days))))
        .unionByName(store.read(table).filter(day.isin(sorted(history - set(days)))))
        for table in (tables.COUNTERS_HOUR, tables.LATENCIES_HOUR)
    )
    return judged.hour_values(counters, slow)


# In the day's folder of `processes`. Spark and Arrow read no file that starts with _.
SOURCE_FILE = "_samples.json"
TABLES_VERSION = 3  # another one when the same samples give other tables


@dataclass(frozen=True)
class DaySource:
    """The samples from which a day's tables were computed: intervals and bytes by hour (`2026-11-22 03`), and
    the objectives' checksum."""

    hours: dict[str, int] = field(default_factory=dict)
    promises: int = 0
    tables: int = TABLES_VERSION
    bytes: dict[str, int] = field(default_factory=dict)  # empty in files of older versions

    def has_lost(self, now: DaySource, recompute: bool) -> bool:
        """Return whether an hour has fewer intervals now or, in a run without a range, fewer bytes."""
        return _has_less(now.hours, self.hours) or (not recompute and _has_less(now.bytes, self.bytes))


def _has_less(now: Mapping[str, int], before: Mapping[str, int]) -> bool:
    return any(now.get(hour, 0) < count for hour, count in before.items())


class SortedDays(NamedTuple):
    """The days of a run in three groups: to compute, unchanged, and those that have lost samples."""

    compute: list[date]
    unchanged: list[date]
    lost: list[date]  # of which samples are gone


class SampleCounts(NamedTuple):
    """The number of distinct intervals in some files, and the size of these files in bytes."""

    intervals: int
    size: int


def count_samples(sizes: Mapping[str, int]) -> SampleCounts:
    """Count the intervals and bytes of files, given their names and sizes. A file with a foreign name counts
    as one interval.

    Parts next to the merged file that contains them are not counted, so merging does not change the result.
    """
    count = size = 0
    by_instance: dict[str, list[tuple[int, int, int]]] = {}
    for name, file_size in sizes.items():
        if not name.endswith(".jsonl") or name.startswith((".", "_")):
            continue
        sample = parse(name)
        if sample is None:
            count, size = count + 1, size + file_size
        else:
            by_instance.setdefault(sample.instance, []).append((sample.first, -sample.last, file_size))
    for ranges in by_instance.values():
        through = -1
        for first, minus_last, file_size in sorted(ranges):
            more = max(0, -minus_last - max(first - 1, through))
            count, size = count + more, size + (file_size if more else 0)
            through = max(through, -minus_last)
    return SampleCounts(count, size)


def sort_days(
    days: Sequence[date],
    recorded_sources: Mapping[date, DaySource | None],
    now: Mapping[date, DaySource],
    newest: date,
    recompute: bool,
) -> SortedDays:
    """Sort days into those to compute, unchanged ones, and those that have lost samples.

    `recorded_sources`: those of the existing tables; `now`: the current ones. `recompute`: compute unchanged
    days, too. The `newest` day with samples never counts as lost, because it is still growing.
    """
    by_action = SortedDays([], [], [])
    for day in days:
        recorded, fresh = recorded_sources[day], now[day]
        if recorded is None:
            by_action.compute.append(day)
        elif day != newest and recorded.has_lost(fresh, recompute):
            by_action.lost.append(day)
        elif recorded == fresh and not recompute:
            by_action.unchanged.append(day)
        else:
            by_action.compute.append(day)
    return by_action


def build_sources(
    folders: Folders, hours: Iterable[Hour], days: Sequence[date], promises: Goals
) -> dict[date, DaySource]:
    """Build the sources of the current samples by day.

    A day's hours are its own and the two adjacent ones.
    """
    hour = timedelta(hours=1)
    sources = {day: DaySource(promises=crc32(repr(promises).encode())) for day in days}
    for one in hours:
        content = count_samples(folders.read_sizes([one.path]))
        for day in {(one.start + by).date() for by in (-hour, timedelta(), hour)} & sources.keys():
            sources[day].hours[f"{one.start:%Y-%m-%d %H}"] = content.intervals
            sources[day].bytes[f"{one.start:%Y-%m-%d %H}"] = content.size
    return sources


def read_source(folders: Folders, folder: str) -> DaySource | None:
    """Read from which samples the tables of a day were computed; None if unknown or not parseable."""
    text = folders.read(f"{folder}/{SOURCE_FILE}")
    try:
        return None if text is None else DaySource(**json.loads(text))
    except (ValueError, TypeError):
        return None


def write_source(folders: Folders, folder: str, source: DaySource) -> None:
    """Write the source into the day's folder.

    A folder that does not exist (a day without processes) is skipped.
    """
    if folders.exists(folder):
        folders.write(f"{folder}/{SOURCE_FILE}", json.dumps(asdict(source)))
