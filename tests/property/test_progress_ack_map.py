"""The ack map against a plain set of offsets, step by step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from backend.progress.ack_map import OFFSET_END, PAGE_OFFSETS, AckMap
from backend.progress.codec import decode_progress, encode_progress
from backend.progress.group_progress import GroupProgress
from backend.records import QueueRef
from tests.examples import examples

REACH = 5 * PAGE_OFFSETS
# Near page edges and near each other, so that runs touch, fill pages and overlap.
EDGES = [page * PAGE_OFFSETS + near for page in range(5) for near in (-2, -1, 0, 1, 2)]
OFFSETS = st.one_of(st.integers(0, 40), st.sampled_from(EDGES[2:]), st.integers(0, REACH))
LENGTHS = st.one_of(
    st.integers(0, 5), st.sampled_from([PAGE_OFFSETS - 1, PAGE_OFFSETS, 2 * PAGE_OFFSETS + 3])
)


class AckMapMachine(RuleBasedStateMachine):
    """Every rule does the same to both; the invariants compare everything that can be asked."""

    @initialize(start=OFFSETS)
    def begin(self, start: int) -> None:
        self.acks = AckMap(start)
        self.done: set[int] = set()
        self.floor = start
        self.attempts: dict[int, int] = {}

    @rule(ranges=st.lists(st.tuples(OFFSETS, LENGTHS), min_size=1, max_size=3))
    def finish(self, ranges: list[tuple[int, int]]) -> None:
        pairs = [(start, start + length) for start, length in ranges]
        self.acks.finish(pairs)
        for start, end in pairs:
            self.done.update(range(start, end))
        self._settle()

    @rule(step=st.integers(2, 9), count=st.integers(1, 300))
    def finish_comb(self, step: int, count: int) -> None:
        base = self.floor + 1
        pairs = [(base + index * step, base + index * step + 1) for index in range(count)]
        self.acks.finish(pairs)
        self.done.update(start for start, _ in pairs)
        self._settle()

    @rule(length=st.integers(1, 200))
    def finish_at_committed(self, length: int) -> None:
        start = self.acks.committed
        self.acks.finish([(start, start + length)])
        self.done.update(range(start, start + length))
        self._settle()

    @rule(offset=OFFSETS, attempts=st.integers(1, 5))
    def attempt(self, offset: int, attempts: int) -> None:
        self.acks.record_attempts(offset, attempts)
        if offset >= self.floor and offset not in self.done:
            self.attempts[offset] = max(attempts, self.attempts.get(offset, 0))

    @rule(offset=OFFSETS)
    def reset(self, offset: int) -> None:
        self.acks.reset(offset)
        self.floor, self.done, self.attempts = offset, set(), {}

    @rule()
    def store_and_load(self) -> None:
        progress = GroupProgress()
        progress.acks, progress.started = self.acks, True
        queue = QueueRef("orders", 3, 1)
        data = encode_progress("billing", queue, progress)
        group, loaded_queue, loaded = decode_progress(data)
        assert (group, loaded_queue) == ("billing", queue)
        assert encode_progress(group, loaded_queue, loaded) == data
        self.acks = loaded.acks

    @rule(offset=OFFSETS, limit=st.integers(0, 6))
    def compare_unfinished(self, offset: int, limit: int) -> None:
        assert self.acks.unfinished_from(offset, limit) == self._gaps(max(offset, self.floor))[:limit]

    @rule(offset=OFFSETS)
    def compare_finished(self, offset: int) -> None:
        assert self.acks.is_finished(offset) == (offset < self.floor or offset in self.done)

    @rule(offset=OFFSETS)
    def compare_ranges_from(self, offset: int) -> None:
        floor = max(offset, self.floor)
        expected = [(max(start, floor), end) for start, end in self._ranges() if end > floor]
        assert list(self.acks.finished(offset)) == expected

    @invariant()
    def same(self) -> None:
        assert self.acks.committed == self.floor
        assert list(self.acks.finished()) == self._ranges()
        assert self.acks.count_above() == len(self.done)
        assert dict(self.acks.attempts) == self.attempts
        assert self.acks.span == (max(self.done) + 1 - self.floor if self.done else 0)

    def _settle(self) -> None:
        while self.floor in self.done:
            self.floor += 1
        self.done = {offset for offset in self.done if offset > self.floor}
        self.attempts = {
            offset: count
            for offset, count in self.attempts.items()
            if offset >= self.floor and offset not in self.done
        }

    def _ranges(self) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        for offset in sorted(self.done):
            if ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
        return ranges

    def _gaps(self, at: int) -> list[tuple[int, int]]:
        gaps = []
        for start, end in self._ranges():
            if end <= at:
                continue
            if start > at:
                gaps.append((at, start))
            at = end
        return [*gaps, (at, OFFSET_END)]


AckMapMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
TestAckMap = AckMapMachine.TestCase
