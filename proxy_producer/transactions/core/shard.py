"""A shard: the transactions of one queue of the half topic. Pure; time is an argument (the store's clock).

    half message ──▶ OPEN ──▶ due: offered to its group ──▶ asked (attempt durable) ──▶ OPEN, due again
                      │ end            │ asked often enough, or too old
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
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from backend.progress.ack_map import AckMap
from ddmq_client.idl.codes import TransactionOutcome
from proxy_producer.transactions.core.ended import Ended, EndedTransactions
from proxy_producer.transactions.core.rules import TransactionRules

AGAIN_MS = 1_000  # at least, until one whose end failed is looked at again
TIMERS_MIN = 1_024
ASKED_BYTES = 1_024  # of one message in a check, beside its own: what makes it costs as much time


class HalfSeen(NamedTuple):
    """What is decided by, of a half message. `identity` "": it says nothing. `checksum`: of a key's body."""

    offset: int
    transaction: bytes
    group: str
    stored_ms: int
    size: int
    identity: str = ""
    check_after_ms: int = -1
    checksum: str = ""


class HalfTaken(Enum):
    """What a half message is."""

    PART = "part"
    COPY = "copy"  # of one that is a part already
    CHANGED = "copy with another body"
    ENDED = "ended"  # its transaction has ended
    FOREIGN = "foreign"  # its transaction is another group's
    LATE = "late"  # its transaction is being decided
    LARGE = "large"  # its transaction has as many as it can have; it can only be rolled back
    AHEAD = "ahead"  # others before it are not taken in yet


class OpenTransaction:
    """One that is not decided. `offsets`: of its messages, ascending. `checks`: how often it was asked about.
    `deciding`: what it is to become. `asking`: a check is being made durable. `beyond`: offsets of messages
    that it has no room for; they are finished with it."""

    __slots__ = (
        "asking", "began_ms", "beyond", "checks", "deciding", "due_ms", "group", "id", "identities", "late",
        "offsets", "size",
    )  # fmt: skip

    def __init__(self, transaction: bytes, group: str, began_ms: int) -> None:
        self.id = transaction
        self.group = group
        self.began_ms = began_ms
        self.offsets: list[int] = []
        self.size = 0
        self.identities: dict[str, str] = {}  # of its messages, with the checksums
        self.checks = 0
        self.due_ms = 0
        self.deciding: TransactionOutcome | None = None
        self.asking = False
        self.late: list[HalfSeen] = []
        self.beyond: list[int] = []

    def copy(self, half: HalfSeen) -> HalfTaken:
        """What a second one of a message is."""
        same = self.identities.get(half.identity, half.checksum) == half.checksum
        return HalfTaken.COPY if same else HalfTaken.CHANGED


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
        self._loose: list[int] = []
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
        """When the one that is open for longest began."""
        return next((one.began_ms for one in self.open.values()), None)

    @property
    def timers(self) -> int:
        """How many are set, also for transactions that have ended: bounded."""
        return len(self._timers)

    def full_for(self, group: str) -> bool:
        """Whether the group may begin no more here. What another group has beyond its bound, which proxies
        let in that had not heard yet, takes no room from it."""
        return self._is_full() or self.by_group[group] >= self._group_max

    def _is_full(self) -> bool:
        return len(self.open) - self._above >= self._rules.open_max

    def full_groups(self) -> list[str]:
        """The groups that may begin no more; "" stands for all."""
        if self._is_full():
            return [""]
        most = self._group_max
        return sorted(group for group, count in self.by_group.items() if count >= most)

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
        elif taken is not HalfTaken.PART:
            self._loose.append(half.offset)
        return taken

    def _judge(self, half: HalfSeen) -> HalfTaken:
        found, rules = self.open.get(half.transaction), self._rules
        if found is None:
            if self.ended.get(half.transaction) is not None:
                return HalfTaken.ENDED
            found = self._begin(half)
        elif found.group != half.group:
            return HalfTaken.FOREIGN
        elif half.identity and half.identity in found.identities:
            return found.copy(half)
        elif found.deciding is not None:
            return HalfTaken.LATE
        elif len(found.offsets) >= rules.messages_max or found.size + half.size > rules.bytes_max:
            return HalfTaken.LARGE
        found.offsets.append(half.offset)
        found.size += half.size
        if half.identity:
            found.identities[half.identity] = half.checksum
        return HalfTaken.PART

    def _begin(self, half: HalfSeen) -> OpenTransaction:
        rules = self._rules
        found = self.open[half.transaction] = OpenTransaction(half.transaction, half.group, half.stored_ms)
        self.by_group[half.group] += 1
        self._above += self.by_group[half.group] > self._group_max
        after_ms = rules.check_after_ms if half.check_after_ms < 0 else half.check_after_ms
        found.checks = self._attempts.get(half.offset, 0)
        if found.checks:  # nobody knows when that was
            found.due_ms = self._began_at_ms + rules.check_interval_ms
        else:
            found.due_ms = half.stored_ms + after_ms
        self._due(found, min(found.due_ms, half.stored_ms + rules.age_ms_max))
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
        self._loose += found.beyond
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

    @property
    def has_loose(self) -> bool:
        return bool(self._loose)

    # --- checks

    def look(self, now_ms: int) -> None:
        """What is due by now is offered to its group, or overdue."""
        rules = self._rules
        while self._timers and self._timers[0][0] <= now_ms:
            found = self.open.get(heappop(self._timers)[2])
            if found is None or found.deciding is not None:
                continue
            if found.began_ms + rules.age_ms_max <= now_ms:
                self._overdue.append(Overdue(found, TOO_OLD))
            elif found.asking or found.due_ms > now_ms:
                continue
            elif found.checks >= rules.checks_max:
                self._overdue.append(Overdue(found, UNANSWERED))
            else:
                self._offered.setdefault(found.group, {})[found.id] = found
                self._due(found, found.began_ms + rules.age_ms_max)  # nobody may ever ask for it

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
        found.asking = False
        found.checks += 1
        found.due_ms = now_ms + self._rules.check_interval_ms
        self._due(found, found.due_ms)
        return self.open.get(found.id) is found and found.deciding is None

    def not_asked(self, found: OpenTransaction) -> None:
        """Nothing became of the check: it is offered again."""
        found.asking = False
        if self.open.get(found.id) is found and found.deciding is None:
            self._offered.setdefault(found.group, {})[found.id] = found

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


def ranges_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets as ranges `[start, end)`, ascending and not touching."""
    if len(offsets) == 1:  # as nearly all are
        return [(offsets[0], offsets[0] + 1)]
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] >= offset:
            found[-1] = found[-1][0], max(found[-1][1], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found
