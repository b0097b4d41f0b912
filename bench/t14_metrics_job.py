"""T14: the metrics job, 10 million samples to Parquet and the report, in one cold process.

`ddmq report` over files as bench/samples_generator.py makes them: hours merged, the last three in parts of
one interval, with restarts, lost, late and repeated files and damaged lines. Floors: reading all bytes of
the same files in this process (they are in the page cache, for everyone), and a Spark that only counts their
lines, in a cold process of its own; that one also tells how long Spark itself takes until it has done a first
job (`start_s`). Totals of the tables are compared with what the generator made.

`python -m bench.t14_metrics_job count DIR` is the second floor's process. The report's process has its own
words on stderr; they are shown only when it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from bench.harness import Series, run, sized
from bench.samples_generator import ExpectedSamples, Shape, write
from bench.servers import scratch

COUNT = int(os.environ.get("DDMQ_BENCH_SAMPLES", sized(10_000_000, 20_000)))
ROUNDS = int(os.environ.get("DDMQ_BENCH_ROUNDS", sized(3, 1)))
DEADLINE_S = 1_800
CHUNK = 1 << 20


class Job:
    """The files, what is in them, and the three ways to read them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._samples = folder, folder / "samples"
        self.expected: ExpectedSamples = write(Shape(samples=COUNT), self._samples)
        self._round = 0

    def read(self) -> dict[str, float]:
        """Every byte."""
        began, size = time.perf_counter(), 0
        for path in sorted(self._samples.rglob("*.jsonl")):
            with path.open("rb", buffering=0) as file:
                while chunk := file.read(CHUNK):
                    size += len(chunk)
        spent = time.perf_counter() - began
        return {"total_s": spent, "mb": size / 1e6}

    def count(self) -> dict[str, float]:
        """Every line, by Spark."""
        began = time.perf_counter()
        output = self._process([sys.executable, "-m", "bench.t14_metrics_job", "count", str(self._samples)])
        spent = time.perf_counter() - began
        figures = json.loads(output.splitlines()[-1])
        if figures["lines"] != self.expected.lines:
            raise AssertionError(f"Spark counted {figures['lines']} lines of {self.expected.lines}")
        return {"total_s": spent, "start_s": figures["start_s"], "count_s": figures["count_s"]}

    def report(self) -> dict[str, float]:
        """Parquet and HTML."""
        self._round += 1
        tables, page = self._folder / f"tables-{self._round}", self._folder / "report.html"
        command = [sys.executable, "-m", "ddmq", "report", "--samples", str(self._samples)]
        began = time.perf_counter()
        self._process([*command, "--tables", str(tables), "--out", str(page)])
        spent = time.perf_counter() - began
        check(tables, self.expected)
        if not page.stat().st_size:
            raise AssertionError("the report is empty")
        size = sum(path.stat().st_size for path in tables.rglob("*.parquet"))
        return {"total_s": spent, "samples_per_s": self.expected.samples / spent, "parquet_mb": size / 1e6}

    def _process(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=Path(__file__).parents[1],
        )
        if done.returncode:
            raise AssertionError(f"{command[:4]} ended with {done.returncode}:\n{done.stderr[-4_000:]}")
        return done.stdout


def check(tables: Path, expected: ExpectedSamples) -> None:
    """Raise AssertionError unless the tables have exactly the expected sums."""
    from pyarrow import dataset  # of the extra `spark`, like the job

    def sums(table: str, column: str) -> dict[str, float]:
        table_rows = dataset.dataset(tables / table, format="parquet", partitioning="hive").to_table(
            columns=["metric", "process", column]
        )
        totals: dict[str, float] = {}
        for row in table_rows.to_pylist():
            if table.startswith("counters") or row["process"] == "":
                totals[row["metric"]] = totals.get(row["metric"], 0) + row[column]
        return totals

    for table, column, truth in (
        ("counters_hour", "total", expected.totals),
        ("latencies_hour", "count", expected.observed),
    ):
        actual, expected_sums = (
            sums(table, column),
            {name: number for name, number in truth.items() if number},
        )
        if actual != expected_sums:
            differ = {
                name: (actual.get(name), expected_sums.get(name))
                for name in actual.keys() | expected_sums.keys()
            }
            raise AssertionError(
                f"{table}: (actual, expected) { ({k: v for k, v in differ.items() if v[0] != v[1]}) }"
            )


def count_lines(folder: str) -> None:
    """The floor's process: starts Spark, does a first job, counts."""
    began = time.perf_counter()
    from metrics_job.session import session

    spark = session("count")
    spark.range(1).count()
    started = time.perf_counter()
    lines = spark.read.option("recursiveFileLookup", "true").text(folder).count()
    counted = time.perf_counter()
    print(json.dumps({"lines": lines, "start_s": started - began, "count_s": counted - started}))
    spark.stop()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch()) as name:
        job = Job(Path(name))
        every = [
            Series("bytes read", job.read),
            Series("lines counted by Spark, cold", job.count, floor="bytes read", reach="start ≤ 15 s"),
            Series(
                "Parquet and report, cold", job.report, floor="lines counted by Spark, cold", reach="≤ 60 s"
            ),
        ]
        facts = {
            "samples": job.expected.samples,
            "lines": job.expected.lines,
            "intervals": job.expected.files,
        }
        run("t14_metrics_job", __doc__ or "", every, ROUNDS, **facts, pyspark=version("pyspark"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["count"]:
        count_lines(sys.argv[2])
    else:
        main()
