"""The history of series equals a naive list of all samples, is bounded, and has gaps where no sample was."""

from __future__ import annotations

import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddmq.server.live.core import rings
from ddmq.server.live.core.rings import COARSE_S, COARSE_SLOTS, FINE_SLOTS, History, HistoryRange, plan_range

START_S = 1_700_000_000


class Sample(NamedTuple):
    """A sample `after_s` seconds after the one before. `value` None: the series had none."""

    after_s: int
    value: float | None


SAMPLES = st.lists(
    st.builds(
        Sample,
        st.one_of(st.just(1), st.integers(-3, 30), st.integers(500, 700), st.integers(80_000, 90_000)),
        st.one_of(st.none(), st.integers(0, 1 << 20).map(float)),
    ),
    max_size=60,
)


class NaiveHistory:
    """All samples, in a list."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float | None]] = []

    def record(self, at_s: int, value: float | None) -> None:
        if self.samples and at_s < self.samples[-1][0]:
            self.samples = []
        if not self.samples or at_s > self.samples[-1][0]:
            self.samples.append((at_s, value))

    def means(self, unit_s: int, slots: int) -> dict[int, float]:
        """The mean of each unit of time that the ring still has."""
        if not self.samples:
            return {}
        newest = self.samples[-1][0] // unit_s
        units: dict[int, list[float]] = {}
        for at_s, value in self.samples:
            if value is not None and at_s // unit_s > newest - slots:
                units.setdefault(at_s // unit_s, []).append(value)
        return {unit: sum(values) / len(values) for unit, values in units.items()}

    def read(self, period: HistoryRange) -> list[float | None]:
        unit_s, slots = (COARSE_S, COARSE_SLOTS) if period.is_coarse else (1, FINE_SLOTS)
        means = self.means(unit_s, slots)
        steps: list[float | None] = []
        for start_s in range(period.start_s, self.samples[-1][0] + 1 if self.samples else 0, period.step_s):
            values = [
                mean for unit, mean in means.items() if start_s <= unit * unit_s < start_s + period.step_s
            ]
            steps.append(sum(values) / len(values) if values else None)
        return steps


@given(
    SAMPLES,
    st.integers(0, 90_000),
    st.one_of(st.sampled_from([1, 2, 7, 10, 60, 600, 3_600]), st.integers(1, 200)),
)
def test_a_history_equals_the_list_of_its_samples(samples: list[Sample], before_s: int, step_s: int) -> None:
    history, naive, at_s = History[str](), NaiveHistory(), START_S
    history.add("lag")
    for sample in samples:
        at_s += sample.after_s
        history.record_sample(at_s, {"lag": sample.value})
        naive.record(at_s, sample.value)
    period = plan_range(at_s - before_s, step_s, at_s)
    if before_s / period.step_s > 1_000:
        period = period._replace(step_s=period.step_s * 100)
    expected = [each if each is None else pytest.approx(each, rel=1e-6) for each in naive.read(period)]
    assert history.read("lag", period) == expected
    if naive.samples:
        assert history.read_latest("lag") == naive.samples[-1][1]


@example(69_951, None)
@given(st.one_of(st.none(), st.integers(-100, 200_000)), st.one_of(st.none(), st.integers(1, 4_000)))
def test_a_range_covers_what_was_requested_with_few_values(before_s: int | None, step_s: int | None) -> None:
    from_s = None if before_s is None else START_S - before_s
    period = plan_range(from_s, step_s, START_S)
    assert period.start_s % period.step_s == 0
    assert period.start_s <= START_S
    if before_s is not None and 0 <= before_s < COARSE_S * COARSE_SLOTS:
        assert period.start_s <= START_S - before_s < period.start_s + period.step_s
    assert (START_S - period.start_s) / period.step_s <= (rings.VALUES_MAX if step_s is None else 8_640)


def test_the_default_is_ten_minutes_in_seconds() -> None:
    assert plan_range(None, None, 1_000_000) == HistoryRange(1_000_000 - FINE_SLOTS + 1, 1)


def test_a_day_is_shown_in_steps_that_the_coarse_ring_has() -> None:
    period = plan_range(0, None, START_S)
    assert period.step_s == 90
    assert 0 <= START_S - COARSE_S * COARSE_SLOTS - period.start_s < 90


def test_a_removed_series_returns_empty() -> None:
    history = History[str]()
    history.add("a")
    history.record_sample(START_S, {"a": 1.0})
    history.remove("a")
    assert "a" not in history
    history.add("a")
    assert history.read("a", HistoryRange(START_S, 1)) == [None]


def test_400_series_take_at_most_16_megabytes() -> None:
    tracemalloc.start()
    history = History[int]()
    for number in range(400):
        history.add(number)
    history.record_sample(START_S, dict.fromkeys(range(400), 1.0))
    used_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used_bytes < 16_000_000
