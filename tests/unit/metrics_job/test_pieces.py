"""A long file is added up piece by piece, as if it were one; intervals that come twice are seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddmq_common.metrics.samples import SampleName, interval_name
from metrics_job.arrow import work
from metrics_job.arrow.work import MISMATCH, ChunkAdder, FileChunk, gather_chunks, gather_units
from metrics_job.folders import Days

RUN = "00c0ffee00c0ffee"
NAME = f"date=2026-01-05/hour=10/{SampleName(RUN, 0, 199, merged=True)}"
METRICS = ("ddmq_acked_total", "ddmq_failed_total", "ddmq_delivered_total")


def line(seq: int, metric: str) -> bytes:
    head = {"v": 1, "process": "p@h", "instance": RUN, "seq": seq, "from": 10_000, "to": 20_000 + seq}
    of = {"metric": metric, "labels": {"group": "g", "topic": "t"}, "value": 2}
    return json.dumps(head | of).encode() + b"\n"


def rows(pieces: list[FileChunk]) -> list[dict[str, Any]]:
    adding = ChunkAdder(Days(None, None))
    return [row for piece in pieces for table in adding.add_alone(piece) for row in table.to_pylist()]


def totals(read_rows: list[dict[str, Any]]) -> dict[str, float]:
    sums = dict.fromkeys(METRICS, 0.0)
    for row in read_rows:
        if row["kind"] == "counter":
            sums[row["metric"]] += row["total"]
    return sums


@pytest.mark.parametrize(
    ("size", "count"), [pytest.param(1, 200, marks=pytest.mark.slow), (200, 30), (700, 60), (5_000, 200)]
)
def test_a_split_file_counts_every_line_once(size: int, count: int) -> None:
    """Three lines for each of so many intervals; one of them is there twice."""
    data = b"".join(line(seq, metric) * (1 + (seq == 17)) for seq in range(count) for metric in METRICS)
    pieces = list(gather_chunks([(NAME, data)], size=size, split_above=1_000))
    assert b"".join(piece.data[0] for piece in pieces) == data
    assert len(pieces) > 20
    read_rows = rows(pieces)
    assert MISMATCH not in {row["kind"] for row in read_rows}
    assert totals(read_rows) == dict.fromkeys(METRICS, 2.0 * count)
    intervals = [row for row in read_rows if row["kind"] == "interval"]
    assert sorted(row["seq"] for row in intervals) == list(range(count))
    assert {(row["lines"], row["copies"]) for row in intervals} == {(3, 3), (3, 6)}


def test_a_worker_that_forgets_the_names_of_series_still_counts_every_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "CACHED_SERIES_MAX", 1)
    names = [f"date=2026-01-05/hour=10/{interval_name(RUN, seq)}" for seq in range(5)]
    some = [
        FileChunk([name], [b"".join(line(seq, metric) for metric in METRICS)])
        for seq, name in enumerate(names)
    ]
    assert totals(rows(some)) == dict.fromkeys(METRICS, 10.0)


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [0, 5, 28])
def test_a_repeated_interval_later_in_a_long_file_is_uncertain(repeated: int) -> None:
    data = b"".join(line(seq, metric) for seq in range(30) for metric in METRICS)
    read_rows = rows(
        list(gather_chunks([(NAME, data + line(repeated, METRICS[0]))], size=200, split_above=1_000))
    )
    assert MISMATCH in {row["kind"] for row in read_rows}


def test_an_interval_outside_the_file_name_is_uncertain() -> None:
    read_rows = rows(list(gather_chunks([(NAME, line(200, METRICS[0]))])))
    assert [row["kind"] for row in read_rows] == [MISMATCH, "interval", "counter"]


def test_small_files_come_together_and_some_are_left_out() -> None:
    pieces = list(gather_chunks([(f"x/{at}.jsonl", b"x" * 300) for at in range(10)], {"3.jsonl"}, size=1_000))
    assert [len(piece.files) for piece in pieces] == [4, 4, 1]
    assert "x/3.jsonl" not in pieces[0].files


def test_units_are_never_split() -> None:
    files = [("a", "y/1", b"1"), ("a", "x/1", b"2"), ("b", "x/2", b"3")]
    assert list(gather_units(files)) == [
        ("a", FileChunk(["x/1", "y/1"], [b"2", b"1"])),
        ("b", FileChunk(["x/2"], [b"3"])),
    ]
