"""A shard: the transactions of one queue of the half topic. Pure; time is an argument (clock.py's).

    half message ──▶ OPEN ──▶ due: offered to its group ──▶ asked (attempt durable) ──▶ OPEN, due again
                      │ end            │ asked often enough, or nobody polls and it is too old
                      ▼                ▼
                   DECIDING ◀──────────┘
                      │ ▲ not_decided: the commit certainly did not happen
                      ▼
                    decided: remembered, its offsets finished

Rules:
* Half messages are added in the order of their offsets, each once: with `add_stored` if this proxy appended
  them, else with `add_read`. All below `read_to` are added; the queue has records up to `observed_end`.
* A transaction is decided only when all records that are known to exist have been added.
* A half message for a transaction that is being decided is `late`: it becomes a member if the transaction
  stays open, else an orphan. Orphans, second copies and gaps belong to no transaction: their offsets are
  finished with the next commit.
* Between `begin` and `remove_decided` or `not_decided` no other caller may end the transaction.
* Between `admit_prepare` and `release_prepare` a prepare under way counts against the bounds.
* A group that polls is asked: age alone ends a transaction only if it was offered to its group for
  `offer_ms_min` and no member polled.
* Messages that do not fit into the commit of a dead letter are `left_over`; they follow in later commits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from backend.progress.ack_map import AckMap
from ddmq_client.idl.codes import TransactionOutcome
from proxy_producer.transactions.core.decisions import DecisionHistory, TransactionDecision
from proxy_producer.transactions.core.ranges import ranges_of
from proxy_producer.transactions.core.reservations import PrepareVerdict, Reservations
from proxy_producer.transactions.core.rules import TransactionRules
from proxy_producer.transactions.core.transaction import HalfFacts, HalfVerdict, OpenTransaction

RETRY_MS = 1_000  # at least, until a transaction whose end failed is checked again
TIMERS_MIN = 1_024
CHECK_BYTES = 1_024  # overhead of one message in a check, for the time that building it takes


class Overdue(NamedTuple):
    """A transaction that must become a dead letter, and the reason."""

    transaction: OpenTransaction
    reason: str


UNANSWERED, TOO_OLD = "unanswered", "too old"  # why a transaction becomes a dead letter


class TransactionShard:
    """The undecided transactions of one shard, their deadlines, and the progress in its half messages.

    `acks`: the shard's progress when this proxy took it over.
    """

    def __init__(
        self, rules: TransactionRules, acks: AckMap, read_to: int, decisions: DecisionHistory, now_ms: int
    ) -> None:
        self._rules = rules
        self._group_max = rules.group_max
        self._acks = acks
        self._attempts: Mapping[int, int] = dict(acks.attempts)
        self._began_at_ms = now_ms
        self.decisions = decisions
        self.open: dict[bytes, OpenTransaction] = {}
        self.by_group: Counter[str] = Counter()
        self.by_sender: Counter[str] = Counter()  # open transactions by the identity that began them
        self._above = 0  # open transactions above the bounds of their groups
        self.read_to = read_to
        self.observed_end = read_to
        self.reserved = Reservations()
        self._orphans: list[int] = []
        self.left_over: list[int] = []
        self._timers: list[tuple[int, int, bytes]] = []  # due time, sequence number, transaction
        self._sequence = 0
        self._offered: dict[str, dict[bytes, OpenTransaction]] = {}
        self._overdue: deque[Overdue] = deque()

    @property
    def position(self) -> int:
        """Return the offset below which all half messages are finished."""
        return self._acks.committed

    @property
    def oldest_ms(self) -> int | None:
        """Return when the oldest open transaction was prepared, on the store's clock; None if none is
        open."""
        return next((transaction.prepared_ms for transaction in self.open.values()), None)

    @property
    def first_due_ms(self) -> int | None:
        """Return when the first open transaction is due to be asked about; None: none is open."""
        return min(
            [transaction.due_ms for transaction in self.open.values() if not transaction.deciding],
            default=None,
        )

    @property
    def timers(self) -> int:
        """Return the number of timers, including some of decided transactions. It is bounded."""
        return len(self._timers)

    def admit_prepare(self, transaction: bytes, group: str, messages: int, size: int) -> PrepareVerdict:
        """Reserve capacity for messages of a transaction.

        After ADMITTED the caller must call `release_prepare`.
        """
        verdict = self._check_owner_group(transaction, group) or self._check_size_bounds(
            transaction, messages, size
        )
        if verdict is not None:
            return verdict
        self.reserved.add_prepare(transaction, group, messages, size, is_open=transaction in self.open)
        return PrepareVerdict.ADMITTED

    def _check_owner_group(self, transaction: bytes, group: str) -> PrepareVerdict | None:
        """Return the verdict that rejects a message of this group for the transaction, or None."""
        opened = self.open.get(transaction)
        decision = None if opened is not None else self.decisions.get(transaction)
        owner = self.reserved.new_group(transaction)
        if opened is not None or decision is not None:
            owner = (opened or decision).group  # type: ignore[union-attr]
        if owner not in (None, group):
            return PrepareVerdict.FOREIGN
        if decision is not None:
            return PrepareVerdict.DECIDED
        if opened is not None and opened.deciding is not None:
            return PrepareVerdict.DECIDING
        return PrepareVerdict.FULL if owner is None and self.is_full_for(group) else None

    def _check_size_bounds(self, transaction: bytes, messages: int, size: int) -> PrepareVerdict | None:
        """Return the verdict that rejects `messages` more messages of `size` bytes for the transaction, or
        None."""
        opened, rules = self.open.get(transaction), self._rules
        if opened is not None:
            messages, size = messages + len(opened.offsets), size + opened.size
        if messages > rules.messages_max or size > rules.bytes_max:
            return PrepareVerdict.LARGE
        reserved, reserved_bytes = self.reserved.get_reserved(transaction)
        if messages + reserved > rules.messages_max or size + reserved_bytes > rules.bytes_max:
            return PrepareVerdict.CROWDED
        return None

    def release_prepare(self, transaction: bytes, messages: int, size: int) -> None:
        """Release the capacity that an admitted prepare reserved, whatever its outcome."""
        self.reserved.release_prepare(transaction, messages, size, self.open)

    def is_full_for(self, group: str) -> bool:
        """Return whether the bound of the shard or of the group forbids a new transaction of the group.

        Transactions that another group has beyond its own bound do not count.
        """
        reserved = self.reserved
        if len(self.open) - self._above + reserved.count_new() >= self._rules.open_max:
            return True
        return self.by_group[group] + reserved.count_new(group) >= self._group_max

    # --- half messages

    def must_read(self, through: int = -1) -> bool:
        """Return whether half messages, up to the offset `through` or known to exist, have not been read
        yet."""
        return self.read_to < max(self.observed_end, through + 1)

    def raise_observed_end(self, end: int) -> None:
        """Record that the queue has records up to `end` (exclusive)."""
        self.observed_end = max(self.observed_end, end)

    def next_read(self) -> tuple[int, int]:
        """Return the range to read next, `[from, to)`, and skip finished offsets."""
        start, end = self._acks.unfinished_from(self.read_to, 1)[0]
        self.read_to = max(self.read_to, start)
        return self.read_to, end

    def add_stored(self, half: HalfFacts) -> HalfVerdict:
        """Add a durable half message that this proxy appended itself; return its verdict."""
        self.raise_observed_end(half.offset + 1)
        if half.offset > self.read_to:
            return HalfVerdict.AHEAD
        if half.offset == self.read_to:
            self.read_to += 1
            return self._take_half(half)
        return self._reclassify_half(half)

    def _reclassify_half(self, half: HalfFacts) -> HalfVerdict:
        """Return the verdict of a half message that was added before."""
        transaction = self.open.get(half.transaction)
        if transaction is None:
            return HalfVerdict.DECIDED
        if half.offset in transaction.offsets:
            return HalfVerdict.MEMBER
        if half.offset in transaction.beyond:
            return HalfVerdict.LARGE
        if any(late_half.offset == half.offset for late_half in transaction.late):
            return HalfVerdict.LATE
        return HalfVerdict.FOREIGN if transaction.group != half.group else transaction.compare_copy(half)

    def add_read(self, halves: Sequence[HalfFacts], next_offset: int) -> list[tuple[HalfFacts, HalfVerdict]]:
        """Add the half messages that were read up to `next_offset`, ascending; return them with their
        verdicts.

        Missing offsets in between are lost and become orphans.
        """
        judged = []
        for half in halves:
            if half.offset < self.read_to:
                continue
            self._skip_gap(half.offset)
            self.read_to = half.offset + 1
            if not self._acks.is_finished(half.offset):
                judged.append((half, self._take_half(half)))
        self._skip_gap(next_offset)
        self.read_to = max(self.read_to, next_offset)
        self.raise_observed_end(self.read_to)
        return judged

    def _skip_gap(self, until: int) -> None:
        self._orphans += [at for at in range(self.read_to, until) if not self._acks.is_finished(at)]

    def skip_to(self, oldest: int) -> int:
        """Skip to `oldest`, the first offset that the queue still has; return how many offsets were lost."""
        lost = oldest - self.read_to
        self.read_to = oldest
        self.raise_observed_end(oldest)
        self._acks.finish([(0, oldest)])
        return lost

    def _take_half(self, half: HalfFacts) -> HalfVerdict:
        verdict = self._classify_half(half)
        if verdict is HalfVerdict.LATE:
            self.open[half.transaction].late.append(half)
        elif verdict is HalfVerdict.LARGE:
            self.open[half.transaction].beyond.append(half.offset)
        elif verdict is HalfVerdict.LEFT_OVER:
            self.left_over.append(half.offset)
        elif verdict is not HalfVerdict.MEMBER:
            self._orphans.append(half.offset)
        return verdict

    def _classify_half(self, half: HalfFacts) -> HalfVerdict:
        transaction, rules = self.open.get(half.transaction), self._rules
        if transaction is None:
            decision = self.decisions.get(half.transaction)
            if decision is not None:
                is_dead = decision.outcome is TransactionOutcome.DEAD_LETTER and half.offset < decision.end
                return HalfVerdict.LEFT_OVER if is_dead else HalfVerdict.DECIDED
            transaction = self._open_transaction(half)
        elif transaction.group != half.group:
            return HalfVerdict.FOREIGN
        elif half.identity and half.identity in transaction.identities:
            return transaction.compare_copy(half)
        elif transaction.deciding is not None:
            return HalfVerdict.LATE
        elif (
            len(transaction.offsets) >= rules.commit_messages_max
            or transaction.size + half.size > rules.commit_bytes_max
        ):
            if half.identity:
                transaction.identities[half.identity] = half.checksum
            return HalfVerdict.LARGE
        transaction.offsets.append(half.offset)
        transaction.size += half.size
        if half.identity:
            transaction.identities[half.identity] = half.checksum
        return HalfVerdict.MEMBER

    def _open_transaction(self, half: HalfFacts) -> OpenTransaction:
        rules = self._rules
        transaction = OpenTransaction(
            half.transaction, half.group, half.stored_ms, half.prepared_ms, half.sender
        )
        self.by_sender[half.sender] += 1
        self.open[half.transaction] = transaction
        self.reserved.drop_new(half.transaction)
        self.by_group[half.group] += 1
        self._above += self.by_group[half.group] > self._group_max
        after_ms = rules.check_after_ms if half.check_after_ms < 0 else half.check_after_ms
        transaction.checks = self._attempts.get(half.offset, 0)
        if transaction.checks:  # the time of that check is unknown
            transaction.due_ms = self._began_at_ms + rules.check_interval_ms
        else:
            transaction.due_ms = half.stored_ms + after_ms
        self._set_timer(transaction, transaction.due_ms)
        return transaction

    # --- the end of a transaction

    def begin(self, transaction: OpenTransaction, outcome: TransactionOutcome) -> None:
        """Mark a transaction as being ended with `outcome`. `remove_decided` or `not_decided` must follow."""
        if transaction.deciding is not None:
            raise RuntimeError(f"transaction {transaction.id.hex()} is being decided already")
        transaction.deciding = outcome
        self._withdraw_offer(transaction)

    def remove_decided(self, transaction: OpenTransaction, decision: TransactionDecision) -> list[HalfFacts]:
        """Remove a transaction whose end is durable; return its half messages that came too late."""
        del self.open[transaction.id]
        self._above -= self.by_group[transaction.group] > self._group_max
        self.by_sender[transaction.sender] -= 1
        if not self.by_sender[transaction.sender]:
            del self.by_sender[transaction.sender]
        self.by_group[transaction.group] -= 1
        if not self.by_group[transaction.group]:
            del self.by_group[transaction.group]
        self.decisions.record_decision(transaction.id, decision)
        self._acks.finish((offset, offset + 1) for offset in transaction.offsets)
        self._orphans += [half.offset for half in transaction.late]
        is_dead = decision.outcome is TransactionOutcome.DEAD_LETTER
        (self.left_over if is_dead else self._orphans).extend(transaction.beyond)
        return transaction.late

    def not_decided(self, transaction: OpenTransaction, now_ms: int) -> None:
        """Keep a transaction open after a failed end, and schedule its next check."""
        transaction.deciding = None
        late, transaction.late = transaction.late, []
        for half in late:
            self._take_half(half)
        transaction.due_ms = max(transaction.due_ms, now_ms + RETRY_MS)
        self._set_timer(transaction, transaction.due_ms)

    def take_orphans(self) -> list[tuple[int, int]]:
        """Take the ranges of orphaned offsets, to finish them with the next commit.

        `finish_orphans` or `restore_orphans` must follow.
        """
        orphans, self._orphans = self._orphans, []
        return ranges_of(orphans)

    def finish_orphans(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Record that the ranges from `take_orphans` are finished."""
        self._acks.finish(ranges)

    def restore_orphans(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Keep the ranges from `take_orphans` for a later commit, because this one failed."""
        for start, end in ranges:
            self._orphans += range(start, end)

    def finish_left_over(self, offsets: Sequence[int]) -> None:
        """Record that the half messages at these offsets are finished, because they are stored as dead
        letters now.

        They are left-over messages: they did not fit into the commit that made their transaction a dead
        letter.
        """
        self._acks.finish((offset, offset + 1) for offset in offsets)
        finished = set(offsets)
        self.left_over = [offset for offset in self.left_over if offset not in finished]

    @property
    def has_orphans(self) -> bool:
        return bool(self._orphans)

    # --- checks

    def offer_due(self, now_ms: int) -> None:
        """Offer the transactions that are due to their groups, or mark them as overdue."""
        while self._timers and self._timers[0][0] <= now_ms:
            transaction = self.open.get(heappop(self._timers)[2])
            if (
                transaction is None
                or transaction.deciding is not None
                or transaction.is_checking
                or transaction.due_ms > now_ms
            ):
                continue
            if transaction.id in self._offered.get(transaction.group, ()):
                if self._too_old_ms(transaction) <= now_ms:
                    self._overdue.append(Overdue(transaction, TOO_OLD))
            elif transaction.checks >= self._rules.checks_max:
                self._overdue.append(Overdue(transaction, UNANSWERED))
            else:
                self._offer_transaction(transaction, now_ms)

    def _offer_transaction(self, transaction: OpenTransaction, now_ms: int) -> None:
        """Offer a transaction to its group: the next poll of a member receives its check."""
        transaction.offered_ms = transaction.offered_ms or now_ms
        self._offered.setdefault(transaction.group, {})[transaction.id] = transaction
        self._set_timer(transaction, max(self._too_old_ms(transaction), now_ms + RETRY_MS))

    def _too_old_ms(self, transaction: OpenTransaction) -> int:
        rules = self._rules
        return max(transaction.began_ms + rules.age_ms_max, transaction.offered_ms + rules.offer_ms_min)

    def take_overdue(self) -> Iterator[Overdue]:
        """Yield and remove the transactions that must become dead letters now."""
        while self._overdue:
            overdue = self._overdue.popleft()
            transaction = overdue.transaction
            if self.open.get(transaction.id) is transaction and transaction.deciding is None:
                yield overdue

    def has_offer(self, group: str) -> bool:
        """Return whether a transaction is offered to this group."""
        return group in self._offered

    def begin_checks(self, group: str, count: int, bytes_max: int) -> list[OpenTransaction]:
        """Take up to `count` offered transactions of the group for checks: the first of any size, in all
        `bytes_max`.

        `finish_check` or `cancel_check` must follow for each, once its attempt is durable or has failed.
        """
        offered = self._offered.get(group, {})
        transactions: list[OpenTransaction] = []
        size = 0
        for transaction in islice(offered.values(), count):
            size += transaction.size + CHECK_BYTES * len(transaction.offsets)
            if transactions and size > bytes_max:
                break
            transactions.append(transaction)
        for transaction in transactions:
            self._withdraw_offer(transaction)
            transaction.is_checking = True
        return transactions

    def finish_check(self, transaction: OpenTransaction, now_ms: int) -> bool:
        """Count a durable check attempt; return whether the group must still be asked."""
        transaction.is_checking, transaction.offered_ms = False, 0
        transaction.checks += 1
        transaction.due_ms = now_ms + self._rules.check_interval_ms
        self._set_timer(transaction, transaction.due_ms)
        return self.open.get(transaction.id) is transaction and transaction.deciding is None

    def cancel_check(self, transaction: OpenTransaction, now_ms: int) -> None:
        """Offer a transaction again whose check could not be handed out."""
        transaction.is_checking, transaction.offered_ms = False, 0
        if self.open.get(transaction.id) is transaction and transaction.deciding is None:
            self._offer_transaction(transaction, now_ms)

    def _withdraw_offer(self, transaction: OpenTransaction) -> None:
        offered = self._offered.get(transaction.group)
        if offered is not None and offered.pop(transaction.id, None) is not None and not offered:
            del self._offered[transaction.group]

    def _set_timer(self, transaction: OpenTransaction, at_ms: int) -> None:
        if len(self._timers) > 4 * len(self.open) + TIMERS_MIN:  # most timers belong to decided transactions
            self._timers = [timer for timer in self._timers if timer[2] in self.open]
            heapify(self._timers)
        self._sequence += 1
        heappush(self._timers, (at_ms, self._sequence, transaction.id))
