"""The front of a range against a plain set: it removes what was to be removed, and knows the first key."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from delay_service.store import front
from delay_service.store.front import Front

KEYS = st.binary(min_size=1, max_size=2).filter(lambda key: b"a" <= key < b"f")


class FrontMachine(RuleBasedStateMachine):
    """`live`: what the database would hold if it did as the front says."""

    def __init__(self) -> None:
        super().__init__()
        self.front = Front(b"")
        self.live: set[bytes] = set()
        self.patches = [patch.object(front, name, value) for name, value in SMALL.items()]
        for each in self.patches:
            each.start()

    @rule(keys=st.lists(KEYS, unique=True, max_size=30))
    def add(self, keys: list[bytes]) -> None:
        self.front.add(keys)
        self.live.update(keys)

    @rule(limit=st.integers(0, 30), behind=st.none() | KEYS)
    def scan(self, limit: int, behind: bytes | None) -> None:
        begin = self.front.start if behind is None else max(behind, self.front.start)
        self.front.found(begin, [key for key in sorted(self.live) if key >= begin][:limit])

    @rule(first=st.integers(0, 30))
    def remove_first(self, first: int) -> None:
        self.removed(sorted(self.live)[:first])

    @rule(data=st.data())
    def remove_some(self, data: st.DataObject) -> None:
        if self.live:
            self.removed(sorted(data.draw(st.sets(st.sampled_from(sorted(self.live)), max_size=9))))

    def removed(self, keys: list[bytes]) -> None:
        removal = self.front.remove(keys)
        inside = {key for key in self.live if removal.is_range and removal.start <= key < removal.end}
        assert inside | set(removal.keys) == set(keys)
        self.live.difference_update(keys)

    @rule()
    def forget(self) -> None:
        self.front.forget()

    @invariant()
    def bounded_and_right(self) -> None:
        assert all(key >= self.front.start for key in self.live)
        assert self.front.first in (None, min(self.live, default=None))

    def teardown(self) -> None:
        for each in self.patches:
            each.stop()


SMALL = {"RANGE_MIN": 2, "FEW": 3, "KNOWN_MAX": 25}
TestFront = FrontMachine.TestCase
TestFront.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
