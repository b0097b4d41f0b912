"""What held up a subscription between two moments, against what was the case at each millisecond."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.trace.events import WAITS_MAX
from proxy_consumer.tracing.waits import CHANGES_MAX, WaitLog

reasons = st.sampled_from(("no_pull", "turn", "rate"))
looks = st.lists(st.tuples(st.integers(0, 40), reasons), max_size=60)


@given(looks, st.integers(-5, 200), st.integers(0, 200))
def test_between_two_moments(changes: list[tuple[int, str]], start: int, length: int) -> None:
    log, at_ms = WaitLog(), 0
    changed: list[tuple[int, str]] = []
    for later, reason in changes:
        at_ms += later
        log.record_reason(reason, at_ms)
        changed.append((at_ms, reason))
    end = start + length
    model: dict[int, str] = {}
    for at, reason in changed:
        model |= dict.fromkeys(range(at, max(end, at)), reason)
    expected = {at: reason for at, reason in model.items() if start <= at < end}
    waits = log.waits_between(start, end)
    assert all(one[2] <= two[1] for one, two in pairwise(waits))
    assert all(until > since for _, since, until in waits)
    reported = {at: reason for reason, since, until in waits for at in range(since, until)}
    if len(list(groupby(sorted(expected.items()), key=lambda row: row[1]))) <= WAITS_MAX:
        assert reported == expected
    else:
        assert len(waits) == WAITS_MAX
        assert reported.items() <= expected.items()


@given(st.sets(st.integers(0, 4_999), min_size=1, max_size=WAITS_MAX), st.integers(0, 400))
def test_the_longest_of_very_many_waits_are_recorded(long: set[int], tail: int) -> None:
    """A hand-out looks through few of them, whatever there was since its message was stored."""
    log, at_ms = WaitLog(), 0
    expected: list[tuple[str, int, int]] = []
    for number in range(5_000 + tail):
        reason = ("no_pull", "turn")[number % 2]
        log.record_reason(reason, at_ms)
        until = at_ms + (10_000 if number in long else 5)
        if number in long:
            expected.append((reason, at_ms, until))
        at_ms = until
        assert len(log) <= CHANGES_MAX
    waits = log.waits_between(0, at_ms)
    assert len(waits) <= WAITS_MAX
    assert all(one[2] <= two[1] for one, two in pairwise(waits))
    assert set(expected) <= set(waits)
