"""The bounds of connections without a call, against a model that looks at all of them each time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ddmq_rpc import newcomers
from ddmq_rpc.newcomers import FIRST_CALL_S, SILENT_S, Newcomers

TOTAL, OWN = 6, 3
ADDRESSES = st.sampled_from("abc")


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "TOTAL_MAX", TOTAL)
    monkeypatch.setattr(newcomers, "ADDRESS_MAX", OWN)
    return


class Compared(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tested: Newcomers[int] = Newcomers()
        self.entries: dict[int, tuple[str, float, tuple[float, int]]] = {}
        self.now, self.steps = 0.0, 0

    def heard(self) -> tuple[float, int]:
        self.steps += 1
        return (self.now, self.steps)

    @rule(address=ADDRESSES)
    def join(self, address: str) -> None:
        own = self.longest_silent(address)
        displaced = None
        if len(self.of(address)) >= OWN and self.now - self.entries[own][2][0] >= SILENT_S:
            displaced = own
        elif len(self.entries) >= TOTAL:
            displaced = self.tested.join(connection := self.steps, address, self.now)
            most = max(len(self.of(other)) for other in "abc")
            assert displaced in [self.longest_silent(other) for other in "abc" if len(self.of(other)) == most]
            self.entries[connection] = (address, self.now, self.heard())
            self.close(displaced)
            return
        connection = self.steps
        assert self.tested.join(connection, address, self.now) == displaced
        self.entries[connection] = (address, self.now, self.heard())
        if displaced is not None:
            self.close(displaced)

    def of(self, address: str) -> list[int]:
        return [connection for connection, entry in self.entries.items() if entry[0] == address]

    def longest_silent(self, address: str) -> int:
        return min(self.of(address), key=lambda connection: self.entries[connection][2], default=-1)

    def close(self, connection: int | None) -> None:
        assert connection is not None
        self.tested.leave(connection)
        del self.entries[connection]

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def receive_bytes(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(sorted(self.entries)))
        address, joined, _ = self.entries[connection]
        self.entries[connection] = (address, joined, self.heard())
        self.tested.record_bytes(connection, self.now)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.close(data.draw(st.sampled_from(sorted(self.entries))))

    @rule(seconds=st.sampled_from([0.1, SILENT_S, FIRST_CALL_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        overdue = [key for key, entry in self.entries.items() if entry[1] <= self.now - FIRST_CALL_S]
        assert list(self.tested.list_overdue(self.now)) == overdue
        for connection in overdue:
            self.close(connection)

    @invariant()
    def the_number_is_bounded(self) -> None:
        assert len(self.tested) == len(self.entries) <= TOTAL


@pytest.mark.usefixtures("small_bounds")
def test_newcomers_are_those_of_the_model() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Compared, settings=settings(max_examples=60, stateful_step_count=40))


def test_unknown_connections_are_ignored() -> None:
    table: Newcomers[str] = Newcomers()
    table.leave("x")
    table.record_bytes("x", 1.0)
    assert len(table) == 0
