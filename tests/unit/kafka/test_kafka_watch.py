"""MemberWatch over a real table, without a broker: who declares a silent process dead, and when."""

from __future__ import annotations

from typing import Any

import pytest

from backend.kafka.clients.transactions import LANES_MAX
from backend.kafka.coordination import watch
from backend.kafka.coordination.events import Died, Event, HeartbeatSent, Joined, Retired
from backend.kafka.coordination.table import TableState
from backend.kafka.coordination.watch import SLOT_S, MemberWatch
from backend.kafka.options import KafkaOptions
from backend.port import Sharing
from tests.support.waits import until

SESSION_S = KafkaOptions("h:1").session_ms / 1000


class WatchRig:
    """What the watch of process `name` sees and does: also its memberships and its clock."""

    def __init__(self, name: str, *members: str) -> None:
        self.name, self.table, self.now = name, TableState(1), 0.0
        self.heartbeat_times = 0.0, 0.0  # each comes back at once
        self.written: list[Event] = []
        for process in members:
            joined = Joined(process, 1, "g", "orders", Sharing.AVERAGELY, None, "", "", 1, 2)
            self.table.apply(joined, 0)
        me: Any = self
        self.watch = MemberWatch(KafkaOptions("h:1"), me, lambda done, *args: done(*args), lambda: self.now)

    def tick(self, now: float) -> bool:
        return True

    def send_heartbeat(self, now: float) -> None:
        self.heartbeat_times = now, now

    def write_event(self, event: Event) -> None:
        self.written.append(event)

    def after(self, seconds: float, *active: str) -> None:
        """So long these alone were heard of, up to the end."""
        self.now += seconds
        for process in active:
            self.watch.on_event(HeartbeatSent(process, 1))
        for _ in range(2):  # where it asks whether the log goes on, it hears that it does
            self.watch.tick()


@pytest.fixture(autouse=True)
def _fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "fence_names", lambda client, names: None)


def test_the_oldest_that_is_alive_acts_first() -> None:
    for name, wait in (("b", 0), ("c", SLOT_S)):
        rig = WatchRig(name, "a", "b", "c")
        rig.after(0)
        rig.after(SESSION_S + wait - 0.5, "b", "c")
        assert rig.written == []
        rig.after(0.6, "b", "c")
        until(lambda rig=rig, name=name: rig.written == [Died("a", name)], "declared dead")


def test_a_process_without_membership_acts_when_all_members_are_silent() -> None:
    rig = WatchRig("sender", "a", "b")
    rig.after(0)
    rig.after(SESSION_S + 0.5)
    assert rig.written == []
    rig.after(SLOT_S)
    until(lambda: {event.process for event in rig.written} == {"a", "b"}, "both are declared dead")


def test_a_process_without_membership_comes_after_all_members() -> None:
    rig = WatchRig("sender", "a", "b", "c")
    rig.after(0)
    rig.after(SESSION_S + 2 * SLOT_S, "b", "c")
    assert rig.written == []
    rig.after(SLOT_S, "b", "c")
    until(lambda: rig.written == [Died("a", "sender")], "declared dead by nobody else")


def test_processes_that_state_one_address_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    rig = WatchRig("a")
    for process in ("a", "b"):
        joined = Joined(process, 1, "g", "orders", Sharing.AVERAGELY, None, "127.0.0.1:9713", "", 1, 0)
        rig.table.apply(joined, 0)
    for _ in range(12):
        rig.after(1.0, "a", "b")
    assert "127.0.0.1:9713" in rig.watch.shared_addresses.health_warning
    assert len([line for line in caplog.messages if "also states the address" in line]) == 1


@pytest.mark.parametrize(
    ("lanes", "retired", "fenced"),
    [
        (3, [], ["ddmq.m.a", "ddmq.m.a.1", "ddmq.m.a.2"]),
        (3, [1], ["ddmq.m.a", "ddmq.m.a.2"]),
        (0, [], ["ddmq.m.a", *(f"ddmq.m.a.{lane}" for lane in range(1, LANES_MAX))]),
    ],
)
def test_all_ids_of_a_silent_process_are_fenced_before_its_death_is_written(
    monkeypatch: pytest.MonkeyPatch, lanes: int, retired: list[int], fenced: list[str]
) -> None:
    """0: an earlier version wrote the event. What it has retired need not end."""
    fenced_ids: list[str] = []
    rig = WatchRig("b")

    def fence(client: object, names: list[str]) -> str | None:
        assert rig.written == []
        fenced_ids.extend(names)
        return None if len(fenced_ids) > len(names) else "not yet"

    monkeypatch.setattr(watch, "fence_names", fence)
    joined, own = (
        Joined(process, 1, "g", "orders", Sharing.AVERAGELY, None, "", "", 1, 2, count)
        for process, count in (("a", lanes), ("b", 1))
    )
    for event in (joined, own, Retired("a", retired)):
        rig.table.apply(event, 0)
        rig.watch.on_event(event)
    rig.after(0)
    rig.after(SESSION_S + 0.5, "b")
    until(lambda: fenced_ids == [*fenced, "ddmq.once"], "all of them")
    assert rig.written == [], "where one cannot be taken it is not dead yet"
    until(lambda: (rig.after(0.1, "b"), rig.written)[1] == [Died("a", "b")], "it is tried again")
