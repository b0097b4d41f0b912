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
def test_between_two_moments(told: list[tuple[int, str]], start: int, length: int) -> None:
    log, at_ms = WaitLog(), 0
    seen: list[tuple[int, str]] = []
    for later, reason in told:
        at_ms += later
        log.record_reason(reason, at_ms)
        seen.append((at_ms, reason))
    end = start + length
    model: dict[int, str] = {}
    for at, reason in seen:
        model |= dict.fromkeys(range(at, max(end, at)), reason)
    wanted = {at: reason for at, reason in model.items() if start <= at < end}
    found = log.waits_between(start, end)
    assert all(one[2] <= two[1] for one, two in pairwise(found))
    assert all(until > since for _, since, until in found)
    said = {at: reason for reason, since, until in found for at in range(since, until)}
    if len(list(groupby(sorted(wanted.items()), key=lambda row: row[1]))) <= WAITS_MAX:
        assert said == wanted
    else:
        assert len(found) == WAITS_MAX
        assert said.items() <= wanted.items()


@given(st.sets(st.integers(0, 4_999), min_size=1, max_size=WAITS_MAX), st.integers(0, 400))
def test_of_very_many_changes_the_longest_are_known(long: set[int], tail: int) -> None:
    """A hand-out looks through few of them, whatever there was since its message was stored."""
    log, at_ms = WaitLog(), 0
    wanted: list[tuple[str, int, int]] = []
    for number in range(5_000 + tail):
        reason = ("no_pull", "turn")[number % 2]
        log.record_reason(reason, at_ms)
        until = at_ms + (10_000 if number in long else 5)
        if number in long:
            wanted.append((reason, at_ms, until))
        at_ms = until
        assert len(log) <= CHANGES_MAX
    found = log.waits_between(0, at_ms)
    assert len(found) <= WAITS_MAX
    assert all(one[2] <= two[1] for one, two in pairwise(found))
    assert set(wanted) <= set(found)
