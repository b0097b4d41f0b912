"""Lanes against a model that knows nothing but the rules: what is in flight together, and in which order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from backend.kafka.commits.lanes import Batch, Lanes, LaneWork, WorkKind
from tests.examples import examples

RESOURCES = [*"abcdef"]
IDS = 2


class LaneCall(LaneWork):
    """A call with its place in the order of the calls; `starts`: how often it was in flight."""

    __slots__ = ("is_slow", "number", "opens", "starts")

    def __init__(self, kind: WorkKind, resources: list[str], number: int, is_slow: bool) -> None:
        super().__init__(kind, resources, 1)
        self.number, self.is_slow, self.starts = number, is_slow, 0
        self.opens: Any = None


class LanesModel(RuleBasedStateMachine):
    """Calls are added, started, ended, retried and given up in any order."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[str] = set()  # resources with earlier appends that are not answered
        self.lanes: Lanes[LaneCall] = Lanes(3, 5, self._is_open, lambda call: call.is_slow)
        self.unfinished: list[LaneCall] = []  # in the order of the calls
        self.waiting_calls: list[tuple[LaneCall, Any]] = []
        self.count = 0

    def _is_open(self, call: LaneCall, on_open: Any) -> bool:
        if self.closed.intersection(call.resources):
            self.waiting_calls.append((call, on_open))
            return False
        return True

    def _unstarted_before(self, call: LaneCall, batch: list[LaneCall]) -> list[LaneCall]:
        """Return earlier calls with a common resource that are not over, and not ahead of it in its batch."""
        ahead = batch[: batch.index(call)] if call in batch else []
        return [
            other
            for other in self.unfinished
            if other.number < call.number
            and set(other.resources) & set(call.resources)
            and other not in ahead
        ]

    def _transactions(self) -> list[Batch[LaneCall]]:
        return [batch for batch in self.lanes.in_flight if batch.kind is not WorkKind.PLAIN]

    @rule(
        target=calls,
        kind=st.sampled_from(WorkKind),
        resources=st.lists(st.sampled_from(RESOURCES), max_size=3),
        is_slow=st.integers(0, 5).map(lambda number: number == 0),
    )
    def add(self, kind: WorkKind, resources: list[str], is_slow: bool) -> LaneCall:
        self.count += 1
        call = LaneCall(kind, resources, self.count, is_slow and kind is WorkKind.TRANSACTION)
        self.unfinished.append(call)
        self.lanes.add(call)
        return call

    @rule(resource=st.sampled_from(RESOURCES))
    def close_queue(self, resource: str) -> None:
        self.closed.add(resource)

    @rule()
    def open_queues(self) -> None:
        self.closed.clear()
        waiting_calls, self.waiting_calls = self.waiting_calls, []
        for _, on_open in waiting_calls:
            on_open()

    @rule(call=calls)
    def give_up(self, call: LaneCall) -> None:
        started = any(call in batch.members for batch in self.lanes.in_flight)
        if (
            call in self.unfinished
            and not started
            and not call.is_abandoned
            and call.kind is not WorkKind.ACTION
        ):
            self.lanes.give_up(call)

    @rule(call=calls)
    def resume_answers(self, call: LaneCall) -> None:
        call.is_slow = False
        self.lanes.recheck_suspects()

    @rule()
    def act(self) -> None:
        while (call := self.lanes.next_action()) is not None:
            assert call.kind is WorkKind.ACTION or call.is_abandoned
            assert not self._unstarted_before(call, []), "an action is taken when its turn has come"
            self.unfinished.remove(call)

    @rule()
    def start(self) -> None:
        busy = len(self._transactions())
        before = list(self.lanes.in_flight)
        batch = self.lanes.next_batch(busy < IDS)
        if batch is None:
            return
        assert 1 <= len(batch.members) <= 3
        for call in batch.members:
            call.starts += 1
            assert not call.is_abandoned
            assert not self._unstarted_before(call, batch.members), "the order of each resource is kept"
            if batch.kind is WorkKind.PLAIN:
                assert call.kind is WorkKind.PLAIN
            if call.kind is WorkKind.TRANSACTION:
                assert not self.closed.intersection(call.resources) or call not in [
                    c for c, _ in self.waiting_calls
                ]
        if batch.kind is WorkKind.EXCLUSIVE:
            assert not before, "an exclusive commit waits for all"
            assert len(batch.members) == 1
        elif batch.kind is WorkKind.TRANSACTION:
            assert busy < IDS
            first = min(
                (
                    call.number
                    for call in self.unfinished
                    if call.kind is WorkKind.EXCLUSIVE and not call.is_abandoned
                ),
                default=self.count + 1,
            )
            assert all(call.number < first for call in batch.members), "none overtakes an exclusive commit"
            assert batch.is_suspect or not any(call.is_slow for call in batch.members)

    @precondition(lambda self: self.lanes.in_flight)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        batch = data.draw(st.sampled_from(list(self.lanes.in_flight)))
        are_retried = data.draw(
            st.lists(st.booleans(), min_size=len(batch.members), max_size=len(batch.members))
        )
        retried = [call for call, is_retried in zip(batch.members, are_retried, strict=True) if is_retried]
        for call in batch.members:
            if call not in retried:
                self.unfinished.remove(call)
        for call in retried:
            call.is_alone = call.is_alone or data.draw(st.booleans())
        self.lanes.end(batch, retried)

    @invariant()
    def no_two_batches_share_a_resource(self) -> None:
        used: set[Any] = set()
        for batch in self.lanes.in_flight:
            own = {resource for call in batch.members for resource in call.resources}
            assert not own & used
            used |= own
        kinds = [batch.kind for batch in self.lanes.in_flight]
        assert kinds.count(WorkKind.PLAIN) <= 1
        assert kinds.count(WorkKind.TRANSACTION) <= IDS
        assert WorkKind.EXCLUSIVE not in kinds or WorkKind.TRANSACTION not in kinds
        assert sum(batch.is_suspect for batch in self.lanes.in_flight) <= 1

    @invariant()
    def nothing_is_forgotten(self) -> None:
        started = sum(len(batch.members) for batch in self.lanes.in_flight)
        assert self.lanes.waiting + started == len(self.unfinished)

    def teardown(self) -> None:
        """Without failures everything is over in the end, and nothing is left."""
        self.open_queues()
        for _ in range(4 * self.count + 4):
            self.act()
            self.start()
            for batch in list(self.lanes.in_flight)[:1]:
                for call in batch.members:
                    self.unfinished.remove(call)
                self.lanes.end(batch)
        self.act()
        assert self.unfinished == []
        assert self.lanes.is_empty
        assert list(self.lanes.list_resources()) == []


TestLanes = LanesModel.TestCase
TestLanes.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
