"""Any mixture of batches and questions, both stores against a dict; RocksDB is also closed and opened."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delay_service.store import due_ahead, writing
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.opening import open_store
from delay_service.store.port import DelayStore, DueKey, IdKind, IdState, Pending, Scan, StoreChanges
from tests.contract.delay_store_kit import MANY, SMALL, message, uuid_of
from tests.examples import examples

TOPICS = ("a", "ab", "b")
DUES = st.integers(0, 12)
LIMITS = st.integers(1, 60)


class StoreMachine(RuleBasedStateMachine):
    """The model: where each message is, and what each id means."""

    store: DelayStore

    def __init__(self) -> None:
        super().__init__()
        self.due: dict[DueKey, Pending] = {}
        self.aside: dict[DueKey, Pending] = {}
        self.ids: dict[bytes, IdState] = {}
        self.offset = 0
        self.fired_to: DueKey | None = None

    @initialize()
    def start(self) -> None:
        self.store = self.opened()
        self.add(1, 30, 3, 2)

    def opened(self) -> DelayStore:
        return MemoryDelayStore()

    # --- batches

    @rule(first=DUES, count=st.integers(1, 30), spread=st.integers(1, 5), topics=st.integers(1, 3))
    def add(self, first: int, count: int, spread: int, topics: int) -> None:
        fresh = []
        for number in range(count):
            self.offset += 1
            fresh.append(message(first + number % spread, self.offset, TOPICS[number % topics]))
        self.apply(StoreChanges(added=fresh))

    @precondition(lambda self: self.due)
    @rule(until=DUES, limit=LIMITS, skip=st.integers(0, 3), reopen=st.booleans(), defer=st.booleans())
    def fire(self, until: int, limit: int, skip: int, reopen: bool, defer: bool) -> None:
        """What is due goes, or every n-th stays; some come again."""
        scanned = self.store.due(until, limit, MANY)
        assert scanned == [self.due[key] for key in sorted(self.due) if key.due_ms <= until][:limit]
        fired = [one for index, one in enumerate(scanned) if not skip or index % (skip + 1)]
        if defer:
            self.apply(StoreChanges(deferred=fired))
            return
        loops = [one._replace(due_ms=one.due_ms + 3, occurrence=one.occurrence + 1) for one in fired[:3]]
        self.apply(StoreChanges(removed=fired, added=loops if reopen else []))

    @rule(until=DUES, limit=LIMITS, back=st.booleans(), go=st.booleans())
    def fire_on(self, until: int, limit: int, back: bool, go: bool) -> None:
        """What is due behind what fired last goes, as the service reads it; or it is only looked at."""
        after = None if back else self.fired_to
        behind = [key for key in sorted(self.due) if after is None or key > after]
        scanned = self.store.due(until, limit, MANY, after)
        assert scanned == [self.due[key] for key in behind if key.due_ms <= until][:limit]
        if scanned and go:
            self.fired_to = scanned[-1].key
            self.apply(StoreChanges(removed=scanned))
        following = [key for key in sorted(self.due) if self.fired_to is None or key > self.fired_to]
        assert self.store.next_due(self.fired_to) == (following[0] if following else None)

    @precondition(lambda self: self.due)
    @rule(data=st.data(), readded=st.integers(0, 3))
    def cancel_and_add(self, data: st.DataObject, readded: int) -> None:
        cancelled = data.draw(
            st.lists(st.sampled_from(sorted(self.due)), unique=True, min_size=1, max_size=5)
        )
        same = [self.due[key]._replace(occurrence=9) for key in cancelled[:readded]]
        self.apply(StoreChanges(removed=[self.due[key] for key in cancelled], added=same))

    @precondition(lambda self: self.aside)
    @rule(topic=st.sampled_from(TOPICS), back=st.integers(0, 40), removed=st.integers(0, 40))
    def undefer(self, topic: str, back: int, removed: int) -> None:
        waiting = [self.aside[key] for key in sorted(self.aside) if self.aside[key].topic == topic]
        assert self.store.read_deferred(topic, 50) == waiting[:50]
        self.apply(
            StoreChanges(
                undeferred=waiting[:back], removed_deferred=waiting[back : min(back + removed, len(waiting))]
            )
        )

    @rule(states=st.dictionaries(st.integers(0, 9), st.integers(0, 20), max_size=10))
    def know(self, states: dict[int, int]) -> None:
        self.apply(
            StoreChanges(
                ids={
                    uuid_of(number): IdState(IdKind.FIRED, number, number, moment) if moment != 1 else None
                    for number, moment in states.items()
                }
            )
        )

    @rule(now=st.integers(0, 20), limit=st.integers(1, 9), really=st.booleans())
    def forget(self, now: int, limit: int, really: bool) -> None:
        passed = sorted(
            (state.forget_ms, uuid) for uuid, state in self.ids.items() if 0 < state.forget_ms <= now
        )
        forgettable = self.store.forgettable(now, limit)
        assert forgettable == [uuid for _, uuid in passed][: len(forgettable)]
        assert len(forgettable) <= limit
        assert forgettable or not passed or len(self.ids) > 2 * limit
        if really:
            self.apply(StoreChanges(ids=dict.fromkeys(forgettable)))

    def apply(self, changes: StoreChanges) -> None:
        self.store.write(changes)
        for one in (*changes.removed, *changes.deferred):
            del self.due[one.key]
        for one in (*changes.undeferred, *changes.removed_deferred):
            del self.aside[one.key]
        self.due |= {one.key: one for one in (*changes.undeferred, *changes.added)}
        self.aside |= {one.key: one for one in changes.deferred}
        for uuid, state in changes.ids.items():
            if state is None:
                self.ids.pop(uuid, None)
            else:
                self.ids[uuid] = state

    # --- questions

    @rule(
        start=DUES,
        length=DUES,
        limit=st.integers(1, 9),
        topic=st.sampled_from([None, *TOPICS]),
        data=st.data(),
    )
    def scan(self, start: int, length: int, limit: int, topic: str | None, data: st.DataObject) -> None:
        everything = self.due | self.aside
        after = data.draw(st.none() | st.sampled_from(sorted(everything))) if everything else None
        expected = [
            everything[key]
            for key in sorted(everything)
            if start <= key.due_ms < start + length
            and topic in (None, everything[key].topic)
            and (after is None or key > after)
        ]
        assert self.store.scan(Scan(topic, start, start + length, limit, after)) == expected[:limit]

    @precondition(lambda self: self.due)
    @rule(data=st.data(), until=DUES, limit=st.integers(1, 30))
    def read_from(self, data: st.DataObject, until: int, limit: int) -> None:
        after = data.draw(st.sampled_from(sorted(self.due)))
        behind = [key for key in sorted(self.due) if key > after]
        assert self.store.next_due(after) == (behind[0] if behind else None)
        expected = [self.due[key] for key in behind if key.due_ms <= until]
        assert self.store.due(until, limit, MANY, after) == expected[:limit]

    @rule(numbers=st.lists(st.integers(0, 12), max_size=5))
    def read_ids(self, numbers: list[int]) -> None:
        uuids = [uuid_of(number) for number in numbers]
        assert self.store.ids(uuids) == [self.ids.get(uuid) for uuid in uuids]

    @rule(key=st.tuples(DUES, st.integers(0, 20)))
    def get(self, key: tuple[int, int]) -> None:
        due_key = DueKey(*key)
        assert self.store.get(due_key) == (self.due.get(due_key) or self.aside.get(due_key))

    @invariant()
    def counted(self) -> None:
        if not hasattr(self, "store"):
            return
        counts: dict[str, int] = {}
        for one in (*self.due.values(), *self.aside.values()):
            counts[one.topic] = counts.get(one.topic, 0) + 1
        assert dict(self.store.counts()) == counts
        assert self.store.deferred_topics() == sorted({one.topic for one in self.aside.values()})
        assert self.store.next_due() == min(self.due, default=None)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class RocksMachine(StoreMachine):
    """Opened under one epoch after the other; tidied and flushed in between."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="delay-store-"))
        self.small = ExitStack()
        self.small.enter_context(patch.object(writing, "RANGE_MIN", 3))
        self.small.enter_context(patch.object(due_ahead, "PAIRS_MAX", 5))
        self.epoch = 0

    def opened(self) -> DelayStore:
        self.epoch += 1
        return open_store(self.folder, 1, self.epoch, SMALL)

    @rule(tidy=st.booleans())
    def reopen(self, tidy: bool) -> None:
        if tidy:
            self.store.tidy()
        self.store.close()
        self.store = self.opened()

    @rule()
    def clone(self) -> None:
        """The next owner comes while the last one still holds it."""
        last, self.store = self.store, self.opened()
        last.write(StoreChanges(added=[message(0, 10_000 + self.epoch)]))  # into its own copy
        last.close()

    def teardown(self) -> None:
        super().teardown()
        self.small.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestMemory = StoreMachine.TestCase
TestMemory.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestRocks = pytest.mark.slow(RocksMachine.TestCase)  # it writes to the disk
TestRocks.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
