"""Why a subscription has unfinished messages, and when it has none: stated only if it is known."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.records import QueueRef
from ddmq.cli.operate.groups import group_show
from ddmq.cli.operate.stats import drain_text
from ddmq.server.admin.lag.causes import LagCause, LagFacts, drain_seconds, find_lag_cause
from ddmq.server.admin.lag.rates import (
    AGE_MAX_S,
    ProgressRates,
    ProgressSample,
    ProgressSamples,
    find_rates,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operating-groups.md"
NOTHING = LagFacts(unfinished=5, concurrency=10, retrying_max=20, ack_span_max=30)
APPLIES: dict[LagCause, dict[str, Any]] = {
    LagCause.PAUSED: {"paused": True},
    LagCause.NOBODY_CONSUMES: {"consumed": False},
    LagCause.TOPIC_CLOSED: {"readable": False},
    LagCause.PUSH_HELD_BACK: {"push_held_back": True},
    LagCause.OTHER_PROXY: {"held_elsewhere": True},
    LagCause.STALLED: {"stalled": True},
    LagCause.CONCURRENCY: {"in_flight": 10},
    LagCause.RETRYING_MAX: {"retrying": 20},
    LagCause.ACK_SPAN_MAX: {"ack_span": 30},
    LagCause.RATE_MAX: {"rate_max": 100, "delivered_per_s": 96.0},
    LagCause.CLIENTS_DIFFER: {"clients_differ": True},
    LagCause.SLOWER_THAN_ARRIVALS: {"arriving_per_s": 2.0, "finished_per_s": 1.5},
    LagCause.KEYS_BLOCKED: {"ordered": True, "retrying": 1},
}


@pytest.mark.parametrize("cause", LagCause)
def test_each_cause_is_found_alone(cause: LagCause) -> None:
    assert find_lag_cause(NOTHING._replace(**APPLIES[cause])) is cause


@pytest.mark.parametrize(
    "facts",
    [
        NOTHING,
        NOTHING._replace(consumed=True, held_elsewhere=False),
        NOTHING._replace(in_flight=9, retrying=19, ack_span=29),
        NOTHING._replace(delivered_per_s=1e9),  # no limit
        NOTHING._replace(rate_max=100),  # the rate is not known
        NOTHING._replace(rate_max=100, delivered_per_s=94.0),
        NOTHING._replace(arriving_per_s=2.0),
        NOTHING._replace(finished_per_s=0.0),
        NOTHING._replace(arriving_per_s=2.0, finished_per_s=2.0),
        NOTHING._replace(ordered=True),
    ],
)
def test_without_a_known_cause_none_is_stated(facts: LagFacts) -> None:
    assert find_lag_cause(facts) is None


@given(st.sets(st.sampled_from(list(LagCause))), st.sampled_from([None, 0]))
def test_the_first_cause_that_applies_is_stated(causes: set[LagCause], unfinished: int | None) -> None:
    facts: dict[str, Any] = {}
    for cause in sorted(causes, key=list(LagCause).index, reverse=True):
        facts |= APPLIES[cause]  # `retrying` of an earlier cause counts
    if LagCause.KEYS_BLOCKED in causes or LagCause.RETRYING_MAX in causes:
        facts["retrying"] = 20 if LagCause.RETRYING_MAX in causes else 1
    assert find_lag_cause(NOTHING._replace(**facts)) is min(causes, key=list(LagCause).index, default=None)
    assert find_lag_cause(NOTHING._replace(**facts | {"unfinished": unfinished})) is None


def test_the_page_and_the_command_explain_every_cause() -> None:
    assert set(group_show.CAUSES) == set(LagCause)
    rows = re.findall(r"^\| .* \| `([\w-]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == ["why", *LagCause], "in the order in which they are considered"


@given(st.none() | st.integers(0, 1_000), *[st.none() | st.floats(0, 1_000)] * 2)
def test_the_time_to_drain_is_stated_only_if_it_is_known(
    unfinished: int | None, arriving: float | None, finished: float | None
) -> None:
    seconds = drain_seconds(unfinished, arriving, finished)
    row = {
        "unfinished": unfinished,
        "arriving_per_s": arriving,
        "finished_per_s": finished,
        "drain_s": seconds,
    }
    if unfinished == 0:
        assert seconds == 0.0
        assert drain_text(row) is None
    elif unfinished is None or arriving is None or finished is None:
        assert seconds is None
        assert drain_text(row) is None
    elif finished > arriving and math.isfinite(unfinished / (finished - arriving)):
        assert seconds is not None
        assert seconds * (finished - arriving) == pytest.approx(unfinished)
    else:
        assert seconds is None
        assert drain_text(row) == "never"


def queue(number: int) -> QueueRef:
    return QueueRef("T", 1, number)


def sample(at: float, stored: int, *finished: int) -> ProgressSample:
    return ProgressSample(at, stored, {queue(number): count for number, count in enumerate(finished)})


def test_rates_are_those_between_two_samples() -> None:
    assert find_rates([sample(10, 100, 40, 50)], sample(15, 110, 50, 65)) == (2.0, 5.0)
    assert find_rates([sample(10, 100, 40)], sample(15, 110, 50, 65)) == (2.0, None), (
        "another proxy finished messages of the other queue before"
    )
    assert find_rates([sample(10, 100, 40)], sample(15, 90, 30)) == (None, None), (
        "the topic was deleted and created again, or offsets were reset"
    )
    assert find_rates([sample(10, 100, 40, 40)], sample(15, 100, 30, 90)) == (0.0, None), (
        "one queue was reset"
    )
    assert find_rates([sample(10, 100)], sample(15, 110)) == (2.0, None)


PROGRESS = st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), min_size=1, max_size=2))


@given(st.lists(PROGRESS, min_size=1, max_size=4))
def test_rates_go_back_to_the_last_reset(rows: list[tuple[int, list[int]]]) -> None:
    samples = [sample(10.0 * number, stored, *finished) for number, (stored, finished) in enumerate(rows)]
    *before, now = samples
    rates = find_rates(before, now)

    def expected(is_step: Any, count: Any) -> float | None:
        start = len(samples) - 1
        while start and is_step(samples[start - 1], samples[start]):
            start -= 1
        seconds = now.at - samples[start].at
        return (count(now) - count(samples[start])) / seconds if seconds else None

    assert rates.arriving_per_s == expected(lambda a, b: a.stored <= b.stored, lambda a: a.stored)
    assert rates.finished_per_s == expected(
        lambda a, b: (
            a.finished.keys() == b.finished.keys()
            and all(a.finished[each] <= b.finished[each] for each in a.finished)
        ),
        lambda a: sum(a.finished.values()),
    )


def test_rates_are_not_known_without_a_sample_of_the_right_age() -> None:
    samples, name = ProgressSamples(), ("G", "T")
    nothing = ProgressRates(None, None)
    assert samples.read_rates(name, sample(10, 0, 0)) == nothing
    samples.record_sample(name, sample(10, 0, 0))
    assert samples.read_rates(name, sample(10.5, 10, 5)) == nothing
    assert samples.read_rates(name, sample(15, 10, 5)) == ProgressRates(2.0, 1.0)
    samples.record_sample(name, sample(15, 20, 5))
    assert samples.read_rates(name, sample(20, 40, 25)) == ProgressRates(4.0, 2.5), "over ten seconds"
    samples.record_sample(name, sample(20, 40, 25))
    assert samples.read_rates(name, sample(25, 40, 25)) == ProgressRates(2.0, 2.0), "the first is forgotten"
    assert samples.read_rates(name, sample(25, 40, 20)) == ProgressRates(2.0, None), "offsets were reset"
    assert samples.read_rates(name, sample(20 + AGE_MAX_S + 1, 40, 25)) == nothing
    samples.keep_only([("G", "U")])
    assert samples.read_rates(name, sample(25, 40, 25)) == nothing
