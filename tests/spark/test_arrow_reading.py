"""Arrow's way of reading gives what Spark's reader and metrics_job.minutes give, whatever is in the files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from bench.samples_generator import FAULTS, Shape, write
from ddmq_common.metrics.samples import SampleName, interval_name
from metrics_job.arrow import read
from metrics_job.arrow.lines import SeriesCodes, parse
from metrics_job.arrow.read import merged_since, read_minutes
from metrics_job.folders import Days
from metrics_job.minutes import (
    FILE,
    INTERVAL,
    READER_OPTIONS,
    REASON,
    classify_lines,
    read_schema,
    to_minutes,
)
from metrics_job.tables import SERIES_KEY

ALL = Days(None, None)
GOOD: dict[str, Any] = {"v": 1, "process": "p@h", "instance": "i", "seq": 3, "from": 10_000, "to": 20_000}
GOOD |= {"metric": "ddmq_acked_total", "labels": {"group": "g", "topic": "t"}, "value": 2}
HISTOGRAM = GOOD | {"metric": "ddmq_queue_wait_us", "sum": 3.5, "buckets": [1, 2], "counts": [4, 5]}
UNUSUAL_LINES = [
    *(json.dumps(GOOD | change).encode() for change in (
        {"v": 2}, {"v": "1"}, {"v": None},
        {"seq": 1.5}, {"seq": "3"}, {"process": 5}, {"labels": []},
        {"labels": None}, {"labels": {"topic": 7}},
        {"labels": {"topic": "a\"b\u00e9"}}, {"labels": "x"},
        {"labels": {"topic": "t", "zone": "a"}}, {"labels": {"topic": "t", "zone": None}},
        {"metric": "nothing"}, {"value": -1},
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


RUN = "00c0ffee00c0ffee"  # an instance
OWN = GOOD | {"instance": RUN}


def added_up(minutes: DataFrame) -> dict[Any, Any]:
    """Minutes with one row for each key."""
    sums: dict[Any, Any] = {}
    for row in minutes.collect():
        if row["kind"] == INTERVAL:
            key = tuple(row[name] for name in ("process", "instance", "seq", "from_ms", "to_ms"))
            assert key not in sums
            sums[key] = (row["minute"], row["lines"], row["copies"], row["is_last"])
            continue
        one = sums.setdefault((row["kind"], row["minute"], *(row[name] for name in SERIES_KEY)), Series())
        one.add(row.asDict())
    return {key: one.to_row() if isinstance(one, Series) else one for key, one in sums.items()}


class Series:
    """What the rows of one key add up to."""

    def __init__(self) -> None:
        self.total, self.lines, self.extremes = 0.0, 0, list[float]()
        self.last: tuple[int, int, float] | None = None
        self.met: Counter[int] = Counter()

    def add(self, row: dict[str, Any]) -> None:
        self.total += row["total"]
        if row["kind"] == "gauge":
            self.lines += row["lines"]
            self.extremes += [row["max"], row["min"]]
            self.last = max(self.last or (-1, -1, 0.0), (row["to_ms"], row["seq"], row["last"]))
        if row["kind"] == "histogram":
            for bucket, n in zip(row["buckets"], row["counts"], strict=True):
                self.met[bucket] += n

    def to_row(self) -> Any:
        extremes = self.extremes and (min(self.extremes), max(self.extremes))
        return round(self.total, 3), self.lines, extremes, self.last, self.met


def refused(lines: DataFrame | None) -> Counter[tuple[str, str]]:
    """(file, reason) of the lines that are refused."""
    rows = [] if lines is None else lines.filter(lines[REASON].isNotNull()).collect()
    return Counter((row["file"].rpartition("/")[2], row[REASON]) for row in rows)


def read_lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Every line as Spark's own reader understands it."""
    lines = spark.read.schema(read_schema()).options(**READER_OPTIONS).json(paths)
    return lines.withColumn(FILE, F.col("_metadata.file_path")).transform(classify_lines)


def same_both_ways(spark: SparkSession, folders: list[Path]) -> dict[Any, Any]:
    paths = [str(folder) for folder in folders]
    lines = read_lines(spark, paths)
    batch = read_minutes(spark, paths, ALL, DataFrame.persist)
    sums, expected = added_up(batch.minutes), added_up(to_minutes(lines, DataFrame.persist))
    assert sums == expected
    assert refused(batch.spark_lines) == refused(lines)
    return sums


def text(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


@pytest.mark.parametrize("local", [read.LOCAL, "of another file system:"])
def test_files_with_every_fault(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    """Read by the workers, or handed to them."""
    monkeypatch.setattr(read, "LOCAL", local)
    samples = tmp_path / "a b%20c+d#e"
    shape = Shape(samples=1_500, seed=5, faults=0.3, interval_ms=20_000, topics=1, groups=1)
    assert len(write(shape, samples).faults) == len(FAULTS)
    assert same_both_ways(spark, sorted(samples.glob("date=*/hour=*")))


def test_long_files_are_read_in_chunks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(samples=1_000, seed=6, faults=0.3, interval_ms=20_000, topics=1, groups=1)
    write(shape, tmp_path)
    sizes = sorted(path.stat().st_size for path in tmp_path.rglob("*.jsonl"))
    monkeypatch.setattr(read, "FILE_BYTES_MAX", sizes[len(sizes) // 2])
    assert same_both_ways(spark, sorted(tmp_path.glob("date=*/hour=*")))


def test_files_that_are_merged_and_deleted_meanwhile_are_read_as_the_merged_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / str(interval_name(RUN, seq)) for seq in (0, 1)]
    for seq, path in enumerate(paths):
        path.write_bytes(text([OWN | {"seq": seq, "to": 99_000}]))
    listed = read.input_files

    def tidied(rows: DataFrame) -> list[str]:
        names = listed(rows)
        if paths[0].exists():
            merged = b"".join(path.read_bytes() for path in paths)
            (tmp_path / str(SampleName(RUN, 0, 1, True))).write_bytes(merged)
            for path in paths:
                path.unlink()
        return names

    monkeypatch.setattr(read, "input_files", tidied)
    sums = added_up(read_minutes(spark, [str(tmp_path)], ALL, DataFrame.persist).minutes)
    monkeypatch.undo()
    assert sums == added_up(read_minutes(spark, [str(tmp_path)], ALL, DataFrame.persist).minutes)
    assert sums


def test_files_deleted_by_retention_are_not_read_twice() -> None:
    one, two = str(interval_name(RUN, 0)), str(interval_name(RUN, 1))
    assert not merged_since([one, two], [two])
    assert merged_since([one, two], [two, str(SampleName(RUN, 0, 0, True))])


def test_every_unusual_line_is_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    for at, line in enumerate(UNUSUAL_LINES):  # a file each, so that rejects tell which line it was
        line = line.replace(b'"seq": 3', b'"seq": %d' % at).replace(b'"i"', b'"%s"' % RUN.encode())
        (tmp_path / str(interval_name(RUN, at))).write_bytes(
            line + b"\n" + text([OWN | {"seq": at, "to": 99_000}])
        )
    same_both_ways(spark, [tmp_path])


def test_a_line_that_only_spark_accepts_counts_once_with_its_copies(
    spark: SparkSession, tmp_path: Path
) -> None:
    line = text([OWN])
    odd = line.replace(b'"t"', b'"\\u0074"')  # the same line, as another writer would put it
    assert json.loads(odd) == OWN
    (tmp_path / str(SampleName(RUN, 0, 3, merged=True))).write_bytes(odd + text([OWN | {"seq": 0}]))
    (tmp_path / str(interval_name(RUN, 3))).write_bytes(line)
    (tmp_path / str(interval_name(RUN, 4))).write_bytes(text([OWN | {"seq": 4}]))
    sums = same_both_ways(spark, [tmp_path])
    assert sums["counter", 0, "ddmq_acked_total", "p@h", "t", "g", ""][0] == 6.0


def test_more_unusual_intervals_than_are_named_are_all_reread(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "RETRIES_MAX", 2)
    for seq in range(3):
        odd = text([OWN | {"seq": seq}]).replace(b'"t"', b'"\\u0074"')
        (tmp_path / str(interval_name(RUN, seq))).write_bytes(odd + text([OWN | {"seq": seq, "to": 99_000}]))
    sums = same_both_ways(spark, [tmp_path])
    assert sums["counter", 0, "ddmq_acked_total", "p@h", "t", "g", ""][0] == 6.0


@pytest.mark.parametrize(
    "name", ["copy.jsonl", str(interval_name("00000000deadbeef", 3)), str(interval_name(RUN, 4))]
)
def test_a_file_whose_name_does_not_match_its_content(spark: SparkSession, tmp_path: Path, name: str) -> None:
    for file in (name, str(interval_name(RUN, 3))):
        (tmp_path / file).write_bytes(text([OWN, OWN | {"metric": "ddmq_failed_total"}]))
    sums = same_both_ways(spark, [tmp_path])
    assert sums["p@h", RUN, 3, 10_000, 20_000] == (0, 2, 4, False)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([json.dumps(GOOD).encode(), *UNUSUAL_LINES]), max_size=12), st.booleans())
def test_no_line_is_lost_or_invented(lines: list[bytes], with_newline: bool) -> None:
    data = b"\n".join(lines) + b"\n" * with_newline
    texts = [text for line in lines for text in line.splitlines() if text.strip()]
    arrays = [text for text in texts if text.startswith(b"[") and b"1,2" not in text]
    expected_count = len(texts) - len(arrays) + sum(len(json.loads(text)) for text in arrays)
    parsed = parse([data], SeriesCodes())
    assert parsed.lines.num_rows + len(parsed.undecoded) == expected_count
