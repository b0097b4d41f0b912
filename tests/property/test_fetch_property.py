"""The pure parts of fetching and broadcasting against models too simple to be wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backend.progress.group_progress import GroupProgress
from backend.records import QueueRef
from ddmq_client.core.instance_offsets import InstanceOffsets
from proxy_consumer.fetches.group import RELEASE_S, Roster
from proxy_consumer.fetches.instances import Instance
from proxy_consumer.fetches.owned_topic import Position
from tests.examples import examples

IDS = [b"a", b"b", b"c", b"d", b"e"]
QUEUE = QueueRef("T", 1, 0)
CONSUMERS = st.sampled_from(IDS[:3])


@given(ids=st.sets(st.sampled_from(IDS), min_size=1), queues=st.integers(0, 40))
def test_shares_are_complete_disjoint_consecutive_and_even(ids: set[bytes], queues: int) -> None:
    roster = Roster(10)
    for consumer in ids:
        roster.begin(consumer, 0.0)
    all_queues = list(range(queues))
    shares = [list(roster.share_of(consumer, all_queues)) for consumer in sorted(ids)]
    assert [queue for share in shares for queue in share] == all_queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sorted(map(len, shares), reverse=True) == list(map(len, shares))
    assert not roster.share_of(b"stranger", all_queues)


class RosterMachine(RuleBasedStateMachine):
    """Model: who has an open fetch, and when each was last heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster(3)
        self.now = 0.0
        self.open: dict[bytes, int] = {}
        self.last_fetch: dict[bytes, float] = {}

    @rule(consumer=st.sampled_from(IDS))
    def fetch(self, consumer: bytes) -> None:
        is_member = consumer in self.last_fetch
        answer = self.roster.begin(consumer, self.now)
        if not is_member and len(self.last_fetch) == 3:
            assert answer is None
            return
        assert answer is (not is_member)
        self.open[consumer] = self.open.get(consumer, 0) + 1
        self.last_fetch[consumer] = self.now

    @rule(consumer=st.sampled_from(IDS))
    def end(self, consumer: bytes) -> None:
        if self.open.get(consumer):
            self.roster.end(consumer, self.now)
            self.open[consumer] -= 1
            self.last_fetch[consumer] = self.now

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        over = {
            consumer
            for consumer, last_fetch in self.last_fetch.items()
            if not self.open[consumer] and last_fetch + RELEASE_S <= self.now
        }
        assert set(self.roster.expire_ids(self.now)) == over
        for consumer in over:
            del self.last_fetch[consumer], self.open[consumer]

    @invariant()
    def same_ids(self) -> None:
        assert list(self.roster.consumer_ids) == sorted(self.last_fetch)


class PositionMachine(RuleBasedStateMachine):
    """Model: the backend's own progress, and for each id whether it has fetched since the last reset."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = GroupProgress()
        self.end = 10
        self.position = Position(QUEUE, "q", 0, 0, None, self.end)
        self.newest = self.end
        self.was_reset = False
        self.knows: set[bytes] = set()

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.end += count

    @rule(consumer=CONSUMERS, requested=st.none() | st.integers(-2, 40))
    def fetch(self, consumer: bytes, requested: int | None) -> None:
        start = self.position.start(consumer, requested)
        if requested is not None and requested >= 0 and (not self.was_reset or consumer in self.knows):
            assert start == (requested, True)
        else:
            committed = self.stored.view().committed
            assert start == (self.newest if committed is None else committed, False)
        self.position.on_answered(consumer)
        self.knows.add(consumer)

    @rule(consumer=CONSUMERS, offset=st.integers(0, 40), durable=st.booleans())
    def ack(self, consumer: bytes, offset: int, durable: bool) -> None:
        before = self.stored.view().committed or 0
        finished = self.position.ack(consumer, offset, self.end)
        if self.was_reset and consumer not in self.knows:
            assert finished is None
        elif finished is None:
            assert min(offset, self.end) <= before
        if finished is not None and durable:
            self.stored.apply(self.position.build_delta("G", finished))
            self.position.on_stored(finished, self.position.generation)
            assert self.stored.view().committed == min(offset, self.end) > before

    @rule(to=st.integers(0, 20))
    def reset(self, to: int) -> None:
        self.stored.acks.reset(to)
        self.stored.started = True
        generation = self.position.generation + 1
        self.stored.fence = self.stored.fence._replace(generation=generation)
        assert self.position.on_reread(to, generation, self.end)
        self.was_reset, self.newest = True, self.end
        self.knows.clear()

    @rule(consumer=CONSUMERS)
    def release(self, consumer: bytes) -> None:
        self.position.forget_consumers([consumer])
        if self.was_reset:
            self.knows.discard(consumer)

    @invariant()
    def never_behind_or_past_what_is_stored(self) -> None:
        assert self.position.committed == self.stored.view().committed


@settings(max_examples=examples(200))
@given(data=st.data())
def test_an_instance_hands_out_each_offset_once_and_counts_lost_ones(data: Any) -> None:
    instance, now = Instance(0.0), 0.0
    instance.set_ends({QUEUE: 5})
    handed: list[int] = []
    waiting: dict[int, float] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["take", "race", "settle", "wait"]))
        first = instance.next_offset(QUEUE)
        if act == "take":
            after = first + data.draw(st.integers(1, 5))
            assert instance.claim_range(QUEUE, first, after)
            handed += range(first, after)
            waiting.update(dict.fromkeys(range(first, after), now + 10))
            instance.on_delivered((b"T", b"q"), range(first, after), now + 10)
        elif act == "race":
            assert not instance.claim_range(QUEUE, first + data.draw(st.integers(1, 3)), first + 9)
        elif act == "settle":
            offsets = data.draw(st.lists(st.integers(0, 40), unique=True))
            assert instance.settle_results((b"T", b"q"), offsets) == len(waiting.keys() & set(offsets))
            assert instance.settle_results((b"T", b"other"), offsets) == 0
            waiting = {offset: until for offset, until in waiting.items() if offset not in offsets}
        else:
            now += data.draw(st.integers(0, 12))
            over = [offset for offset, until in waiting.items() if until <= now]
            assert instance.expire_deliveries(now) == len(over)
            waiting = {offset: until for offset, until in waiting.items() if until > now}
        assert instance.outstanding == len(waiting)
    assert handed == list(range(5, instance.next_offset(QUEUE)))


@given(data=st.data())
def test_the_safe_offset_is_below_every_open_one(data: Any) -> None:
    offsets_of = InstanceOffsets({"T": {"q": 3}})
    ahead, open_ones = 3, set()
    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.booleans()):
            offsets = [ahead + n for n in range(data.draw(st.integers(0, 4)))]
            ahead += len(offsets) + data.draw(st.integers(0, 2))
            offsets_of.record_arrival("T", "q", offsets, ahead)
            open_ones |= set(offsets)
        elif open_ones:
            offset = data.draw(st.sampled_from(sorted(open_ones)))
            open_ones.discard(offset)
            offsets_of.record_settled("T", "q", offset)
        assert offsets_of.next_offsets() == {"T": {"q": ahead}}
        assert offsets_of.safe_offsets() == {"T": {"q": min(open_ones, default=ahead)}}


TestRoster = RosterMachine.TestCase
TestPosition = PositionMachine.TestCase
