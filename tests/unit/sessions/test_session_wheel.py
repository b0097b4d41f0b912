"""Deadlines in slots: never early, one slot late at most, nothing twice."""

import random

from backend.file_log.sessions.link import Wheel


def test_never_early_and_at_most_one_slot_late() -> None:
    chance = random.Random(7)
    wheel: Wheel[int] = Wheel(0.02)
    deadlines = {thing: chance.uniform(100, 103) for thing in range(500)}
    for thing, deadline in deadlines.items():
        wheel.add(thing, deadline)
    handed: dict[int, float] = {}
    now = 99.9
    while now < 103.1:
        for thing in wheel.take_due(now):
            assert thing not in handed
            handed[thing] = now
        now += 0.005
    assert len(handed) == 500
    assert all(0 <= handed[thing] - deadlines[thing] <= 0.0251 for thing in handed)
    assert len(wheel) == 0


def test_dropped_things_are_not_handed_out() -> None:
    wheel: Wheel[str] = Wheel(0.02)
    wheel.add("a", 1.0)
    wheel.add("b", 1.0)
    wheel.remove("a")
    wheel.remove("never there")
    assert wheel.take_due(2.0) == ["b"]
    wheel.remove("b")
    assert wheel.take_due(3.0) == []


def test_adding_a_session_twice_moves_it() -> None:
    wheel: Wheel[str] = Wheel(0.02)
    wheel.add("a", 1.0)
    wheel.add("a", 5.0)
    assert wheel.take_due(2.0) == []
    assert wheel.take_due(6.0) == ["a"]


def test_a_deadline_without_end_is_one_too() -> None:
    wheel: Wheel[str] = Wheel(0.02)
    wheel.add("a", float("inf"))
    assert wheel.take_due(1e9) == []
    assert len(wheel) == 1
    wheel.clear()
    assert len(wheel) == 0
