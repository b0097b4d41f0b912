"""The streaming job as a process, stopped, then killed in mid-batch, ends with the tables of a batch run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.samples_generator import Arrival, Generator, Shape, write_file
from tests.spark import reference, tables_read

SHAPE = Shape(samples=3_000, seed=21, faults=0.3, interval_ms=20_000, topics=1, groups=2)
FILES_A_BATCH = 90
DEADLINE_S = 600.0
ROOT = Path(__file__).parents[2]
COMMAND = """
import sys
from metrics_job.cli import main
from tests.spark.few_rows import small_session
small_session("stream")
sys.argv[0:1] = ["metrics_job", "stream"]
main()
"""
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1_800)]  # three Java machines


class Streaming:
    """Folders, and the process that may or may not run."""

    def __init__(self, root: Path) -> None:
        self.samples, self.out, self.log = root / "samples", root / "out", root / "said"
        self.samples.mkdir()

    @contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-c", COMMAND, "--samples", str(self.samples)]
        options = ["--out", str(self.out), "--files-max", str(FILES_A_BATCH), *more]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *options], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def until(self, process: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
        """Raises AssertionError with what the process said when it ends or the deadline passes first."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                pass
            if condition():
                return
            if process.returncode is not None or time.monotonic() > deadline:
                raise AssertionError(f"not {what}; it ended with {process.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3_000:]

    def begun(self) -> int:
        """Batches whose files are chosen."""
        return _numbered(self.out / "stream" / "checkpoint" / "offsets")

    def committed_count(self) -> int:
        """Batches that are done."""
        return _numbered(self.out / "stream" / "checkpoint" / "commits")

    def stored_count(self) -> int:
        """Batches whose lines are kept."""
        return sum("_state.json" in files for _, _, files in os.walk(self.out / "stream" / "minutes"))

    def tables(self) -> set[str]:
        """Names of the files of tables, other ones after each writing. Folders may come and go meanwhile."""
        names = set()
        for _, folders, files in os.walk(self.out):
            folders[:] = [folder for folder in folders if folder != "stream"]
            names.update(file for file in files if file.endswith(".parquet"))
        return names


def _numbered(folder: Path) -> int:
    return len([path for path in folder.glob("*") if path.name.isdigit()]) if folder.exists() else 0


def arrive(job: Streaming, files: list[Arrival]) -> None:
    for file in files:
        write_file(job.samples, file.path, file.data)


def test_a_stopped_and_killed_stream_ends_with_the_tables_of_a_batch(tmp_path: Path) -> None:
    job, files = Streaming(tmp_path), list(Generator(SHAPE).arrivals())
    assert len(files) > 2 * FILES_A_BATCH
    arrive(job, files[:FILES_A_BATCH])
    with job.running("--every", "1") as process:  # a batch that runs when the signal comes is finished
        job.until(process, lambda: job.begun() > 0, "begun")
        process.send_signal(signal.SIGTERM)
        job.until(process, lambda: process.returncode is not None, "stopped")
        assert process.returncode == 0, job.tail()
    assert job.begun() == job.committed_count() == 1
    arrive(job, files[FILES_A_BATCH:])
    stored_count, before = job.stored_count(), job.tables()
    with job.running("--once") as process:  # killed among the tables of a batch
        job.until(
            process, lambda: job.stored_count() > stored_count and job.tables() != before, "replacing tables"
        )
    assert job.committed_count() == 1, "killed too late to show anything"
    with job.running("--once") as process:
        job.until(process, lambda: process.returncode is not None, "finished")
        assert process.returncode == 0, job.tail()
    assert job.committed_count() >= 3
    same_as_reference(job)


def same_as_reference(job: Streaming) -> None:
    samples = reference.read(job.samples)
    for period, length in (("minute", reference.MINUTE_MS), ("hour", reference.HOUR_MS)):
        tables_read.same(tables_read.counters(job.out, period), reference.counters(samples.lines, length))
        tables_read.same(tables_read.gauges(job.out, period), reference.gauges(samples.lines, length))
        tables_read.same(tables_read.latencies(job.out, period), reference.latencies(samples.lines, length))
    tables_read.same(tables_read.processes(job.out), reference.processes(samples))
    tables_read.same(tables_read.rejects(job.out), samples.rejects)
