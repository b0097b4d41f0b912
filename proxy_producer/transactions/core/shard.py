"""A shard: the transactions of one queue of the half topic. Pure; time is an argument (clock.py's).

    half message ──▶ OPEN ──▶ due: offered to its group ──▶ asked (attempt durable) ──▶ OPEN, due again
                      │ end            │ asked often enough, or nobody polls and it is too old
                      ▼                ▼
                   DECIDING ◀──────────┘
                      │ ▲ not_decided: the commit certainly did not happen
                      ▼
                    ended: remembered, its offsets finished

Rules:
* Half messages are taken in in the order of their offsets, each once. Who appended one itself says so
  (`stored`); the rest is read. `read_to`: everything below it is taken in; `known_end`: so much is there.
* A transaction is decided only when everything is taken in that is known to be there.
* What arrives for one that is being decided waits for that (`late`): a part of it when it stays open, else
  a stray. Strays, second copies and gaps are no part of anything: their offsets are `loose`, to be finished
  with the next commit.
* `begin` … `decided` or `not_decided`: between these nobody else decides the same one.
* `admit` … `release`: what a prepare takes of the bounds while it is on its way.
* Who has a polling group is asked: the age alone ends a transaction only when its group was offered it for
  `offer_ms_min` and did not poll.
* What does not fit into the commit of a dead letter is `left_over`: it follows in commits of its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from backend.progress.ack_map import AckMap
from ddmq_client.idl.codes import TransactionOutcome
from proxy_producer.transactions.core.ended import Ended, EndedTransactions
from proxy_producer.transactions.core.ranges import ranges_of
from proxy_producer.transactions.core.reservations import PrepareVerdict, Reservations
from proxy_producer.transactions.core.rules import TransactionRules
from proxy_producer.transactions.core.transaction import HalfSeen, HalfTaken, OpenTransaction

AGAIN_MS = 1_000  # at least, until one whose end failed is looked at again
TIMERS_MIN = 1_024
ASKED_BYTES = 1_024  # of one message in a check, beside its own: what makes it costs as much time


class Overdue(NamedTuple):
    """A transaction that becomes a dead letter, and why."""

    transaction: OpenTransaction
    reason: str


UNANSWERED, TOO_OLD = "unanswered", "too old"  # why a transaction becomes a dead letter


class TransactionShard:
    """The transactions of one shard. `acks`: its progress when this proxy took it over."""

    def __init__(
        self, rules: TransactionRules, acks: AckMap, read_to: int, ended: EndedTransactions, now_ms: int
    ) -> None:
        self._rules = rules
        self._group_max = rules.group_max
        self._acks = acks
        self._attempts: Mapping[int, int] = dict(acks.attempts)
        self._began_at_ms = now_ms
        self.ended = ended
        self.open: dict[bytes, OpenTransaction] = {}
        self.by_group: Counter[str] = Counter()
        self._above = 0  # open ones that their groups have beyond what a group may have
        self.read_to = read_to
        self.known_end = read_to
        self.reserved = Reservations()
        self._loose: list[int] = []
        self.left_over: list[int] = []
        self._timers: list[tuple[int, int, bytes]] = []  # when something is due for which one
        self._sequence = 0
        self._offered: dict[str, dict[bytes, OpenTransaction]] = {}
        self._overdue: deque[Overdue] = deque()

    @property
    def position(self) -> int:
        """Return the offset below which everything is finished."""
        return self._acks.committed

    @property
    def oldest_ms(self) -> int | None:
        """Return when the oldest open transaction was prepared, by the store's clock."""
        return next((one.prepared_ms for one in self.open.values()), None)

    @property
    def first_due_ms(self) -> int | None:
        """Return when the first open transaction is due to be asked about; None: none is open."""
        return min([one.due_ms for one in self.open.values() if not one.deciding], default=None)

    @property
    def timers(self) -> int:
        """Return how many timers are set, also for ended transactions; the number is bounded."""
        return len(self._timers)

    def admit_prepare(self, transaction: bytes, group: str, messages: int, size: int) -> PrepareVerdict:
        """Reserve room for messages of a transaction; `release_prepare` follows where they are ADMITTED."""
        refusal = self._refuse_group(transaction, group) or self._refuse_size(transaction, messages, size)
        if refusal is not None:
            return refusal
        self.reserved.add_prepare(transaction, group, messages, size, is_open=transaction in self.open)
        return PrepareVerdict.ADMITTED

    def _refuse_group(self, transaction: bytes, group: str) -> PrepareVerdict | None:
        """Return why a transaction takes no message of this group."""
        opened = self.open.get(transaction)
        ended = None if opened is not None else self.ended.get(transaction)
        owner = self.reserved.new_group(transaction)
        if opened is not None or ended is not None:
            owner = (opened or ended).group  # type: ignore[union-attr]
        if owner not in (None, group):
            return PrepareVerdict.FOREIGN
        if ended is not None:
            return PrepareVerdict.ENDED
        if opened is not None and opened.deciding is not None:
            return PrepareVerdict.ENDING
        return PrepareVerdict.FULL if owner is None and self.full_for(group) else None

    def _refuse_size(self, transaction: bytes, messages: int, size: int) -> PrepareVerdict | None:
        """Return why a transaction has no room for so many more."""
        opened, rules = self.open.get(transaction), self._rules
        if opened is not None:
            messages, size = messages + len(opened.offsets), size + opened.size
        if messages > rules.messages_max or size > rules.bytes_max:
            return PrepareVerdict.LARGE
        reserved, reserved_bytes = self.reserved.room_of(transaction)
        if messages + reserved > rules.messages_max or size + reserved_bytes > rules.bytes_max:
            return PrepareVerdict.CROWDED
        return None

    def release_prepare(self, transaction: bytes, messages: int, size: int) -> None:
        """Give the room of an admitted prepare back, whatever became of it."""
        self.reserved.release_prepare(transaction, messages, size, self.open)

    def full_for(self, group: str) -> bool:
        """Return whether the group may begin no more transactions here.

        Transactions of another group beyond its bound take no room from this one.
        """
        reserved = self.reserved
        if len(self.open) - self._above + reserved.count_new() >= self._rules.open_max:
            return True
        return self.by_group[group] + reserved.count_new(group) >= self._group_max

    # --- half messages

    def must_read(self, through: int = -1) -> bool:
        """Return whether a half message up to the offset `through`, or known to exist, is not taken in."""
        return self.read_to < max(self.known_end, through + 1)

    def ends_at(self, end: int) -> None:
        """Note that the queue has records up to `end` (exclusive)."""
        self.known_end = max(self.known_end, end)

    def next_read(self) -> tuple[int, int]:
        """Return the range to read next, `[from, to)`; finished offsets are passed over."""
        start, end = self._acks.unfinished_from(self.read_to, 1)[0]
        self.read_to = max(self.read_to, start)
        return self.read_to, end

    def stored(self, half: HalfSeen) -> HalfTaken:
        """Take in a durable half message that this proxy appended itself."""
        self.ends_at(half.offset + 1)
        if half.offset > self.read_to:
            return HalfTaken.AHEAD
        if half.offset == self.read_to:
            self.read_to += 1
            return self._take_half(half)
        return self._judge_again(half)

    def _judge_again(self, half: HalfSeen) -> HalfTaken:
        """Judge a half message that was taken in before."""
        transaction = self.open.get(half.transaction)
        if transaction is None:
            return HalfTaken.ENDED
        if half.offset in transaction.offsets:
            return HalfTaken.PART
        if half.offset in transaction.beyond:
            return HalfTaken.LARGE
        if any(one.offset == half.offset for one in transaction.late):
            return HalfTaken.LATE
        return HalfTaken.FOREIGN if transaction.group != half.group else transaction.copy(half)

    def read(self, halves: Sequence[HalfSeen], next_offset: int) -> list[tuple[HalfSeen, HalfTaken]]:
        """Take in what was read from `read_to` up to `next_offset`, ascending; gaps are lost offsets."""
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
        self.ends_at(self.read_to)
        return judged

    def _skip_gap(self, until: int) -> None:
        self._loose += [at for at in range(self.read_to, until) if not self._acks.is_finished(at)]

    def moved_on(self, oldest: int) -> int:
        """Skip to `oldest`, where the queue begins now; return how many offsets are lost."""
        lost = oldest - self.read_to
        self.read_to = oldest
        self.ends_at(oldest)
        self._acks.finish([(0, oldest)])
        return lost

    def _take_half(self, half: HalfSeen) -> HalfTaken:
        verdict = self._judge_half(half)
        if verdict is HalfTaken.LATE:
            self.open[half.transaction].late.append(half)
        elif verdict is HalfTaken.LARGE:
            self.open[half.transaction].beyond.append(half.offset)
        elif verdict is HalfTaken.LEFT_OVER:
            self.left_over.append(half.offset)
        elif verdict is not HalfTaken.PART:
            self._loose.append(half.offset)
        return verdict

    def _judge_half(self, half: HalfSeen) -> HalfTaken:
        transaction, rules = self.open.get(half.transaction), self._rules
        if transaction is None:
            ended = self.ended.get(half.transaction)
            if ended is not None:
                is_dead = ended.outcome is TransactionOutcome.DEAD_LETTER and half.offset < ended.end
                return HalfTaken.LEFT_OVER if is_dead else HalfTaken.ENDED
            transaction = self._open_transaction(half)
        elif transaction.group != half.group:
            return HalfTaken.FOREIGN
        elif half.identity and half.identity in transaction.identities:
            return transaction.copy(half)
        elif transaction.deciding is not None:
            return HalfTaken.LATE
        elif (
            len(transaction.offsets) >= rules.commit_messages_max
            or transaction.size + half.size > rules.commit_bytes_max
        ):
            if half.identity:
                transaction.identities[half.identity] = half.checksum
            return HalfTaken.LARGE
        transaction.offsets.append(half.offset)
        transaction.size += half.size
        if half.identity:
            transaction.identities[half.identity] = half.checksum
        return HalfTaken.PART

    def _open_transaction(self, half: HalfSeen) -> OpenTransaction:
        rules = self._rules
        transaction = OpenTransaction(half.transaction, half.group, half.stored_ms, half.prepared_ms)
        self.open[half.transaction] = transaction
        self.reserved.drop_new(half.transaction)
        self.by_group[half.group] += 1
        self._above += self.by_group[half.group] > self._group_max
        after_ms = rules.check_after_ms if half.check_after_ms < 0 else half.check_after_ms
        transaction.checks = self._attempts.get(half.offset, 0)
        if transaction.checks:  # nobody knows when that was
            transaction.due_ms = self._began_at_ms + rules.check_interval_ms
        else:
            transaction.due_ms = half.stored_ms + after_ms
        self._set_timer(transaction, transaction.due_ms)
        return transaction

    # --- the end of one

    def begin(self, transaction: OpenTransaction, outcome: TransactionOutcome) -> None:
        """Begin the end of a transaction; `decided` or `not_decided` follows."""
        if transaction.deciding is not None:
            raise RuntimeError(f"transaction {transaction.id.hex()} is being decided already")
        transaction.deciding = outcome
        self._withdraw_offer(transaction)

    def decided(self, transaction: OpenTransaction, ended: Ended) -> list[HalfSeen]:
        """Remove a transaction whose end is durable; return the half messages that came too late."""
        del self.open[transaction.id]
        self._above -= self.by_group[transaction.group] > self._group_max
        self.by_group[transaction.group] -= 1
        if not self.by_group[transaction.group]:
            del self.by_group[transaction.group]
        self.ended.remember(transaction.id, ended)
        self._acks.finish((offset, offset + 1) for offset in transaction.offsets)
        self._loose += [half.offset for half in transaction.late]
        is_dead = ended.outcome is TransactionOutcome.DEAD_LETTER
        (self.left_over if is_dead else self._loose).extend(transaction.beyond)
        return transaction.late

    def not_decided(self, transaction: OpenTransaction, now_ms: int) -> None:
        """Keep a transaction open, and make it due again soon."""
        transaction.deciding = None
        late, transaction.late = transaction.late, []
        for half in late:
            self._take_half(half)
        transaction.due_ms = max(transaction.due_ms, now_ms + AGAIN_MS)
        self._set_timer(transaction, transaction.due_ms)

    def take_loose(self) -> list[tuple[int, int]]:
        """Return the ranges to finish with the next commit; `loosed` or `put_back` follows."""
        loose, self._loose = self._loose, []
        return ranges_of(loose)

    def loosed(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note that the ranges are finished."""
        self._acks.finish(ranges)

    def put_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Keep the ranges for a later commit: they are not finished."""
        for start, end in ranges:
            self._loose += range(start, end)

    def finish_left_over(self, offsets: Sequence[int]) -> None:
        """Count left-over messages as finished: they are dead letters now."""
        self._acks.finish((offset, offset + 1) for offset in offsets)
        finished = set(offsets)
        self.left_over = [offset for offset in self.left_over if offset not in finished]

    @property
    def has_loose(self) -> bool:
        return bool(self._loose)

    # --- checks

    def look(self, now_ms: int) -> None:
        """Offer the transactions that are due to their groups, or make them overdue."""
        while self._timers and self._timers[0][0] <= now_ms:
            transaction = self.open.get(heappop(self._timers)[2])
            if (
                transaction is None
                or transaction.deciding is not None
                or transaction.asking
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
        """Let the group be asked about a transaction as soon as a member polls, if one does."""
        transaction.offered_ms = transaction.offered_ms or now_ms
        self._offered.setdefault(transaction.group, {})[transaction.id] = transaction
        self._set_timer(transaction, max(self._too_old_ms(transaction), now_ms + AGAIN_MS))

    def _too_old_ms(self, transaction: OpenTransaction) -> int:
        rules = self._rules
        return max(transaction.began_ms + rules.age_ms_max, transaction.offered_ms + rules.offer_ms_min)

    def overdue(self) -> Iterator[Overdue]:
        """Yield the transactions that become dead letters now; one that cannot is yielded again later."""
        while self._overdue:
            one = self._overdue.popleft()
            if self.open.get(one.transaction.id) is one.transaction and one.transaction.deciding is None:
                yield one

    def offered(self, group: str) -> bool:
        """Return whether there is a transaction to ask this group about."""
        return group in self._offered

    def ask(self, group: str, count: int, bytes_max: int) -> list[OpenTransaction]:
        """Return up to `count` transactions to ask about: one of any size, then up to `bytes_max` together.

        `asked` or `not_asked` follows for each, once the attempt is durable.
        """
        offered = self._offered.get(group, {})
        transactions: list[OpenTransaction] = []
        size = 0
        for transaction in islice(offered.values(), count):
            size += transaction.size + ASKED_BYTES * len(transaction.offsets)
            if transactions and size > bytes_max:
                break
            transactions.append(transaction)
        for transaction in transactions:
            self._withdraw_offer(transaction)
            transaction.asking = True
        return transactions

    def asked(self, transaction: OpenTransaction, now_ms: int) -> bool:
        """Count the check of a transaction, and return whether its group must still be asked."""
        transaction.asking, transaction.offered_ms = False, 0
        transaction.checks += 1
        transaction.due_ms = now_ms + self._rules.check_interval_ms
        self._set_timer(transaction, transaction.due_ms)
        return self.open.get(transaction.id) is transaction and transaction.deciding is None

    def not_asked(self, transaction: OpenTransaction, now_ms: int) -> None:
        """Offer it again: nothing became of the check."""
        transaction.asking, transaction.offered_ms = False, 0
        if self.open.get(transaction.id) is transaction and transaction.deciding is None:
            self._offer_transaction(transaction, now_ms)

    def _withdraw_offer(self, transaction: OpenTransaction) -> None:
        offered = self._offered.get(transaction.group)
        if offered is not None and offered.pop(transaction.id, None) is not None and not offered:
            del self._offered[transaction.group]

    def _set_timer(self, transaction: OpenTransaction, at_ms: int) -> None:
        if len(self._timers) > 4 * len(self.open) + TIMERS_MIN:  # most of it is of those that have ended
            self._timers = [one for one in self._timers if one[2] in self.open]
            heapify(self._timers)
        self._sequence += 1
        heappush(self._timers, (at_ms, self._sequence, transaction.id))
