"""Offsets and ranges of the Spark format against naive models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_client import QueueBounds
from metrics_job.sparksource.offsets import (
    OffsetRange,
    QueueOffsets,
    limit_offsets,
    list_end_offsets,
    not_before,
    not_past,
    plan_ranges,
    resolve_fixed_offsets,
)
from metrics_job.sparksource.options import SourceOptionError, Where

OFFSETS = st.integers(0, 40)
QUEUE_OFFSETS = st.dictionaries(
    st.sampled_from("ab"), st.dictionaries(st.sampled_from("0123"), OFFSETS, max_size=4), max_size=2
)


def bounds_of(ranges: dict[tuple[str, int], tuple[int, int]]) -> list[QueueBounds]:
    return [QueueBounds(t, f"R_default_{t}_{q}", lo, hi) for (t, q), (lo, hi) in ranges.items()]


BOUNDS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(OFFSETS, OFFSETS).map(lambda pair: (min(pair), max(pair))),
).map(bounds_of)


def covered(ranges: list[OffsetRange]) -> dict[tuple[str, int], list[int]]:
    offsets: dict[tuple[str, int], list[int]] = {}
    for offset_range in ranges:
        offsets.setdefault((offset_range.topic, offset_range.number), []).extend(
            range(offset_range.start, offset_range.end)
        )
    return offsets


@given(QUEUE_OFFSETS, QUEUE_OFFSETS, BOUNDS, st.integers(1, 9))
def test_read_and_lost_ranges_cover_everything_between_two_offsets(
    start: QueueOffsets, end: QueueOffsets, bounds: list[QueueBounds], most: int
) -> None:
    ranges, losses = plan_ranges(start, end, bounds, most)
    assert all(0 < offset_range.end - offset_range.start <= most for offset_range in ranges)
    there = {(at.topic, at.number): set(range(at.first, at.end)) for at in bounds}
    read = covered(ranges)
    lost = {(loss.topic, loss.number): set[int]() for loss in losses}
    for loss in losses:
        lost[loss.topic, loss.number] |= set(range(loss.start, loss.end))
    for topic, queues in end.items():
        for number, upto in queues.items():
            at = (topic, int(number))
            since = start.get(topic, {}).get(number, 0)
            got = read.pop(at, [])
            assert got == sorted(set(got)), "in order, nothing twice"
            assert set(got) <= there.get(at, set())
            if upto >= since:
                expected_offsets = set(range(since, upto))
                assert set(got) == expected_offsets & there.get(at, set())
                if number in start.get(topic, {}):
                    assert lost.get(at, set()) == expected_offsets - set(got), "what is not read is told"
            else:
                assert set(got) == {n for n in there.get(at, set()) if n < upto}, "made anew: from its first"
                assert lost[at]
    assert not read


@given(QUEUE_OFFSETS, QUEUE_OFFSETS, st.integers(1, 60))
def test_a_limit_holds_and_leaves_nothing_out_that_fits(
    start: QueueOffsets, end: QueueOffsets, most: int
) -> None:
    limited = limit_offsets(start, end, most)
    granted, waiting = {}, {}
    for topic, queues in end.items():
        assert limited[topic].keys() == queues.keys()
        for number, upto in queues.items():
            since = start.get(topic, {}).get(number, 0)
            if upto <= since:
                assert limited[topic][number] == upto
                continue
            granted[topic, number] = limited[topic][number] - since
            waiting[topic, number] = upto - since
            assert 0 <= granted[topic, number] <= waiting[topic, number]
    assert sum(granted.values()) == min(most, sum(waiting.values()))
    unfinished = [granted[at] for at in granted if granted[at] < waiting[at]]
    if unfinished:
        assert max(granted.values()) - min(unfinished) <= 1, "shared equally"


def test_with_fewer_messages_than_queues_the_longest_go_first() -> None:
    assert limit_offsets({}, {"a": {"0": 1, "1": 9, "2": 5}}, 2) == {"a": {"0": 0, "1": 1, "2": 1}}


@given(QUEUE_OFFSETS, QUEUE_OFFSETS)
def test_nothing_goes_past_a_target(end: QueueOffsets, target: QueueOffsets) -> None:
    for topic, queues in not_past(end, target).items():
        for number, offset in queues.items():
            assert offset == min(end[topic][number], target[topic][number])


def test_offsets_of_edges_and_of_json() -> None:
    bounds = bounds_of({("a", 0): (3, 9), ("a", 1): (0, 4)})
    assert list_end_offsets(bounds, ["a", "new"]) == {"a": {"0": 9, "1": 4}, "new": {}}
    assert resolve_fixed_offsets(Where(edge="first"), bounds, "o") == {"a": {"0": 3, "1": 0}}
    assert resolve_fixed_offsets(Where(edge="last"), bounds, "o") == {"a": {"0": 9, "1": 4}}
    where = Where(offsets={"a": {"1": "last"}})
    assert resolve_fixed_offsets(where, bounds, "o") == {"a": {"0": 3, "1": 4}}, (
        "the first message where nothing is said"
    )


def test_a_queue_that_is_not_there_cannot_be_named() -> None:
    bounds = bounds_of({("a", 0): (0, 1)})
    with pytest.raises(SourceOptionError, match="startingOffsets names queue 7 of topic a"):
        resolve_fixed_offsets(Where(offsets={"a": {"7": 1}}), bounds, "startingOffsets")


@pytest.mark.parametrize(
    ("start", "end", "read", "lost"),
    [
        (5, 10, [5, 6, 7, 8, 9], []),
        (7, 3, [], []),  # asked the wrong way round: nothing lies between
        (10, 10, [], []),
        (10, 3, [], []),
        (99, 10, list(range(10)), [(10, 99)]),  # a place kept from before the topic was made anew
    ],
)
def test_a_batch_from_a_missing_offset_is_a_loss(
    start: int, end: int, read: list[int], lost: list[tuple[int, int]]
) -> None:
    bounds = bounds_of({("a", 0): (0, 10)})
    since: QueueOffsets = {"a": {"0": start}}
    ranges, losses = plan_ranges(since, not_before({"a": {"0": end}}, since, bounds), bounds, 100)
    assert covered(ranges).get(("a", 0), []) == read
    assert [(loss.start, loss.end) for loss in losses] == lost
