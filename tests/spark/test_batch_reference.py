"""The batch job and the plain reference find the same in files with every fault there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.samples_generator import FAULTS, Shape, write
from metrics_job.batch import run_batch
from tests.spark import reference, tables_read

SHAPE = Shape(samples=2_000, seed=11, faults=0.3, interval_ms=20_000, topics=1, groups=2)
pytestmark = pytest.mark.timeout(900)
PERIODS = {"minute": reference.MINUTE_MS, "hour": reference.HOUR_MS}


class Both:
    """One set of files, and what both say about it."""

    def __init__(self, folder: Path) -> None:
        self.truth = write(SHAPE, folder / "samples")
        self.expected = reference.read(folder / "samples")
        self.out = folder / "out"
        run_batch(folder / "samples", self.out)


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("reference"))


def test_the_files_have_every_fault(both: Both) -> None:
    assert set(both.truth.faults) == set(FAULTS)
    assert both.truth.samples == len(both.expected.lines)


@pytest.mark.parametrize("period", PERIODS)
def test_counters(both: Both, period: str) -> None:
    tables_read.same(
        tables_read.counters(both.out, period), reference.counters(both.expected.lines, PERIODS[period])
    )


@pytest.mark.parametrize("period", PERIODS)
def test_gauges(both: Both, period: str) -> None:
    tables_read.same(
        tables_read.gauges(both.out, period), reference.gauges(both.expected.lines, PERIODS[period])
    )


@pytest.mark.parametrize("period", PERIODS)
def test_latencies_bucket_by_bucket_and_their_percentiles(both: Both, period: str) -> None:
    expected = tables_read.latencies(both.out, period)
    tables_read.same(expected, reference.latencies(both.expected.lines, PERIODS[period]))


def test_processes(both: Both) -> None:
    tables_read.same(tables_read.processes(both.out), reference.processes(both.expected))


def test_rejects(both: Both) -> None:
    tables_read.same(tables_read.rejects(both.out), both.expected.rejects)


def test_a_second_run_changes_nothing(both: Both) -> None:
    before = tables_read.everything(both.out)
    run_batch(both.out.parent / "samples", both.out)
    assert tables_read.everything(both.out) == before
