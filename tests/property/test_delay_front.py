"""The front of a range against a plain set: it removes what was to be removed, and knows the first key."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delay_service.store import writing
from delay_service.store.writing import Front
from tests.examples import examples

KEY_NUMBERS = st.integers(0, 99)


class FrontMachine(RuleBasedStateMachine):
    """`live`: what the database would hold if it did as the front says."""

    def __init__(self) -> None:
        super().__init__()
        self.front = Front(b"")
        self.live: set[bytes] = set()
        self.scanned_to = b""
        self.left: list[bytes] = []
        self.patches = [patch.object(writing, name, value) for name, value in SMALL.items()]
        for each in self.patches:
            each.start()

    @initialize(scanned_count=st.integers(1, 25))
    def begin_with_some(self, scanned_count: int) -> None:
        self.add(0, 60, 1)
        self.scan_on(scanned_count)

    @rule(begin=KEY_NUMBERS, count=st.integers(1, 30), step=st.integers(1, 3))
    def add(self, begin: int, count: int, step: int) -> None:
        keys = [b"k%03d" % number for number in range(begin, begin + count * step, step)]
        self.front.add(keys)
        self.live.update(keys)

    @precondition(lambda self: self.left)
    @rule(step=st.integers(1, 3))
    def add_twice(self, step: int) -> None:
        """Keys that left in the last removal."""
        self.front.add(self.left[::step])
        self.live.update(self.left[::step])

    @rule(limit=st.integers(1, 30))
    def scan_on(self, limit: int) -> None:
        """As the engine does: from behind the last one seen."""
        begin = max(self.scanned_to, self.front.start)
        keys = [key for key in sorted(self.live) if key >= begin][:limit]
        self.front.add_scanned(begin, keys)
        self.scanned_to = keys[-1] + b"\0" if keys else b""

    @rule(limit=st.integers(1, 30), number=KEY_NUMBERS)
    def scan_somewhere(self, limit: int, number: int) -> None:
        begin = max(b"k%03d" % number, self.front.start)
        self.front.add_scanned(begin, [key for key in sorted(self.live) if key >= begin][:limit])

    @precondition(lambda self: self.live)
    @rule(count=st.integers(1, 40))
    def remove_first(self, count: int) -> None:
        self.removed(sorted(self.live)[:count])

    @precondition(lambda self: self.live)
    @rule(begin=st.integers(0, 3), count=st.integers(1, 10), step=st.integers(1, 4))
    def remove_some(self, begin: int, count: int, step: int) -> None:
        self.removed(sorted(self.live)[begin : begin + count * step : step])

    def removed(self, keys: list[bytes]) -> None:
        removal = self.front.remove(keys)
        inside = {key for key in self.live if removal.is_range and removal.start <= key < removal.end}
        assert inside | set(removal.keys) == set(keys)
        self.live.difference_update(keys)
        self.left = keys

    @invariant()
    def bounded_and_right(self) -> None:
        assert all(key >= self.front.start for key in self.live)
        assert self.front.first_key in (None, min(self.live, default=None))
        assert self.front.key_count <= writing.CACHED_KEYS_MAX

    def teardown(self) -> None:
        for each in self.patches:
            each.stop()


SMALL = {"RANGE_MIN": 2, "FEW": 3, "CACHED_KEYS_MAX": 25}
TestFront = FrontMachine.TestCase
TestFront.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
