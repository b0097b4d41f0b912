"""Names of sample files and their folders, both ways."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.metrics import samples
from ddmq_common.metrics.samples import HOUR_MS, SampleName

INSTANCES = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")
SEQUENCES = st.integers(0, 10**12)


@given(INSTANCES, SEQUENCES, SEQUENCES, st.booleans())
def test_a_name_says_what_it_was_made_of(instance: str, first: int, more: int, merged: bool) -> None:
    name = (
        SampleName(instance, first, first + more, True) if merged else samples.interval_name(instance, first)
    )
    assert samples.parse(str(name)) == name
    assert name.hidden.startswith(".")
    assert samples.parse(name.hidden) is None
    assert samples.parse_hidden(name.hidden) == name
    assert samples.parse_hidden(str(name)) is None


@given(st.integers(0, 4_000_000_000_000))
def test_a_folder_is_the_hour_of_the_time(wall_ms: int) -> None:
    day, hour = samples.folder(wall_ms).split("/")
    assert samples.hour_start(day, hour) == wall_ms // HOUR_MS * HOUR_MS


def test_names_as_documented() -> None:
    assert samples.folder(1_795_316_566_000) == "date=2026-11-22/hour=03"
    assert str(samples.interval_name("00c0ffee00c0ffee", 17)) == "samples-00c0ffee00c0ffee-00000017.jsonl"
    merged = SampleName("00c0ffee00c0ffee", 17, 376, True)
    assert str(merged) == "hour-00c0ffee00c0ffee-00000017-00000376.jsonl"


@pytest.mark.parametrize(
    "name",
    [
        "samples-00c0ffee00c0ffee-17.jsonl",
        "samples-00C0FFEE00C0FFEE-00000017.jsonl",
        "samples-00c0ffee-00000017.jsonl",
        "samples-00c0ffee00c0ffee-00000017.jsonl.gz",
        "hour-00c0ffee00c0ffee-00000017.jsonl",
        "notes.txt",
        "",
        ".tmp",
        "..tmp",
    ],
)
def test_other_names_are_not_ours(name: str) -> None:
    assert samples.parse(name) is None
    assert samples.parse_hidden(name) is None


@pytest.mark.parametrize(
    ("date", "hour"),
    [
        ("date=2026-13-01", "hour=00"),
        ("date=2026-02-30", "hour=00"),
        ("date=2026-01-01", "hour=24"),
        ("2026-01-01", "00"),
    ],
)
def test_other_folders_are_not_ours(date: str, hour: str) -> None:
    assert samples.hour_start(date, hour) is None


@pytest.mark.parametrize(
    ("folder", "day"),
    [
        ("date=2026-02-28", date(2026, 2, 28)),
        ("date=1970-01-01", date(1970, 1, 1)),
        ("date=2026-02-30", None),
        ("date=0001-01-01", None),
        ("date=9999-12-31", None),
        ("date=2026-02-28.old", None),
        ("2026-02-28", None),
    ],
)
def test_the_folder_of_a_day_is_a_day_that_there_is(folder: str, day: date | None) -> None:
    assert samples.day_of(folder) == day


def test_a_merged_file_covers_its_own_instance_only() -> None:
    merged = SampleName("a" * 16, 3, 9, True)
    assert merged.covers(samples.interval_name("a" * 16, 3))
    assert merged.covers(samples.interval_name("a" * 16, 9))
    assert not merged.covers(samples.interval_name("a" * 16, 10))
    assert not merged.covers(samples.interval_name("b" * 16, 5))
    assert not samples.interval_name("a" * 16, 3).covers(samples.interval_name("a" * 16, 3))
