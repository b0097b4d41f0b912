"""The count of what waits in a level against a naive one, while messages come and go in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy_consumer.groups import level_tally
from proxy_consumer.groups.level_tally import LevelRange, LevelTally, RetryWaiting

NAMES = [("g", "a"), ("g", "b"), ("h", "a"), None]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=12)),
        st.tuples(st.just("finish"), st.lists(st.integers(0, 60), max_size=12)),
        st.tuples(st.just("look"), st.integers(1, 9)),
    ),
    max_size=40,
)


def ranges(offsets: set[int]) -> tuple[int, list[tuple[int, int]]]:
    """Committed offset, and the finished ranges above it."""
    committed = 0
    while committed in offsets:
        committed += 1
    return committed, [(offset, offset + 1) for offset in sorted(offsets) if offset > committed]


@given(STEPS)
def test_the_tally_counts_exactly_the_waiting_records(steps: list[tuple[str, object]]) -> None:
    block, level_tally.BLOCK = level_tally.BLOCK, 8
    try:
        run(steps)
    finally:
        level_tally.BLOCK = block


def run(steps: list[tuple[str, Any]]) -> None:
    tally, names, finished = LevelTally(), [], set()
    for what, value in steps:
        if what == "come":
            names += value
        elif what == "finish":
            finished |= {offset for offset in value if offset < len(names)}
        else:
            check_tally(tally, names, finished, value)
    check_tally(tally, names, finished, 100)


def check_tally(tally: LevelTally, names: list, finished: set[int], page: int) -> None:
    committed, above = ranges(finished)
    tally.take_progress(committed, above, len(names))
    while (missing := tally.missing_range()) is not None:
        missing = LevelRange(missing.offset, min(missing.end, missing.offset + page))
        rows = [
            (offset, names[offset], RetryWaiting(1, offset, -offset))
            for offset in range(missing.offset, missing.end)
            if names[offset] is not None
        ]
        tally.add(missing, rows)
    expected: dict[str, RetryWaiting] = {}
    for offset, name in enumerate(names):
        if name is not None and offset not in finished:
            row = RetryWaiting(1, offset, -offset)
            expected[name] = row if name not in expected else expected[name].added_to(row)
    assert tally.count_waiting() == expected
