"""Who ends whom, and when: watch.py's tables, told as stories of the processes a, b, c and d."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.kafka.coordination.watch import SLOT_S, SilenceDetector
from tests.examples import examples

SESSION_S = 3.0
EVERYBODY = ["a", "b", "c", "d"]


class Watching:
    """One process's view. Its beats come back at once, unless `stuck`."""

    def __init__(self, own: str = "a", processes: list[str] = EVERYBODY) -> None:
        self.own = own
        self.processes = processes
        self.silence = SilenceDetector(SESSION_S)
        self.sent_at = self.returned_at = 0.0
        self.stuck = False
        for process in processes:
            self.silence.on_event(process, 0.0)

    def send_heartbeat(self, now: float) -> None:
        self.sent_at = now
        if not self.stuck:
            self.returned_at = now
            self.silence.on_event(self.own, now)

    def at(self, now: float, *active: str) -> list[str]:
        """Who is ended at `now`; `heard`: of whom something was followed just before. A beat that is asked
        for is sent, and looked at once more."""
        for process in active:
            self.silence.on_event(process, now)
        to_end: list[str] = []
        for _ in range(2):
            silent = self.silence.check(self.own, self.processes, now, self.sent_at, self.returned_at)
            to_end += [process for process, _ in silent.to_end]
            if silent.needs_heartbeat:
                self.send_heartbeat(now)
        return to_end


@pytest.fixture
def watching() -> Watching:
    return Watching()


def test_a_process_active_within_the_session_is_not_ended(watching: Watching) -> None:
    assert watching.at(2.0, "b", "c", "d") == []
    assert watching.at(5.0) == []


def test_the_oldest_that_is_not_silent_ends_who_is() -> None:
    assert Watching("a").at(3.1, "c", "d") == ["b"]
    assert Watching("b").at(3.1, "b", "c", "d") == ["a"], "a is silent: b is the oldest of the others"


def test_each_following_process_has_a_slot_if_those_before_fail() -> None:
    for position, own in enumerate(["b", "c", "d"]):
        watching = Watching(own, ["x", *EVERYBODY[1:]])
        slot = SESSION_S + position * SLOT_S
        assert watching.at(slot - 0.1, *EVERYBODY[1:]) == [], own
        assert watching.at(slot + 0.1, *EVERYBODY[1:]) == ["x"], own


def test_a_process_without_membership_comes_last() -> None:
    proxy = Watching("proxy", ["a", "b"])
    slot = SESSION_S + 2 * SLOT_S
    assert proxy.at(slot - 0.1, "a") == []
    assert proxy.at(slot + 0.1, "a") == ["b"], "behind a, and behind b, should it be heard again"
    alone = Watching("proxy", ["a"])
    assert alone.at(SESSION_S + SLOT_S + 0.1) == ["a"]


def test_no_process_is_ended_while_the_log_is_stalled(watching: Watching) -> None:
    watching.stuck = True
    assert watching.at(3.1) == []
    assert watching.at(60.0) == [], "its own beats do not come back either"
    watching.stuck = False
    watching.send_heartbeat(61.0)
    assert watching.at(61.0, "b", "c") == ["d"], "what they had written meanwhile came before that beat"


def test_an_older_heartbeat_that_came_back_proves_nothing(watching: Watching) -> None:
    watching.send_heartbeat(2.9)
    watching.stuck = True
    assert watching.at(3.1, "c", "d") == [], "b may have written at 3.0"
    watching.stuck = False
    watching.send_heartbeat(3.2)
    assert watching.at(3.3) == ["b"]


def test_a_heartbeat_is_requested_once(watching: Watching) -> None:
    for process in "acd":
        watching.silence.on_event(process, 3.0)
    assert watching.silence.check("a", EVERYBODY, 3.1, 2.9, 2.9).needs_heartbeat
    assert not watching.silence.check("a", EVERYBODY, 3.2, 3.1, 2.9).needs_heartbeat, "it is under way"
    assert not watching.silence.check("a", EVERYBODY, 3.2, 3.1, 3.1).needs_heartbeat, "it has come back"


def test_a_process_is_ended_once_and_retried_after_a_failure(watching: Watching) -> None:
    assert watching.at(3.1, "c", "d") == ["b"]
    assert watching.at(4.0, "c", "d") == []
    watching.silence.on_end_failed("b")
    assert watching.at(4.1, "c", "d") == ["b"]
    watching.silence.on_died("b")
    watching.processes = ["a", "c", "d"]
    assert watching.at(4.2, "c", "d") == []


def test_a_process_that_may_have_been_stopped_forgets_all_times(watching: Watching) -> None:
    watching.silence.clear()
    assert watching.at(60.0) == []
    assert watching.at(62.9) == []
    assert watching.at(63.1) == ["b", "c", "d"]


def test_who_comes_new_is_counted_from_then_on() -> None:
    watching = Watching("a", ["a"])
    assert watching.at(10.0) == []
    watching.processes = ["a", "e"]
    assert watching.at(12.9) == []
    assert watching.at(15.0) == []
    assert watching.at(16.0) == ["e"]


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.sets(st.sampled_from("bcd")), st.booleans()), max_size=60))
def test_no_active_process_is_ended_and_none_before_a_heartbeat_came_back(
    story: list[tuple[float, set[str], bool]],
) -> None:
    watching, now = Watching(), 0.0
    last = dict.fromkeys("bcd", 0.0)
    for step, active, stuck in story:
        now += step
        watching.stuck = stuck
        watching.send_heartbeat(now)
        last |= dict.fromkeys(active, now)
        for process in watching.at(now, *active):
            assert now - last[process] > SESSION_S
            assert watching.returned_at >= last[process] + SESSION_S
