"""Arrow's way of reading gives what Spark's reader and metrics_job.slices give, whatever is in the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.samples_generator import FAULTS, Shape, write
from metrics_job.arrow.ids import spark_hash
from metrics_job.arrow.parse import parse
from metrics_job.arrow.read import files, read_slices
from metrics_job.folders import Days
from metrics_job.read import read_lines
from metrics_job.slices import KEY, slices

ALL = Days(None, None)
GOOD: dict[str, Any] = {"v": 1, "process": "p@h", "instance": "i", "seq": 3, "from": 10_000, "to": 20_000}
GOOD |= {"metric": "ddmq_acked_total", "labels": {"group": "g", "topic": "t"}, "value": 2}
HISTOGRAM = GOOD | {"metric": "ddmq_queue_wait_us", "sum": 3.5, "buckets": [1, 2], "counts": [4, 5]}
ODD_LINES = [
    *(json.dumps(GOOD | change).encode() for change in (
        {"v": 2}, {"v": "1"}, {"v": None},
        {"seq": 1.5}, {"seq": "3"}, {"process": 5}, {"labels": []},
        {"labels": None}, {"labels": {"topic": 7}},
        {"labels": {"topic": "a\"b\u00e9"}}, {"metric": "nothing"}, {"value": -1},
        {"value": None}, {"value": "x"}, {"value": "NaN"}, {"value": 1e400}, {"more": [1]},
    )),
    *(json.dumps(HISTOGRAM | change).encode() for change in (
        {}, {"buckets": []}, {"buckets": [1]}, {"buckets": [1, 999]}, {"counts": [0, 1]}, {"sum": None},
        {"buckets": [1, None]}, {"counts": None}, {"buckets": "x"},
    )),
    b"", b"   ", b"seventeen", b"[]", b"[1,2]", b"{}", b"{}}", b"\xff\xfe no text",
    b'{"v":1,"process":"consu',
    json.dumps([GOOD, GOOD | {"seq": 4}]).encode(), json.dumps(GOOD, ensure_ascii=False).encode() + b"\r",
    json.dumps(GOOD | {"labels": {"topic": "\u00fc"}}, ensure_ascii=False).encode(),
]  # fmt: skip


def added_up(rows: DataFrame) -> set[tuple[Any, ...]]:
    """Slices with one row for each key; of buckets only what they count."""
    number = F.col("kind") != "bucket"
    sums = [F.sum(name).alias(name) for name in ("lines", "copies", "seconds", "clock_steps")]
    sums += [F.bit_or("seen").alias("seen"), F.max_by("last", "to_ms").alias("last")]
    sums += [F.max(name).alias(name) for name in ("max", "to_ms")]
    sums += [F.min(name).alias(name) for name in ("min", "from_ms")]
    names = ("lines", "copies", "clock_steps", "seen", "last", "max", "to_ms", "min", "from_ms")
    whole = rows.groupBy(*KEY).agg(F.round(F.sum("total"), 3).alias("total"), *sums)
    values = [F.when(number, F.col(name)) for name in names]
    seconds = F.when(number, F.round("seconds", 3))
    return {tuple(map(repr, row)) for row in whole.select(*KEY, "total", *values, seconds).collect()}


def both(spark: SparkSession, folder: Path) -> tuple[set[Any], set[Any]]:
    arrow = read_slices(files(spark, [str(folder)]), ALL, DataFrame.persist).made
    return added_up(arrow), added_up(slices(read_lines(spark, [str(folder)])))


def test_files_with_every_fault(spark: SparkSession, tmp_path: Path) -> None:
    shape = Shape(samples=4_000, seed=5, faults=0.3, interval_ms=20_000, topics=1, groups=1)
    assert len(write(shape, tmp_path).faults) == len(FAULTS)
    folders = [str(path) for path in sorted(tmp_path.glob("date=*/hour=*"))]
    arrow = added_up(read_slices(files(spark, folders), ALL, DataFrame.persist).made)
    assert arrow == added_up(slices(read_lines(spark, folders)))


def test_every_odd_line_is_what_sparks_reader_says(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "date=2026-01-05"
    folder.mkdir()
    for at, line in enumerate(ODD_LINES):  # a file each, so that rejects tell which line it was
        (folder / f"{at:03d}.jsonl").write_bytes(line + b"\n" + json.dumps(GOOD | {"seq": at}).encode())
    arrow, plain = both(spark, folder)
    assert (arrow - plain, plain - arrow) == (set(), set())


def test_a_whole_block_and_repeats_in_it(spark: SparkSession, tmp_path: Path) -> None:
    seqs = [*range(130), 5, 63, 127]  # the last number of a block is the sign of its bits
    text = "".join(json.dumps(GOOD | {"seq": seq, "to": 20_000 + seq}) + "\n" for seq in seqs)
    (tmp_path / "one.jsonl").write_text(text)
    arrow, plain = both(spark, tmp_path)
    assert (arrow - plain, plain - arrow) == (set(), set())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([json.dumps(GOOD).encode(), *ODD_LINES]), max_size=12), st.booleans())
def test_no_line_is_lost_or_made(lines: list[bytes], ended: bool) -> None:
    data = b"\n".join(lines) + b"\n" * ended
    parts = [text for line in lines for text in line.splitlines() if text.strip()]
    arrays = [text for text in parts if text.startswith(b"[") and b"1,2" not in text]
    wanted = len(parts) - len(arrays) + sum(len(json.loads(text)) for text in arrays)
    found = parse([data])
    assert found.lines.num_rows + len(found.odd) == wanted


@pytest.mark.parametrize(
    "texts", [("a",), ("a", None, ""), ("h\u00e9" * 30, "topic-0"), (None,), ("x" * 31,)]
)
def test_ids_are_those_of_spark(spark: SparkSession, texts: tuple[str | None, ...]) -> None:
    row = spark.range(1).select(F.xxhash64(*(F.lit(text).cast("string") for text in texts))).first()
    assert row is not None
    assert spark_hash(texts) == row[0]
