"""What must be true of transactions, whatever is killed: a ledger of all that clients meant, did and heard.

Rules, each violation a sentence:
* one that was answered "committed" is visible whole and once; one that was answered "rolled back" never is;
* all answers about one say the same; what a client did not ask for did not happen, unless it died;
* a dead letter is in its topic whole and once, is not visible, and was asked about as often as may be, or its
  client never meant to answer;
* nobody is asked more often than so, and no check comes twice;
* nothing is visible of which nobody prepared a message.

Pure: no sockets, no clock. One lock, as many threads report.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tests.crash.kit.violations import Violations

CHECKS_MAX = 15
COMMITTED, ROLLED_BACK, DEAD = 1, 2, 5


class Meant(Enum):
    """What a client wants of a transaction. SILENT: it never says."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    SILENT = "silent"


@dataclass
class TxCounts:
    """For people."""

    prepared: int = 0
    committed: int = 0
    rolled_back: int = 0
    dead: int = 0
    checks: int = 0
    resends: int = 0
    ends_deferred: int = 0  # ends that were answered "try later"
    messages: int = 0


@dataclass
class TxRecord:
    """One transaction. `bodies`: of its answered messages; `uncertain`: of those without an answer."""

    intent: Meant
    bodies: set[bytes] = field(default_factory=set)
    uncertain: set[bytes] = field(default_factory=set)
    outcomes: set[int] = field(default_factory=set)
    checks: Counter[int] = field(default_factory=Counter)


class TxLedger(Violations):
    """Hears everything; `violations` is empty as long as every promise holds."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = TxCounts()
        self.transactions: dict[str, TxRecord] = {}
        self._lock = threading.Lock()

    def begin(self, transaction: str, intent: Meant) -> None:
        with self._lock:
            self.transactions[transaction] = TxRecord(intent)

    def mean(self, transaction: str, intent: Meant) -> Meant:
        """Its client wants something else now; what it means: the other, where a check was told that."""
        with self._lock:
            record = self.transactions[transaction]
            if not record.checks:
                record.intent = intent
            return record.intent

    def prepared(self, transaction: str, bodies: Iterable[bytes], *, sure: bool) -> None:
        """Messages were answered for, or perhaps stored."""
        with self._lock:
            record = self.transactions[transaction]
            (record.bodies if sure else record.uncertain).update(bodies)

    def checked(self, transaction: str, number: int) -> Meant | None:
        """A check came; what its client says to it."""
        with self._lock:
            self.counts.checks += 1
            record = self.transactions.get(transaction)
            if record is None:
                self.violated(f"asked about {transaction}, which nobody prepared")
                return None
            record.checks[number] += 1
            if record.checks[number] > 1 or not 1 <= number <= CHECKS_MAX:
                self.violated(f"check {number} of {transaction} came {record.checks[number]} times")
            return record.intent

    def decided(self, transaction: str, outcome: int) -> None:
        """An answer says how it ended."""
        with self._lock:
            record = self.transactions[transaction]
            record.outcomes.add(outcome)
            if len(record.outcomes) > 1:
                self.violated(f"{transaction} was answered to be {sorted(record.outcomes)}")

    # --- the end

    def undecided(self) -> list[tuple[str, Meant]]:
        """Those of which nobody has heard how they ended."""
        with self._lock:
            return [
                (name, record.intent) for name, record in self.transactions.items() if not record.outcomes
            ]

    def finish(self, visible: Iterable[bytes], dead: Iterable[bytes]) -> None:
        """All that is in the topics, and in the dead-letter topic."""
        delivered, died = Counter(visible), Counter(dead)
        owners: dict[bytes, str] = {}
        for name, record in self.transactions.items():
            owners.update(dict.fromkeys(record.bodies | record.uncertain, name))
        for body in delivered | died:
            if body not in owners:
                self.violated(f"nobody prepared {body[:60]!r}")
        for name, record in self.transactions.items():
            self._check(name, record, delivered, died)
        self.counts.prepared = len(self.transactions)
        self.counts.messages = sum(delivered.values())

    def _check(self, name: str, record: TxRecord, delivered: Counter[bytes], died: Counter[bytes]) -> None:
        every = record.bodies | record.uncertain
        for body in every:
            if delivered[body] > 1 or died[body] > 1 or (delivered[body] and died[body]):
                self.violated(f"{body[:60]!r} is visible {delivered[body]} times, dead {died[body]} times")
        visible_bodies, buried = {b for b in every if delivered[b]}, {b for b in every if died[b]}
        if len(record.outcomes) != 1:
            if record.bodies or visible_bodies or buried:
                self.violated(f"how {name} ended is not known: {sorted(record.outcomes)}")
            return
        (outcome,), all_of = record.outcomes, len(record.bodies)
        if outcome == COMMITTED:
            self.counts.committed += 1
            if not record.bodies <= visible_bodies or buried:
                self.violated(
                    f"{name} is committed; visible {len(visible_bodies)} of {all_of}, dead {len(buried)}"
                )
            if record.intent is not Meant.COMMIT:
                self.violated(f"{name} is committed, its client meant {record.intent.value}")
        elif outcome == ROLLED_BACK:
            self.counts.rolled_back += 1
            if visible_bodies or buried:
                self.violated(f"{name} is rolled back; visible {len(visible_bodies)}, dead {len(buried)}")
            if record.intent is not Meant.ROLLBACK:
                self.violated(f"{name} is rolled back, its client meant {record.intent.value}")
        elif outcome == DEAD:
            self.counts.dead += 1
            if not record.bodies <= buried or visible_bodies:
                self.violated(
                    f"{name} is dead; dead {len(buried)} of {all_of}, visible {len(visible_bodies)}"
                )
        elif record.bodies or visible_bodies or buried:  # never there
            self.violated(f"{name} was answered {outcome}, and {len(record.bodies)} messages were prepared")
