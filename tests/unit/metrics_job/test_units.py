"""Which files make one unit, against comparing each with each."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.metrics.samples import SampleName
from metrics_job.arrow.work import can_hold, units_of

RUNS = ("0000000000000001", "0000000000000002")


@st.composite
def names(draw: st.DrawFn) -> SampleName:
    first = draw(st.integers(0, 30))
    merged = draw(st.booleans())
    return SampleName(draw(st.sampled_from(RUNS)), first, first + draw(st.integers(0, 8)) * merged, merged)


def overlap(one: SampleName, other: SampleName) -> bool:
    return one.instance == other.instance and one.first <= other.last and other.first <= one.last


@given(st.lists(names(), max_size=12), st.booleans())
def test_units_are_overlapping_files(files: list[SampleName], strange: bool) -> None:
    paths = [f"file:/x/date%3D2026-01-05/hour=0{at % 3}/{file}" for at, file in enumerate(files)]
    units = units_of([*paths, *(["file:/x/copy.jsonl"] if strange else [])])
    assert units.strange is strange
    group = list(range(len(files)))  # union of all that overlap
    for one, other in combinations(range(len(files)), 2):
        if overlap(files[one], files[other]):
            group = [group[one] if number == group[other] else number for number in group]
    for at, file in enumerate(files):
        same = [str(files[other]) for other in range(len(files)) if group[other] == group[at]]
        assert (str(file) in units.shared) is (len(same) > 1)
        assert {name for name in map(str, files) if units.unit_of(name) == units.unit_of(str(file))} == set(
            same
        )


@given(
    st.lists(names(), max_size=4), st.lists(st.tuples(st.sampled_from(RUNS), st.integers(0, 40)), max_size=5)
)
def test_names_cover_their_intervals(files: list[SampleName], intervals: list[tuple[str, int]]) -> None:
    expected = all(
        any(file.instance == run and seq in range(file.first, file.last + 1) for file in files)
        for run, seq in intervals
    )
    assert can_hold(map(str, files), intervals) is expected
