"""One batch of the stream after the other: repeated, late, merged and ahead of time; the tables left out."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.samples_generator import Generator, Shape, write_file
from ddmq_common.errors import ConfigError
from ddmq_common.metrics.samples import HOUR_MS, SampleLine, SampleName, encode, folder, interval_name
from metrics_job import arrived
from metrics_job.arrived import Arrived
from metrics_job.batch import run_batch
from metrics_job.minutes import FILE, READER_OPTIONS, read_schema
from metrics_job.stream import BatchTaker, Streaming
from metrics_job.stream_tables import REFUSED, Touched, roll_up, stored_schema
from tests.spark import tables_read

NOON = 1_767_614_400_000  # 2026-01-05 12:00 UTC
DAY_MS = 24 * HOUR_MS
A, B = "a" * 16, "b" * 16


class TakingRig:
    """A folder of samples and a job that takes what it is told, in batches."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark, self._root = spark, root
        self.now_ms = NOON + DAY_MS
        self.rolled: list[tuple[list[date], dict[str | None, int]]] = []
        what = Streaming(str(root / "samples"), str(root / "out"))
        self.taking = BatchTaker(spark, what, self._roll_up, lambda: self.now_ms)
        self.arrived = Arrived(spark, f"{what.stream_folder}/minutes", stored_schema())

    def _roll_up(self, rows: DataFrame, which: Touched) -> None:
        of_days = rows.filter(F.col("date").isin(which.days) & F.col("kind").isin("counter", REFUSED))
        counted = of_days.groupBy("reason").agg(F.sum(F.coalesce("total", F.lit(1))).alias("sum")).collect()
        self.rolled.append((which.days, {row["reason"]: int(row["sum"]) for row in counted}))

    def file(self, instance: str, intervals: dict[int, tuple[int, int]], merged: bool = False) -> str:
        """Write one: sequence number -> (to, value of ddmq_sends_total)."""
        seqs = sorted(intervals)
        name = (
            SampleName(instance, seqs[0], seqs[-1], merged=True)
            if merged
            else interval_name(instance, seqs[0])
        )
        lines = [
            SampleLine(
                1,
                "p@h",
                instance,
                seq,
                to - 10_000,
                to,
                "ddmq_sends_total",
                {"topic": "t", "code": "0"},
                value,
            )
            for seq, (to, value) in intervals.items()
        ]
        path = self._root / "samples" / folder(intervals[seqs[0]][0]) / str(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(encode(line) + b"\n" for line in lines))
        return str(path)

    def take(self, batch: int, *paths: str) -> dict[str | None, int]:
        """Of all days the batch touched: None -> sum of values, a reason -> number of lines refused."""
        reader = self._spark.read.schema(read_schema()).options(**READER_OPTIONS)
        self.taking.take_batch(reader.json(list(paths)).withColumn(FILE, F.col("_metadata.file_path")), batch)
        return self.rolled[-1][1]


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> TakingRig:
    return TakingRig(spark, tmp_path)


def test_a_repeated_batch_replaces_itself(rig: TakingRig) -> None:
    first, second = rig.file(A, {0: (NOON, 5)}), rig.file(A, {1: (NOON + 10_000, 7)})
    assert rig.take(0, first) == {None: 5}
    assert rig.take(1, second) == {None: 12}
    assert rig.take(1, second) == {None: 12}
    assert rig.rolled[-1][0] == [date(2026, 1, 5)]


def test_late_lines_count_within_the_window_and_are_rejected_after_it(rig: TakingRig) -> None:
    rig.take(0, rig.file(A, {0: (NOON, 5)}))
    within, behind = NOON - 6 * HOUR_MS, NOON - 6 * HOUR_MS - 1
    counts = rig.take(1, rig.file(B, {0: (within, 3)}), rig.file(B, {1: (behind, 100)}))
    assert counts == {None: 8, "late": 1}


def test_a_late_line_of_another_day_leaves_that_day_alone(rig: TakingRig) -> None:
    rig.take(0, rig.file(A, {0: (NOON, 5)}))
    assert rig.take(1, rig.file(B, {0: (NOON - 3 * DAY_MS, 100)})) == {None: 5, "late": 1}
    assert rig.rolled[-1][0] == [date(2026, 1, 5)]


def test_labels_of_a_newer_server_are_rejected_and_counted(rig: TakingRig) -> None:
    path = rig.file(A, {0: (NOON, 5)})
    line = json.loads(Path(path).read_bytes())
    newer = [line | {"labels": line["labels"] | {"zone": zone}, "value": 10} for zone in "ab"]
    with Path(path).open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in newer)
    assert rig.take(0, path) == {None: 5, "unknown label": 2}


def test_a_clock_in_the_future_makes_no_line_late(rig: TakingRig) -> None:
    rig.take(0, rig.file(A, {0: (NOON, 5)}), rig.file(B, {0: (NOON + 300 * DAY_MS, 1)}))
    assert rig.take(1, rig.file(A, {1: (NOON + 10_000, 7)})) == {None: 12}


@pytest.mark.long
def test_a_merged_hour_adds_only_missing_intervals(rig: TakingRig) -> None:
    intervals = {seq: (NOON + seq * 10_000, 1) for seq in range(6)}
    for batch, seqs in enumerate(((0,), (1, 3))):
        rig.take(batch, *(rig.file(A, {seq: intervals[seq]}) for seq in seqs))
    hour = rig.file(A, intervals, merged=True)
    assert rig.take(2, hour, rig.file(A, {4: intervals[4]})) == {None: 6}
    rows = rig.arrived.read(through=2).filter(F.col("kind") == "interval").collect()
    assert sorted((row["seq"], row["copies"]) for row in rows) == [(seq, 1) for seq in range(6)]


def test_a_repeated_interval_counts_only_as_a_copy(rig: TakingRig) -> None:
    first = rig.file(A, {0: (NOON, 5)})
    rig.take(0, first)
    assert rig.take(1, first, rig.file(A, {1: (NOON + 10_000, 7)})) == {None: 12}
    rows = rig.arrived.read(through=1).filter(F.col("kind") == "interval").collect()
    assert sorted((row["seq"], row["lines"], row["copies"]) for row in rows) == [
        (0, 0, 1),
        (0, 1, 1),
        (1, 1, 1),
    ]


def test_folders_are_merged_and_days_behind_the_window_deleted(
    rig: TakingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fanout, many = 3, 5
    monkeypatch.setattr(arrived, "FANOUT", fanout)
    rig.take(0, rig.file(B, {0: (NOON - 9 * DAY_MS, 1_000)}))
    for batch in range(1, many):
        rig.take(batch, rig.file(A, {batch: (NOON + batch, 1)}))
    assert rig.rolled[-1][1] == {None: many - 1}
    ranges = rig.arrived.list_ranges(many)
    assert ranges[0].first > 0, "the day nine days ago is still kept"
    assert 1 < len(ranges) < fanout
    plan = str(rig.arrived.read(many)._jdf.queryExecution().optimizedPlan())
    assert plan.count("parquet") == 1, "as many readings as folders"
    assert rig.arrived.newest_ms(many) == NOON + many - 1


def test_half_a_batch_does_not_count(rig: TakingRig, tmp_path: Path) -> None:
    rig.take(0, rig.file(A, {0: (NOON, 5)}))
    rig.take(1, rig.file(A, {1: (NOON + 10_000, 7)}))
    (tmp_path / "out" / "stream" / "minutes" / f"batches={1:012d}-{1:012d}" / "_state.json").unlink()
    assert rig.take(2, rig.file(A, {2: (NOON + 20_000, 1)})) == {None: 6}


@pytest.mark.slow
def test_batches_give_the_tables_of_one_run_and_leave_other_hours_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    samples, out = tmp_path / "samples", tmp_path / "stream"
    shape = Shape(samples=900, seed=4, faults=0.3, interval_ms=600_000, topics=1, groups=1)
    files = list(Generator(shape).arrivals())
    first_count, repeated = (
        5 * len(files) // 6,
        next(file for file in files if file.folder.endswith("hour=01")),
    )
    files.append(repeated._replace(folder=repeated.folder.replace("hour=01", "hour=02")))
    what = Streaming(str(samples), str(out), late_hours=48)
    taking = BatchTaker(spark, what, roll_up(spark, str(out)), lambda: NOON + DAY_MS)
    reader = spark.read.schema(read_schema()).options(**READER_OPTIONS)
    files_after: list[set[tuple[str, str]]] = []  # hour and name of each file of a table, after each batch
    for batch, some in enumerate((files[:first_count], files[first_count:])):
        for file in some:
            write_file(samples, file.path, file.data)
        paths = [str(samples / file.path) for file in some]
        taking.take_batch(reader.json(paths).withColumn(FILE, F.col("_metadata.file_path")), batch)
        files_after.append(
            {(path.parent.name, path.name) for path in (out / "counters_minute").rglob("*.parquet")}
        )
    run_batch(samples, tmp_path / "batch")
    assert tables_read.everything(out) == tables_read.everything(tmp_path / "batch")
    ends = [int(to) for file in files[first_count:] for to in re.findall(rb'"to":(\d+)', file.data)]
    touched = {f"hour={to // HOUR_MS % 24:02}" for to in ends}
    assert "hour=01" in touched
    assert {hour for hour, _ in files_after[0] - files_after[1]} <= touched, "other hours are left alone"
    assert files_after[0] & files_after[1], "there are others"


def test_tables_of_a_batch_run_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    day = tmp_path / "counters_minute" / "date=2026-01-05"
    day.mkdir(parents=True)
    (day / "part-0.parquet").touch()
    with pytest.raises(ConfigError, match="give another folder as --out"):
        roll_up(spark, str(tmp_path))
