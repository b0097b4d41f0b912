"""The folders of the streaming job over thousands of batches, against a plain list; no Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metrics_job.arrived import FANOUT, Range, drop_covered, to_merge


def grown(batches: int) -> list[Range]:
    """As the job does it: one merge at most before every batch."""
    ranges: list[Range] = []
    for batch in range(batches):
        merging = to_merge(ranges)
        if merging:
            ranges = drop_covered([*ranges, Range(merging[0].first, merging[-1].last)])
        ranges.append(Range(batch, batch))
    return ranges


def test_every_batch_is_in_one_folder_and_the_folders_stay_few() -> None:
    for batches in (1, 15, 16, 17, 255, 300, 5_000):
        ranges = grown(batches)
        covered = [batch for one in ranges for batch in range(one.first, one.last + 1)]
        assert covered == list(range(batches))
        levels = [one.merge_level for one in ranges]
        assert max(levels.count(level) for level in set(levels)) <= FANOUT


def test_names_sort_and_are_parsed_back() -> None:
    names = [one.name for one in grown(3_000)]
    assert names == sorted(names)
    assert [Range(*map(int, name.split("-"))).name for name in names] == names


@given(st.integers(1, 600), st.data())
def test_folders_inside_a_wider_one_are_dead_whatever_a_kill_left(batches: int, data: st.DataObject) -> None:
    ranges = grown(batches)
    single = [Range(batch, batch) for one in ranges for batch in range(one.first, one.last + 1)]
    leftovers = data.draw(st.lists(st.sampled_from(single), unique=True))
    assert drop_covered({*ranges, *leftovers}) == ranges
