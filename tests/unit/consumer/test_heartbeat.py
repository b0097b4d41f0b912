"""A proxy ticks while somebody waits; else it rests, until a timer is due or somebody comes."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from ddmq_common.clock import ManualClock
from proxy_consumer import heartbeat
from proxy_consumer.core.timer_queue import NEVER, TimerQueue
from proxy_consumer.heartbeat import QUIET, REST_S, Heartbeat

TICK_S = 0.005


class HandTimer:
    """A hub timer that rings when the clock is moved past its time."""

    def __init__(self) -> None:
        self.period: float | None = None
        self.repeats = False
        self.ring: Callable[[], object] = lambda: None

    def once(self, seconds: float, ring: Callable[[], object]) -> None:
        self.period, self.repeats, self.ring = seconds, False, ring

    def every(self, seconds: float, ring: Callable[[], object]) -> None:
        self.period, self.repeats, self.ring = seconds, True, ring

    def stop(self) -> None:
        self.period = None


class Task:
    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.wake_at = NEVER
        self.ran: list[float] = []
        self.then = then

    def due(self, now: float) -> None:
        self.ran.append(now)
        self.then()


class Beating:
    def __init__(self) -> None:
        self.clock, self.timers, self.timer = ManualClock(), TimerQueue(), HandTimer()
        with patch.object(heartbeat, "HubTimer", lambda ref: self.timer):
            self.heart = Heartbeat(TICK_S, self.clock, self.timers)
        self.ticks = 0
        self.waiting = False
        self.heart.start(self.tick)

    def tick(self) -> bool:
        self.ticks += 1
        self.timers.run_due(self.clock.monotonic())
        return self.waiting

    def step(self) -> None:
        """To the moment at which the timer rings next."""
        period, timer = self.timer.period, self.timer
        assert period is not None
        self.clock.advance(period)
        if not timer.repeats:
            timer.period = None
        timer.ring()

    def run(self, seconds: float) -> int:
        """How often it ticked in so long."""
        before, end = self.ticks, self.clock.monotonic() + seconds
        while self.timer.period is not None and self.clock.monotonic() + self.timer.period <= end:
            self.step()
        return self.ticks - before


@pytest.fixture
def beating() -> Beating:
    return Beating()


def test_it_ticks_while_somebody_waits(beating: Beating) -> None:
    beating.waiting = True
    assert beating.run(1.0) == pytest.approx(1.0 / TICK_S, abs=1)


def test_it_rests_while_nobody_does(beating: Beating) -> None:
    assert beating.run(10.0) <= QUIET + 10.0 / REST_S


def test_who_comes_ends_a_rest_at_once(beating: Beating) -> None:
    beating.run(1.0)
    beating.waiting = True
    beating.heart.wake_up()
    assert beating.timer.period == TICK_S
    assert beating.run(1.0) == pytest.approx(1.0 / TICK_S, abs=1)


@pytest.mark.parametrize("resting", [True, False])
def test_a_timer_is_at_most_a_tick_late(beating: Beating, resting: bool) -> None:
    """Also one that was set while it rests, and one that stands before the end of a rest."""
    tasks = [Task(), Task()]
    beating.run(1.0 if resting else 0.0)
    now = beating.clock.monotonic()
    beating.timers.set(tasks[0], now + 0.03)
    beating.timers.set(tasks[1], now + 1.13)
    beating.run(2.0)
    for task, due in zip(tasks, (0.03, 1.13), strict=True):
        [ran] = task.ran
        assert -1e-9 <= ran - now - due <= TICK_S + 1e-9


def test_a_tick_that_fails_is_not_the_last(beating: Beating) -> None:
    beating.run(1.0)

    def fail() -> None:
        raise RuntimeError("of one task")

    beating.timers.set(Task(fail), beating.clock.monotonic() + 0.2)
    with pytest.raises(RuntimeError, match="of one task"):
        beating.run(1.0)
    assert beating.run(1.0) > 0


@pytest.mark.parametrize("resting", [True, False])
def test_it_stops_for_good(beating: Beating, resting: bool) -> None:
    beating.run(1.0 if resting else 0.01)
    beating.heart.stop()
    beating.heart.wake_up()
    beating.timers.set(Task(), beating.clock.monotonic())
    assert beating.timer.period is None


def test_a_tick_may_stop_it(beating: Beating) -> None:
    beating.run(1.0)
    beating.waiting = True
    beating.timers.set(Task(beating.heart.stop), beating.clock.monotonic() + 0.2)
    beating.run(1.0)
    assert beating.timer.period is None
