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
    """One that becomes a dead letter."""

    transaction: OpenTransaction
    reason: str


UNANSWERED, TOO_OLD = "unanswered", "too old"  # why a transaction becomes a dead letter


class TransactionShard:
    """`attempts`: checks so far by the first offset; they and `acks` are what the progress held."""

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
        """Everything below it is finished."""
        return self._acks.committed

    @property
    def oldest_ms(self) -> int | None:
        """When the one that is open for longest was prepared, by the store's clock."""
        return next((one.prepared_ms for one in self.open.values()), None)

    @property
    def timers(self) -> int:
        """How many are set, also for transactions that have ended: bounded."""
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
        """Whether the group may begin no more here. What another group has beyond its bound takes no room
        from it."""
        reserved = self.reserved
        if len(self.open) - self._above + reserved.count_new() >= self._rules.open_max:
            return True
        return self.by_group[group] + reserved.count_new(group) >= self._group_max

    # --- half messages

    def must_read(self, through: int = -1) -> bool:
        """Whether something up to the offset `through`, or known to be there, is not taken in."""
        return self.read_to < max(self.known_end, through + 1)

    def ends_at(self, end: int) -> None:
        """The queue has everything below `end`."""
        self.known_end = max(self.known_end, end)

    def next_read(self) -> tuple[int, int]:
        """What to read next, `[from, to)`: what is finished already is passed over."""
        start, end = self._acks.unfinished_from(self.read_to, 1)[0]
        self.read_to = max(self.read_to, start)
        return self.read_to, end

    def stored(self, half: HalfSeen) -> HalfTaken:
        """One that this proxy appended itself is durable."""
        self.ends_at(half.offset + 1)
        if half.offset > self.read_to:
            return HalfTaken.AHEAD
        if half.offset == self.read_to:
            self.read_to += 1
            return self._take(half)
        return self._known(half)

    def _known(self, half: HalfSeen) -> HalfTaken:
        """What one is that was taken in before."""
        found = self.open.get(half.transaction)
        if found is None:
            return HalfTaken.ENDED
        if half.offset in found.offsets:
            return HalfTaken.PART
        if half.offset in found.beyond:
            return HalfTaken.LARGE
        if any(one.offset == half.offset for one in found.late):
            return HalfTaken.LATE
        return HalfTaken.FOREIGN if found.group != half.group else found.copy(half)

    def read(self, halves: Sequence[HalfSeen], next_offset: int) -> list[tuple[HalfSeen, HalfTaken]]:
        """What was read from `read_to` on, up to `next_offset`, ascending; gaps hold nothing any more."""
        found = []
        for half in halves:
            if half.offset < self.read_to:
                continue
            self._gap(half.offset)
            self.read_to = half.offset + 1
            if not self._acks.is_finished(half.offset):
                found.append((half, self._take(half)))
        self._gap(next_offset)
        self.read_to = max(self.read_to, next_offset)
        self.ends_at(self.read_to)
        return found

    def _gap(self, until: int) -> None:
        self._loose += [at for at in range(self.read_to, until) if not self._acks.is_finished(at)]

    def moved_on(self, oldest: int) -> int:
        """The queue begins only at `oldest`; how many offsets are lost."""
        lost = oldest - self.read_to
        self.read_to = oldest
        self.ends_at(oldest)
        self._acks.finish([(0, oldest)])
        return lost

    def _take(self, half: HalfSeen) -> HalfTaken:
        taken = self._judge(half)
        if taken is HalfTaken.LATE:
            self.open[half.transaction].late.append(half)
        elif taken is HalfTaken.LARGE:
            self.open[half.transaction].beyond.append(half.offset)
        elif taken is HalfTaken.LEFT_OVER:
            self.left_over.append(half.offset)
        elif taken is not HalfTaken.PART:
            self._loose.append(half.offset)
        return taken

    def _judge(self, half: HalfSeen) -> HalfTaken:
        found, rules = self.open.get(half.transaction), self._rules
        if found is None:
            ended = self.ended.get(half.transaction)
            if ended is not None:
                is_dead = ended.outcome is TransactionOutcome.DEAD_LETTER and half.offset < ended.end
                return HalfTaken.LEFT_OVER if is_dead else HalfTaken.ENDED
            found = self._begin(half)
        elif found.group != half.group:
            return HalfTaken.FOREIGN
        elif half.identity and half.identity in found.identities:
            return found.copy(half)
        elif found.deciding is not None:
            return HalfTaken.LATE
        elif (
            len(found.offsets) >= rules.commit_messages_max or found.size + half.size > rules.commit_bytes_max
        ):
            if half.identity:
                found.identities[half.identity] = half.checksum
            return HalfTaken.LARGE
        found.offsets.append(half.offset)
        found.size += half.size
        if half.identity:
            found.identities[half.identity] = half.checksum
        return HalfTaken.PART

    def _begin(self, half: HalfSeen) -> OpenTransaction:
        rules = self._rules
        found = OpenTransaction(half.transaction, half.group, half.stored_ms, half.prepared_ms)
        self.open[half.transaction] = found
        self.reserved.drop_new(half.transaction)
        self.by_group[half.group] += 1
        self._above += self.by_group[half.group] > self._group_max
        after_ms = rules.check_after_ms if half.check_after_ms < 0 else half.check_after_ms
        found.checks = self._attempts.get(half.offset, 0)
        if found.checks:  # nobody knows when that was
            found.due_ms = self._began_at_ms + rules.check_interval_ms
        else:
            found.due_ms = half.stored_ms + after_ms
        self._due(found, found.due_ms)
        return found

    # --- the end of one

    def begin(self, found: OpenTransaction, outcome: TransactionOutcome) -> None:
        """It is to end like this; `decided` or `not_decided` follows."""
        if found.deciding is not None:
            raise RuntimeError(f"transaction {found.id.hex()} is being decided already")
        found.deciding = outcome
        self._withdraw(found)

    def decided(self, found: OpenTransaction, ended: Ended) -> list[HalfSeen]:
        """It is durable that it ended; gives those that came too late."""
        del self.open[found.id]
        self._above -= self.by_group[found.group] > self._group_max
        self.by_group[found.group] -= 1
        if not self.by_group[found.group]:
            del self.by_group[found.group]
        self.ended.remember(found.id, ended)
        self._acks.finish((offset, offset + 1) for offset in found.offsets)
        self._loose += [half.offset for half in found.late]
        is_dead = ended.outcome is TransactionOutcome.DEAD_LETTER
        (self.left_over if is_dead else self._loose).extend(found.beyond)
        return found.late

    def not_decided(self, found: OpenTransaction, now_ms: int) -> None:
        """It is open as before, and due again soon."""
        found.deciding = None
        late, found.late = found.late, []
        for half in late:
            self._take(half)
        found.due_ms = max(found.due_ms, now_ms + AGAIN_MS)
        self._due(found, found.due_ms)

    def take_loose(self) -> list[tuple[int, int]]:
        """Ranges to finish with the next commit; `loosed` or `put_back` follows."""
        loose, self._loose = self._loose, []
        return ranges_of(loose)

    def loosed(self, ranges: Iterable[tuple[int, int]]) -> None:
        """They are finished."""
        self._acks.finish(ranges)

    def put_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """They are not."""
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
        """What is due by now is offered to its group, or overdue."""
        while self._timers and self._timers[0][0] <= now_ms:
            found = self.open.get(heappop(self._timers)[2])
            if found is None or found.deciding is not None or found.asking or found.due_ms > now_ms:
                continue
            if found.id in self._offered.get(found.group, ()):
                if self._too_old_ms(found) <= now_ms:
                    self._overdue.append(Overdue(found, TOO_OLD))
            elif found.checks >= self._rules.checks_max:
                self._overdue.append(Overdue(found, UNANSWERED))
            else:
                self._offer_transaction(found, now_ms)

    def _offer_transaction(self, found: OpenTransaction, now_ms: int) -> None:
        """Its group is asked about it as soon as a member polls; nobody may ever."""
        found.offered_ms = found.offered_ms or now_ms
        self._offered.setdefault(found.group, {})[found.id] = found
        self._due(found, max(self._too_old_ms(found), now_ms + AGAIN_MS))

    def _too_old_ms(self, found: OpenTransaction) -> int:
        rules = self._rules
        return max(found.began_ms + rules.age_ms_max, found.offered_ms + rules.offer_ms_min)

    def overdue(self) -> Iterator[Overdue]:
        """Those that become dead letters now; what could not is there again later."""
        while self._overdue:
            one = self._overdue.popleft()
            if self.open.get(one.transaction.id) is one.transaction and one.transaction.deciding is None:
                yield one

    def offered(self, group: str) -> bool:
        """Whether there is anything to ask this group."""
        return group in self._offered

    def ask(self, group: str, count: int, bytes_max: int) -> list[OpenTransaction]:
        """Up to `count` to ask about, at least one, then until `bytes_max` of their messages; `asked` or
        `not_asked` follows for each, once the attempt is durable."""
        offered = self._offered.get(group, {})
        chosen: list[OpenTransaction] = []
        size = 0
        for found in islice(offered.values(), count):
            size += found.size + ASKED_BYTES * len(found.offsets)
            if chosen and size > bytes_max:
                break
            chosen.append(found)
        for found in chosen:
            self._withdraw(found)
            found.asking = True
        return chosen

    def asked(self, found: OpenTransaction, now_ms: int) -> bool:
        """Its next check counts; whether it still has to be asked about."""
        found.asking, found.offered_ms = False, 0
        found.checks += 1
        found.due_ms = now_ms + self._rules.check_interval_ms
        self._due(found, found.due_ms)
        return self.open.get(found.id) is found and found.deciding is None

    def not_asked(self, found: OpenTransaction, now_ms: int) -> None:
        """Offer it again: nothing became of the check."""
        found.asking, found.offered_ms = False, 0
        if self.open.get(found.id) is found and found.deciding is None:
            self._offer_transaction(found, now_ms)

    def _withdraw(self, found: OpenTransaction) -> None:
        offered = self._offered.get(found.group)
        if offered is not None and offered.pop(found.id, None) is not None and not offered:
            del self._offered[found.group]

    def _due(self, found: OpenTransaction, at_ms: int) -> None:
        if len(self._timers) > 4 * len(self.open) + TIMERS_MIN:  # most of it is of those that have ended
            self._timers = [one for one in self._timers if one[2] in self.open]
            heapify(self._timers)
        self._sequence += 1
        heappush(self._timers, (at_ms, self._sequence, found.id))
