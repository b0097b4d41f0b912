"""Parquet tables → Material: filtered by date and time, summed inside Arrow; little of it becomes Python.

A table that is not there, or has no rows in the range, is empty material, not an error. Counters of several
processes are added; times are merged bucket by bucket; of a gauge a step shows the largest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import FileSystem, FileType, LocalFileSystem
from pyspark.sql.pandas.types import to_arrow_schema

from ddmq_common.errors import ConfigError
from ddmq_common.metrics import catalogue
from metrics_job.report.core.material import (
    HOUR_MS,
    MINUTE_MS,
    STUCK_MINUTES,
    Buckets,
    Counted,
    Material,
    Row,
    Sums,
    Tallies,
    Timed,
    TimeRange,
    Waiting,
    build_time_range,
)
from metrics_job.report.days import read_promises, read_rejects, read_starts
from metrics_job.tables import PROCESSES, REJECTS, SLO_DAY, TABLES, Table

LAGS_SHOWN = 8  # subscriptions with a line of their own; the others share one line
ANOMALIES_MAX = 200  # the furthest from what is usual; all of them are counted
STORED = "code=0"
STUCK_MS = (STUCK_MINUTES - 1) * MINUTE_MS
_COUNTED = (
    catalogue.SENDS.name, catalogue.DELIVERED.name, catalogue.FETCHED.name,
    catalogue.ACKED.name, catalogue.FAILED.name,
    catalogue.DEAD_LETTERS.name, catalogue.DELAY_FIRED.name, catalogue.LEVELS_FIRED.name,
)  # fmt: skip
_SERIES = ["metric", "topic", "group", "detail"]
COLUMNS = (  # of tables with a start; the others of them are never read
    "start", "metric", "process", "topic", "group", "detail", "total", "buckets", "counts", "last",
    "lag", "lag_max", "lag_age_ms",
    "finished_per_s", "arrived_per_s", "time_to_drain_s", "blocked_keys", "blocked_key_age_ms", "value",
    "usual", "deviation", "weeks",
)  # fmt: skip
_HANDED_OUT = (catalogue.DELIVERED.name, catalogue.FETCHED.name)
_IN_HANDS = (catalogue.INFLIGHT.name, catalogue.RETRYING.name)
CONSUMED_MINUTES = 2  # in which something was handed out, or is out: somebody consumes
Subscription = tuple[str, str]  # group, topic
_LAG_NOW = (
    "lag", "lag_age_ms", "finished_per_s", "arrived_per_s", "time_to_drain_s", "blocked_keys",
    "blocked_key_age_ms",
)  # fmt: skip


class Tables:
    """Reads the tables in the job's output folder: a path, or a URL that Arrow supports. Raises ConfigError
    if it does not exist."""

    def __init__(self, folder: Path | str) -> None:
        self._files, self._folder = _open_folder(str(folder))

    def read_bounds(self) -> tuple[int, int] | None:
        """Return the start of the first and the end of the last minute with counters or gauges; None if
        there is none."""
        starts = [
            *self._first_and_last_start("counters_minute"),
            *self._first_and_last_start("gauges_minute"),
        ]
        return (min(starts), max(starts) + MINUTE_MS) if starts else None

    def read_material(self, time_range: TimeRange) -> Material:
        """Read all data for a report. Raises OSError or pyarrow's ArrowException for unreadable files."""
        promises = read_promises(self._by_date(SLO_DAY, time_range))
        starts = read_starts(self._by_date(PROCESSES, time_range))
        rejects = read_rejects(self._by_date(REJECTS, time_range))
        anomalies, anomalies_count = self._read_anomalies(time_range)
        lag, waiting = self._read_lag(time_range, starts.rows)
        return Material(
            time_range=time_range,
            now=self._read_sums(time_range),
            before=self._read_sums(time_range.shift_back()),
            counted=self._count_by_step(time_range),
            timed=self._buckets_by_step(time_range),
            lag=lag,
            waiting=waiting,
            hours=self._count_by_hour(time_range),
            slo=promises.rows,
            processes=starts.rows,
            anomalies=anomalies,
            rejects=rejects.rows,
            tallies=Tallies(
                promises_kept=promises.kept,
                promises_missed=promises.missed,
                starts_left_out=starts.left_out,
                anomalies=anomalies_count,
                rejects=rejects.kinds,
                rejected_lines=rejects.lines,
            ),
        )

    # --- counters and times

    def _read_sums(self, time_range: TimeRange) -> Sums:
        return Sums(self.read_counters(time_range), self._read_times(time_range))

    def read_counters(self, time_range: TimeRange) -> list[Counted]:
        rows = self._read_rows(f"counters_{time_range.period}", time_range)
        summed = rows.group_by(_SERIES).aggregate([("total", "sum")])
        return [Counted(*values) for values in _to_tuples(summed, *_SERIES, "total_sum")]

    def _read_times(self, time_range: TimeRange) -> list[Timed]:
        rows = self._read_rows(f"latencies_{time_range.period}", time_range, pc.field("process") == "")
        return [Timed(*(*series, buckets)) for series, buckets in _merge_histograms(rows, _SERIES)]

    def _count_by_step(self, time_range: TimeRange) -> dict[str, dict[int, float]]:
        rows = self._read_rows(f"counters_{time_range.period}", time_range, pc.field("metric").isin(_COUNTED))
        counts: dict[str, dict[int, float]] = {}
        sends = pc.equal(rows["metric"], catalogue.SENDS.name)
        refused = pc.and_(sends, pc.not_equal(rows["detail"], STORED))
        rows = _with_step(rows, time_range).append_column("refused", refused)
        summed = rows.group_by(["metric", "refused", "step"]).aggregate([("total", "sum")])
        for metric, not_stored, step, total in _to_tuples(summed, "metric", "refused", "step", "total_sum"):
            counts.setdefault(f"{metric}{{refused}}" if not_stored else metric, {})[step] = total
        return counts

    def _buckets_by_step(self, time_range: TimeRange) -> dict[str, dict[int, Buckets]]:
        rows = self._read_rows(f"latencies_{time_range.period}", time_range, pc.field("process") == "")
        histograms: dict[str, dict[int, Buckets]] = {}
        for (metric, step), buckets in _merge_histograms(_with_step(rows, time_range), ["metric", "step"]):
            histograms.setdefault(metric, {})[step] = buckets
        return histograms

    def _count_by_hour(self, time_range: TimeRange) -> dict[int, float]:
        """Return the number of messages sent in each full hour of the range."""
        hourly = TimeRange(_hour_of(time_range), time_range.end_ms + -time_range.end_ms % HOUR_MS, HOUR_MS)
        sent = (pc.field("metric") == catalogue.SENDS.name) & (pc.field("detail") == STORED)
        rows = self._read_rows("counters_hour", hourly, sent)
        summed = _with_step(rows, hourly).group_by(["step"]).aggregate([("total", "sum")])
        return dict(_to_tuples(summed, "step", "total_sum"))

    # --- subscriptions

    def _read_lag(
        self, time_range: TimeRange, starts: Sequence[Row]
    ) -> tuple[dict[tuple[str, str], dict[int, float]], list[Waiting]]:
        rows = self._read_rows("lag_minute", time_range)
        waiting = self._with_consumers(_to_waiting_list(rows, self._still_reported(time_range, starts)))
        largest = {(row.group, row.topic) for row in waiting[:LAGS_SHOWN]}
        steps = (
            _with_step(rows, time_range).group_by(["group", "topic", "step"]).aggregate([("lag_max", "max")])
        )
        lines: dict[tuple[str, str], dict[int, float]] = {}
        for group, topic, step, lag in _to_tuples(steps, "group", "topic", "step", "lag_max_max"):
            name = (group, topic) if (group, topic) in largest else ("", "")
            line = lines.setdefault(name, {})
            line[step] = line.get(step, 0.0) + (lag or 0.0)
        return lines, waiting

    def _with_consumers(self, waiting: Sequence[Waiting]) -> list[Waiting]:
        """Set `consumed` of each subscription, False if no message was delivered recently and none is in
        flight, and `paused`."""
        late = [row.seen_ms for row in waiting if row.lag]
        if not late:
            return list(waiting)
        near = build_time_range(min(late) - (CONSUMED_MINUTES - 1) * MINUTE_MS, max(late) + MINUTE_MS)
        counters = self._read_rows("counters_minute", near, pc.field("metric").isin(_HANDED_OUT))
        gauges = self._read_rows(
            "gauges_minute", near, pc.field("metric").isin((*_IN_HANDS, catalogue.PAUSED.name))
        )
        gauges = gauges.filter(pc.greater(gauges["last"], 0))
        pauses = pc.equal(gauges["metric"], catalogue.PAUSED.name)
        active = _last_active({}, counters.filter(pc.greater(counters["total"], 0)))
        active = _last_active(active, gauges.filter(pc.invert(pauses)))
        paused = _last_active({}, gauges.filter(pauses))
        return [
            row._replace(
                consumed=_is_consumed(row, active),
                paused=paused.get((row.group, row.topic), 0) >= row.seen_ms > 0,
            )
            for row in waiting
        ]

    def _still_reported(self, time_range: TimeRange, starts: Sequence[Row]) -> set[tuple[str, str]] | None:
        """Return the subscriptions whose lag was reported until the end of a reporting process; None without
        gauges.

        A lag above 0 is reported in every sample. A lag that is no longer reported although its process
        continued is 0, even if no 0 was reported because the process was restarted meanwhile.
        """
        rows = self._read_rows("gauges_minute", time_range, pc.field("metric") == catalogue.LAG.name)
        if not rows.num_rows:
            return None
        last = rows.group_by(["process", "group", "topic"]).aggregate([("start", "max")])
        last_sample_ms: dict[str, int] = {}
        for row in starts:
            last_sample_ms[row["process"]] = max(last_sample_ms.get(row["process"], 0), row["last_seen"])
        return {
            (group, topic)
            for process, group, topic, start in _to_tuples(last, "process", "group", "topic", "start_max")
            if start + MINUTE_MS > last_sample_ms.get(process, 0)
        }

    # --- tables by the day, and the rest

    def _by_date(self, table: Table, time_range: TimeRange) -> Iterator[tuple[str, Any]]:
        """Yield each date of the range that has rows, and its rows; newest first, with times in epoch ms."""
        data = self._open(table.name)
        first, last = time_range.first_and_last_date()
        dates = {date for fragment in data.get_fragments() if (date := _date_of(fragment))}
        for date in sorted(dates, reverse=True):
            if first <= date <= last:
                rows = data.to_table(filter=pc.field("date") == date)
                yield date, _times_in_ms(rows)

    def _read_anomalies(self, time_range: TimeRange) -> tuple[list[Row], int]:
        """Return the hours with the greatest deviations, and the number of all anomalies."""
        rows = self._read_rows("anomalies_hour", TimeRange(_hour_of(time_range), time_range.end_ms, HOUR_MS))
        rows = rows.append_column("size", pc.abs(rows["deviation"])).sort_by([("size", "descending")])
        return _to_dicts(rows.slice(0, ANOMALIES_MAX)), rows.num_rows

    # --- Parquet

    def _open(self, name: str) -> Any:
        """Open a table with its current columns. Columns that older files lack are null."""
        folder = f"{self._folder}/{name}"
        fields = [*to_arrow_schema(TABLES[name].schema, timezone="UTC"), pa.field("date", pa.string())]
        schema = pa.schema(fields)
        if self._files.get_file_info(folder).type != FileType.Directory:
            return ds.dataset(schema.empty_table())
        dates = ds.partitioning(pa.schema([("date", pa.string())]), flavor="hive")
        return ds.dataset(folder, schema, "parquet", self._files, dates)

    def _read_rows(self, name: str, time_range: TimeRange, more: Any = None) -> Any:
        """Read the rows that start within the range, with `start` in ms. `more`: another filter."""
        data, dates = self._open(name), _of_dates(time_range)
        columns = [column for column in COLUMNS if column in data.schema.names]
        rows = data.to_table(columns=columns, filter=dates if more is None else dates & more)
        rows = _in_ms(rows, "start")
        inside = pc.and_(
            pc.greater_equal(rows["start"], time_range.start_ms), pc.less(rows["start"], time_range.end_ms)
        )
        return rows.filter(inside)

    def _first_and_last_start(self, name: str) -> list[int]:
        """Return the first and the last `start` of a table, or an empty list."""
        data = self._open(name)
        dates = sorted(data.to_table(columns=["date"])["date"].unique().to_pylist())
        if not dates:
            return []
        ends = pc.field("date").isin([dates[0], dates[-1]])
        starts = _in_ms(data.to_table(columns=["start"], filter=ends), "start")["start"]
        return list(pc.min_max(starts).as_py().values())


def _hour_of(time_range: TimeRange) -> int:
    return time_range.start_ms - time_range.start_ms % HOUR_MS


def _of_dates(time_range: TimeRange) -> Any:
    first, last = time_range.first_and_last_date()
    return (pc.field("date") >= first) & (pc.field("date") <= last)


def _open_folder(folder: str) -> tuple[Any, str]:
    """Return the file system of a folder and its path there.

    Raises ConfigError if the folder does not exist.
    """
    try:
        if "://" in folder or folder.startswith("file:"):
            files, path = FileSystem.from_uri(re.sub("^s3[an]://", "s3://", folder))
        else:
            files, path = LocalFileSystem(), folder
        kind = files.get_file_info(path).type
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"the tables in {folder} cannot be read from here: {error}; copy them to a disk, or name a "
            "path or a URL that Arrow reads (file, hdfs, s3, gs)"
        ) from error
    if kind != FileType.Directory:
        raise ConfigError(f"{folder}: no such folder; it has to be the one that the job wrote its tables to")
    return files, path.rstrip("/")


def _last_active(before: Mapping[Subscription, int], rows: Any) -> dict[Subscription, int]:
    """Return the last minute in which each subscription has one of these rows, or the value in `before`."""
    last = rows.group_by(["group", "topic"]).aggregate([("start", "max")])
    minutes = dict(before)
    for group, topic, start in _to_tuples(last, "group", "topic", "start_max"):
        minutes[group, topic] = max(minutes.get((group, topic), 0), start)
    return minutes


def _is_consumed(row: Waiting, active: Mapping[Subscription, int]) -> bool:
    since_ms = row.seen_ms - (CONSUMED_MINUTES - 1) * MINUTE_MS
    if not row.lag or row.finished_per_s or row.blocked_keys:
        return True
    return active.get((row.group, row.topic), 0) >= since_ms


def _to_waiting_list(rows: Any, reported: set[tuple[str, str]] | None) -> list[Waiting]:
    """Return one row per subscription, the largest lag first. For subscriptions not in `reported`, the lag
    is 0."""
    ordered = rows.sort_by([("start", "ascending")])
    last = [(name, "last") for name in _LAG_NOW]
    worst = [(name, "max") for name in ("lag_max", "blocked_keys", "blocked_key_age_ms")]
    keep_null = pc.ScalarAggregateOptions(skip_nulls=False)
    by = ordered.group_by(["group", "topic"], use_threads=False).aggregate(
        [*((name, how, keep_null) for name, how in last), *worst, ("start", "max")]
    )
    columns = ["group", "topic", "start_max", *(f"{name}_{how}" for name, how in [*last, *worst])]
    before = _lag_before(ordered)
    subscriptions = []
    for values in _to_tuples(by, *columns):
        row = _to_waiting(values)
        row = row._replace(lag_before=before.get((row.group, row.topic), 0.0))
        if reported is not None and (row.group, row.topic) not in reported:
            row = row._replace(lag=0.0, lag_age_ms=0.0, time_to_drain_s=0.0)
            row = row._replace(blocked_keys=0.0, blocked_key_age_ms=0.0)
        subscriptions.append(row)
    return sorted(subscriptions, key=lambda row: (-row.lag_max, row.group, row.topic))


def _lag_before(ordered: Any) -> dict[tuple[str, str], float]:
    """Return the lag of each subscription STUCK_MINUTES ago; infinity if its history is shorter."""
    lists = ordered.group_by(["group", "topic"], use_threads=False).aggregate(
        [("lag", "list"), ("start", "min"), ("start", "max")]
    )
    names = ("group", "topic", "lag_list", "start_min", "start_max")
    return {
        (group or "", topic or ""): lags[-STUCK_MINUTES:][0] if last - first >= STUCK_MS else inf
        for group, topic, lags, first, last in _to_tuples(lists, *names)
    }


def _to_waiting(values: Sequence[Any]) -> Waiting:
    group, topic, seen_ms, lag, age, finished, arrived, drain, *blocked = values
    keys, key_age, lag_max, keys_max, key_age_max = (number or 0.0 for number in blocked)
    return Waiting(
        group or "", topic or "", lag or 0.0, age or 0.0, finished or 0.0, arrived or 0.0, drain,
        keys, key_age, lag_max, keys_max, key_age_max, seen_ms=seen_ms,
    )  # fmt: skip


def _with_step(rows: Any, time_range: TimeRange) -> Any:
    """Add the column `step`: the start of the range's step that contains `start`."""
    step = pc.multiply(pc.divide(rows["start"], time_range.step_ms), time_range.step_ms)
    return rows.append_column("step", step)


def _merge_histograms(rows: Any, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], Buckets]]:
    """Yield each distinct key with the sum of its histograms, bucket by bucket."""
    rows = rows.combine_chunks()
    parents = pc.list_parent_indices(rows["buckets"])
    flat = pa.table(
        {
            **{key: pc.take(rows[key], parents) for key in keys},
            "bucket": pc.list_flatten(rows["buckets"]),
            "counted": pc.list_flatten(rows["counts"]),
        }
    )
    summed = flat.group_by([*keys, "bucket"]).aggregate([("counted", "sum")])
    histograms: dict[tuple[Any, ...], dict[int, int]] = {}
    for *key, bucket, counted in _to_tuples(summed, *keys, "bucket", "counted_sum"):
        histograms.setdefault(tuple(key), {})[bucket] = counted
    yield from histograms.items()


def _in_ms(rows: Any, name: str) -> Any:
    """Convert the timestamps of a column to epoch ms."""
    column = rows[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return rows.set_column(rows.column_names.index(name), name, column)


def _to_tuples(rows: Any, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[name].to_pylist() for name in columns), strict=True)


def _to_dicts(rows: Any) -> list[Mapping[str, Any]]:
    """Convert rows to dicts, with timestamps as epoch ms."""
    plain: list[Mapping[str, Any]] = _times_in_ms(rows).to_pylist()
    return plain


def _times_in_ms(rows: Any) -> Any:
    for field in rows.schema:
        if pa.types.is_timestamp(field.type):
            rows = _in_ms(rows, field.name)
    return rows


def _date_of(fragment: Any) -> str | None:
    """Return the date of the partition that a file belongs to."""
    date: str | None = ds.get_partition_keys(fragment.partition_expression).get("date")
    return date
