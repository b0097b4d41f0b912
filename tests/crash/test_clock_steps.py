"""A few seconds of stepping the wall clock of real servers under a delay load (R5).

The long run: `python -m tests.crash.clock_steps --seed S --seconds 300`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddmq_client import CancelOutcome, DelayStatus
from tests.crash.clock_steps import Load, SentDelay, Steps, run
from tests.crash.stepped_process import SteppedClock


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_never_early_nothing_lost_nothing_twice(tmp_path: Path, processes: bool) -> None:
    violations, load, steps = run(tmp_path, seed=3, seconds=8, processes=processes)
    assert violations == []
    assert steps.count >= 3
    assert len(load.sent) > 50


INF = float("inf")


def violations_of(sent: SentDelay, steps: Steps) -> list[str]:
    load = Load.__new__(Load)
    load._steps, load.sent = steps, {"1": sent}
    return load.find_violations()


def test_each_violation_is_noticed(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path / "clock")
    steps = Steps(clock, None)  # type: ignore[arg-type]
    now_s, now_ms = time.monotonic() + 2, clock.wall_ms() + 2_000
    cancelled = CancelOutcome(DelayStatus.CANCELLED)
    assert not violations_of(SentDelay([now_ms], now_s - 1, None, INF, [(now_s, now_ms)]), steps)
    assert not violations_of(SentDelay([now_ms + 500], now_s - 1, None, 0.9, [(now_s, now_ms)]), steps)
    assert "wanted 1" in violations_of(SentDelay([now_ms], now_s, None), steps)[0]
    assert (
        "wanted 1"
        in violations_of(SentDelay([now_ms], now_s - 1, None, INF, [(now_s, now_ms)] * 2), steps)[0]
    )
    assert (
        "wanted 0"
        in violations_of(SentDelay([now_ms], now_s - 1, cancelled, INF, [(now_s, now_ms)]), steps)[0]
    )
    assert (
        "had shown"
        in violations_of(SentDelay([now_ms + 500], now_s - 1, None, 1.1, [(now_s, now_ms)]), steps)[0]
    )
    assert (
        "had shown"
        in violations_of(SentDelay([now_ms + 500], now_s - 1, None, INF, [(now_s, now_ms)]), steps)[0]
    )
    assert (
        "stored at"
        in violations_of(SentDelay([now_ms], now_s - 1, None, INF, [(now_s, now_ms - 1)]), steps)[0]
    )


def test_the_highest_time_includes_times_before_a_step_back(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path / "clock")
    steps = Steps(clock, None)  # type: ignore[arg-type]
    began_s = time.monotonic()
    steps.step(500_000)
    due_ms = clock.wall_ms()
    steps.step(-500_000)
    assert steps.highest_ms(began_s, time.monotonic()) >= due_ms
    assert steps.highest_ms(time.monotonic(), time.monotonic() + 1) < due_ms
