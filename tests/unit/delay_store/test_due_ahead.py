"""What is held of the due order is what lives there, whatever comes and goes, against a dict."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from delay_service.store import due_ahead
from delay_service.store.due_ahead import DueAhead
from tests.examples import examples

NUMBERS = st.integers(0, 40)
SIZES = st.integers(0, 9)


def key_of(number: int) -> bytes:
    return bytes((number,))


class DueAheadMachine(RuleBasedStateMachine):
    """The model: everything that lives, held or not."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[bytes, bytes] = {}
        self.ahead = DueAhead()
        self.small = patch.multiple(due_ahead, PAIRS_MAX=6, BYTES_MAX=30)
        self.small.start()

    def between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return sorted(pair for pair in self.alive.items() if start <= pair[0] < end)

    @rule(numbers=st.sets(NUMBERS, max_size=12), size=SIZES)
    def come(self, numbers: set[int], size: int) -> None:
        fresh = [(key_of(number), bytes(size)) for number in numbers if key_of(number) not in self.alive]
        self.alive |= dict(fresh)
        self.ahead.add(fresh)

    @rule(numbers=st.sets(NUMBERS, max_size=5))
    def go(self, numbers: set[int]) -> None:
        deleted = [key_of(number) for number in numbers if key_of(number) in self.alive]
        for key in deleted:
            del self.alive[key]
        self.ahead.remove(deleted)

    @rule(start=NUMBERS, length=st.integers(1, 20))
    def scan(self, start: int, length: int) -> None:
        begin, end = key_of(start), key_of(start + length)
        self.ahead.hold_range(begin, end, self.between(begin, end))

    @rule(start=NUMBERS, length=st.integers(0, 20), limit=st.integers(1, 8))
    def take(self, start: int, length: int, limit: int) -> None:
        begin, end = key_of(start), key_of(start + length)
        if self.ahead.covers_key(begin):
            expected = self.between(begin, min(end, self.ahead.end))
            assert self.ahead.take_range(begin, end, limit) == expected[:limit]

    @invariant()
    def true(self) -> None:
        covered_count = 0
        for number in range(62):
            key = key_of(number)
            if self.ahead.covers_key(key):
                behind = self.between(key, self.ahead.end)
                assert self.ahead.first_key(key) == (behind[0][0] if behind else None)
                covered_count += key in self.alive
        assert covered_count <= 6

    def teardown(self) -> None:
        self.small.stop()


TestDueAhead = DueAheadMachine.TestCase
TestDueAhead.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
