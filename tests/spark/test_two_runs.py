"""Two runs over one folder, and what a killed run or another reader leaves and finds there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.samples_generator import Shape, write
from ddmq.cli.root import run
from ddmq_common.errors import ConfigError
from metrics_job import stream
from metrics_job.batch import run_batch
from metrics_job.folders import Folders
from metrics_job.lock import LOCK_FILE, locked_folder
from metrics_job.report import reading
from metrics_job.report.run import make_tables, read_report
from metrics_job.stream import Streaming, run_stream
from metrics_job.tables import (
    COUNTERS_HOUR,
    GAUGES_MINUTE,
    LAG_MINUTE,
    LATENCIES_HOUR,
    PROCESSES,
    STAGING_RETENTION_MS,
    Store,
    Table,
)
from tests.spark import tables_read
from tests.spark.report_tables import Writer, at, ms

SHAPE = Shape(samples=1_000, seed=3, interval_ms=20_000, topics=1, groups=1)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "samples"
    write(SHAPE, folder)
    return folder


def test_a_second_batch_is_rejected_in_one_line_and_changes_nothing(
    spark: SparkSession, samples: Path, tmp_path: Path
) -> None:
    with (
        locked_folder(tmp_path, "metrics_job stream"),
        pytest.raises(ConfigError, match="another run writes"),
    ):
        run_batch(samples, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_a_stream_is_rejected_beside_another_run(
    spark: SparkSession, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "session", lambda name: spark)
    monkeypatch.setattr(stream, "stop_on_signals", lambda stopping: None)
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    with locked_folder(tmp_path, "metrics_job batch"), pytest.raises(ConfigError, match="another run writes"):
        run_stream(Streaming(str(samples), str(tmp_path), once=True), None)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_a_report_is_rejected_before_spark_starts(samples: Path, tmp_path: Path) -> None:
    def job(*of: object) -> None:
        raise AssertionError("the job runs")

    with locked_folder(tmp_path, "metrics_job batch"), pytest.raises(ConfigError, match="another run writes"):
        make_tables(job, samples, tmp_path, None, ms(0))


def test_the_command_names_the_running_process(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked_folder(tmp_path, "metrics_job batch"):
        assert run(["report", "--samples", str(samples), "--tables", str(tmp_path)]) != 0
    errors = capsys.readouterr().err
    assert "another run writes the tables in" in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_judged_tables_need_no_table_of_the_same_run(
    spark: SparkSession, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of the files of its days meanwhile: here they are gone as soon as they are written."""
    run_batch(samples, tmp_path / "whole")
    write_table: Callable[[Store, Table, DataFrame | None], None] = Store.write
    replaced = (COUNTERS_HOUR, LATENCIES_HOUR, GAUGES_MINUTE, LAG_MINUTE)

    def write_and_lose(store: Store, table: Table, rows: DataFrame | None) -> None:
        write_table(store, table, rows)
        if table in replaced:
            shutil.rmtree(tmp_path / "lost" / table.name)

    monkeypatch.setattr(Store, "write", write_and_lose)
    run_batch(samples, tmp_path / "lost")
    complete, lost = (tables_read.everything(tmp_path / name) for name in ("whole", "lost"))
    assert lost == {
        name: rows for name, rows in complete.items() if name not in {one.name for one in replaced}
    }
    assert lost["slo_day"]
    assert lost["ratios_hour"]


@pytest.mark.parametrize(
    ("on_a_disk", "age_ms", "stays"),
    [(True, 0, False), (False, STAGING_RETENTION_MS - 1, True), (False, STAGING_RETENTION_MS, False)],
)
def test_what_a_killed_run_had_begun_to_write_is_deleted(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_a_disk: bool,
    age_ms: int,
    stays: bool,
) -> None:
    """At once where the lock says that no other run is at work; elsewhere when it is a day old."""
    staging = tmp_path / PROCESSES.name / ".spark-staging-0815"
    staging.mkdir(parents=True)
    (staging / "part-0.parquet").touch()
    if not on_a_disk:
        monkeypatch.setattr(Folders, "find_local_path", lambda self, path: None)
    monkeypatch.setattr(Folders, "read_ages_ms", lambda self, path, now_ms: {staging.name: age_ms})
    Store(spark, str(tmp_path), [datetime(2026, 1, 5, tzinfo=UTC).date()]).write(PROCESSES, None)
    assert staging.exists() is stays


def test_the_age_of_a_folder_is_that_of_its_last_change(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    changed_ms = round((tmp_path / "one").stat().st_mtime * 1000)
    (age_ms,) = Folders(spark).read_ages_ms(str(tmp_path), changed_ms + 5_000).values()
    assert abs(age_ms - 5_000) <= 1_000
    assert Folders(spark).read_ages_ms(str(tmp_path / "none"), 0) == {}


@pytest.mark.parametrize(
    ("path", "local"),
    [("/tables/a b", "/tables/a b"), ("file:///tables", "/tables"), ("hdfs://127.0.0.1:1/tables", None)],
)
def test_which_folders_have_a_lock(spark: SparkSession, path: str, local: str | None) -> None:
    assert Folders(spark).find_local_path(path) == (None if local is None else Path(local))


def tables_of_a_minute(folder: Path) -> Path:
    writer = Writer(folder)
    writer.counter(at(60), "ddmq_sends_total", 500, "t", detail="code=0")
    writer.process(at(60), at(61))
    return writer.write()


@pytest.mark.parametrize("changes", [1, 99])
def test_a_report_rereads_tables_that_a_run_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    tables, pending_changes = tables_of_a_minute(tmp_path), [changes]
    read_counters = reading.Tables.read_counters  # the files that it lists are replaced before they are read

    def replaced(self: Any, time_range: Any) -> Any:
        pending_changes[0] -= 1
        if pending_changes[0] >= 0:
            raise FileNotFoundError(
                2, "No such file or directory", f"{tables}/counters_minute/part-0.parquet"
            )
        return read_counters(self, time_range)

    monkeypatch.setattr(reading.Tables, "read_counters", replaced)
    if changes == 1:
        assert read_report(tables, None, ms(100)).totals.sent == 500
        return
    with pytest.raises(ConfigError, match=r"the tables in .* are being replaced .*run it again"):
        read_report(tables, None, ms(100))
