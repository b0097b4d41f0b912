"""A shard of transactions against a naive model: the queue as a list, and how each transaction ended.

The machine plays the proxies and the log: it appends half messages (its own, and others' that have to be
read, resends and gaps among them), asks for ends, makes commits durable or lets them fail, lets
time pass, asks the groups, and takes the shard over from what is durable.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.progress.ack_map import AckMap
from ddmq_client.idl.codes import TransactionOutcome
from proxy_producer.transactions.core.decisions import DecisionHistory, TransactionDecision
from proxy_producer.transactions.core.rules import TransactionRules
from proxy_producer.transactions.core.shard import TransactionShard
from proxy_producer.transactions.core.transaction import HalfFacts, HalfVerdict
from tests.examples import examples

RULES = TransactionRules(6, 4, 3, 60, 60, 1_000, 3, 1_000)
GROUPS = ("bank", "shop")
COMMITTED = TransactionOutcome.COMMITTED
IDS = st.integers(0, 5).map(lambda number: bytes([number]) * 16)


@dataclass
class Naive:
    """One transaction as the log tells it. `parts`: offsets that are of it."""

    group: str
    members: list[int] = field(default_factory=list)


class TransactionShardMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now_ms = 10_000
        self.queue: list[HalfFacts | None] = []  # None: a gap
        self.durable = AckMap()
        self.ops: list[tuple[bytes, TransactionDecision]] = []
        self.shard = self._restore_shard()

    def _restore_shard(self) -> TransactionShard:
        history = DecisionHistory(RULES.decisions_max)
        for transaction, one in self.ops:
            history.record_decision(transaction, one)
        return TransactionShard(RULES, self.durable.copy(), self.durable.committed, history, self.now_ms)

    # --- the model

    def _open(self, end: int) -> dict[bytes, Naive]:
        """What is open when everything below `end` counts, by looking through all of it."""
        transaction: dict[bytes, Naive] = {}
        strays = self.strays
        for half in self.queue[:end]:
            if half is None or self.durable.is_finished(half.offset) or half.offset in strays:
                continue
            naive = transaction.setdefault(half.transaction, Naive(half.group))
            naive.members.append(half.offset)
        return transaction

    @property
    def strays(self) -> set[int]:
        """Offsets that are no part of anything, as the shard says."""
        ranges = self.shard.take_orphans()
        self.shard.restore_orphans(ranges)
        opened = self.shard.open.values()
        aside = {half.offset for one in opened for half in one.late} | {
            at for one in opened for at in one.beyond
        }
        return {offset for start, end in ranges for offset in range(start, end)} | aside

    # --- half messages

    def _half(self, transaction: bytes, group: str, identity: str) -> HalfFacts:
        half = HalfFacts(len(self.queue), transaction, group, self.now_ms, 10, identity)
        self.queue.append(half)
        return half

    @rule(transaction=IDS, group=st.sampled_from(GROUPS), identity=st.sampled_from(("", "", "a", "b")))
    def append_here(self, transaction: bytes, group: str, identity: str) -> None:
        was_read = self.shard.read_to == len(self.queue)
        before = self.shard.open.get(transaction)
        copies = identity and before is not None and identity in before.identities
        full = before is not None and len(before.offsets) >= RULES.commit_messages_max
        decision = self.shard.decisions.get(transaction)
        half = self._half(transaction, group, identity)
        verdict = self.shard.add_stored(half)
        if not was_read:
            assert verdict is HalfVerdict.AHEAD
            assert self.shard.must_read()
        elif before is None:
            assert verdict is (HalfVerdict.MEMBER if decision is None else HalfVerdict.DECIDED)
        elif before.group != group:
            assert verdict is HalfVerdict.FOREIGN
        elif copies:
            assert verdict is HalfVerdict.COPY
        else:
            expected = HalfVerdict.LARGE if full else HalfVerdict.MEMBER
            assert verdict is (expected if before.deciding is None else HalfVerdict.LATE)

    @rule(transaction=IDS, group=st.sampled_from(GROUPS), identity=st.sampled_from(("", "a")))
    def append_elsewhere(self, transaction: bytes, group: str, identity: str) -> None:
        self._half(transaction, group, identity)

    @rule()
    def damage(self) -> None:
        self.queue.append(None)

    @rule(count=st.integers(1, 4))
    def read(self, count: int) -> None:
        self.shard.raise_observed_end(len(self.queue))
        start, end = self.shard.next_read()
        transaction = [half for half in self.queue[start : min(start + count, end)] if half is not None]
        self.shard.add_read(transaction, min(start + count, end, len(self.queue)))

    def read_all(self, count: int) -> None:
        while self.shard.must_read(len(self.queue) - 1):
            self.read(count)

    # --- ends

    @precondition(lambda self: any(one.deciding is None for one in self.shard.open.values()))
    @rule(data=st.data(), outcome=st.sampled_from((COMMITTED, TransactionOutcome.ROLLED_BACK)))
    def request_the_end(self, data: st.DataObject, outcome: TransactionOutcome) -> None:
        self.read_all(4)
        choice = [one for one in self.shard.open.values() if one.deciding is None]
        transaction = data.draw(st.sampled_from(choice))
        assert self._open(len(self.queue))[transaction.id].members == transaction.offsets
        self.shard.begin(transaction, outcome)

    @precondition(lambda self: any(one.deciding is not None for one in self.shard.open.values()))
    @rule(data=st.data(), stored=st.booleans())
    def commit(self, data: st.DataObject, stored: bool) -> None:
        choice = [one for one in self.shard.open.values() if one.deciding is not None]
        transaction = data.draw(st.sampled_from(choice))
        orphans = self.shard.take_orphans()
        if not stored:
            self.shard.restore_orphans(orphans)
            self.shard.not_decided(transaction, self.now_ms)
            return
        outcome = transaction.deciding
        assert outcome is not None
        late = [half.offset for half in transaction.late]
        self.durable.finish([(offset, offset + 1) for offset in transaction.offsets])
        self.durable.finish(orphans)
        self.ops.append((transaction.id, TransactionDecision(outcome, transaction.group, self.now_ms)))
        self.shard.finish_orphans(orphans)
        assert [half.offset for half in self.shard.remove_decided(transaction, self.ops[-1][1])] == late
        assert self.shard.decisions.get(transaction.id) is not None

    @rule()
    def finish_strays(self) -> None:
        orphans = self.shard.take_orphans()
        self.durable.finish(orphans)
        self.shard.finish_orphans(orphans)

    # --- time and checks

    @rule(ms=st.integers(1, 90))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.shard.offer_due(self.now_ms)
        for one, _ in self.shard.take_overdue():
            too_old = one.began_ms + RULES.age_ms_max <= self.now_ms
            assert too_old or one.checks >= RULES.checks_max
            self.shard.begin(one, TransactionOutcome.DEAD_LETTER)

    @rule(group=st.sampled_from(GROUPS), stored=st.booleans())
    def check_with_a_group(self, group: str, stored: bool) -> None:
        for one in self.shard.begin_checks(group, 2, 1_000):
            assert one.group == group
            assert one.due_ms <= self.now_ms
            assert one.checks < RULES.checks_max
            if stored:
                self.durable.record_attempts(one.offsets[0], one.checks + 1)
                assert self.shard.finish_check(one, self.now_ms)
            else:
                self.shard.cancel_check(one, self.now_ms)
                assert self.shard.has_offer(group)

    @rule()
    def take_over(self) -> None:
        before = {one.id: (one.offsets, one.checks) for one in self.shard.open.values()}
        complete = not self.shard.must_read(len(self.queue) - 1)
        deciding = any(one.late for one in self.shard.open.values()) or self.shard.has_orphans
        self.shard = self._restore_shard()
        self.read_all(3)
        if complete and not deciding:
            assert {one.id: (one.offsets, one.checks) for one in self.shard.open.values()} == before

    # --- always

    @invariant()
    def nothing_is_lost(self) -> None:
        members = {offset for one in self.shard.open.values() for offset in one.offsets}
        strays = self.strays
        for offset in range(self.shard.read_to):
            states = (self.durable.is_finished(offset), offset in members, offset in strays)
            assert sum(states) == 1, (offset, states)

    @invariant()
    def the_groups_are_counted(self) -> None:
        counts = Counter(one.group for one in self.shard.open.values())
        counted = sum(min(count, 3) for count in counts.values())  # beyond 3 none takes room from others
        for group in GROUPS:
            count = sum(one.group == group for one in self.shard.open.values())
            assert self.shard.by_group[group] == count
            assert self.shard.is_full_for(group) == (count >= 3 or counted >= 6)


TestTransactionShard = TransactionShardMachine.TestCase
TestTransactionShard.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
