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
    asked_again: int = 0  # ends that were answered "try later"
    messages: int = 0


@dataclass
class Known:
    """One transaction. `bodies`: of the messages that were answered for; `unsure`: of those that were not."""

    meant: Meant
    bodies: set[bytes] = field(default_factory=set)
    unsure: set[bytes] = field(default_factory=set)
    outcomes: set[int] = field(default_factory=set)
    checks: Counter[int] = field(default_factory=Counter)


class TxLedger(Violations):
    """Hears everything; `violations` is empty as long as every promise holds."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = TxCounts()
        self.known: dict[str, Known] = {}
        self._lock = threading.Lock()

    def begin(self, transaction: str, meant: Meant) -> None:
        with self._lock:
            self.known[transaction] = Known(meant)

    def mean(self, transaction: str, meant: Meant) -> Meant:
        """Its client wants something else now; what it means: the other, where a check was told that."""
        with self._lock:
            known = self.known[transaction]
            if not known.checks:
                known.meant = meant
            return known.meant

    def prepared(self, transaction: str, bodies: Iterable[bytes], *, sure: bool) -> None:
        """Messages were answered for, or perhaps stored."""
        with self._lock:
            known = self.known[transaction]
            (known.bodies if sure else known.unsure).update(bodies)

    def asked(self, transaction: str, number: int) -> Meant | None:
        """A check came; what its client says to it."""
        with self._lock:
            self.counts.checks += 1
            known = self.known.get(transaction)
            if known is None:
                self.violated(f"asked about {transaction}, which nobody prepared")
                return None
            known.checks[number] += 1
            if known.checks[number] > 1 or not 1 <= number <= CHECKS_MAX:
                self.violated(f"check {number} of {transaction} came {known.checks[number]} times")
            return known.meant

    def ended(self, transaction: str, outcome: int) -> None:
        """An answer says how it ended."""
        with self._lock:
            known = self.known[transaction]
            known.outcomes.add(outcome)
            if len(known.outcomes) > 1:
                self.violated(f"{transaction} was answered to be {sorted(known.outcomes)}")

    # --- the end

    def undecided(self) -> list[tuple[str, Meant]]:
        """Those of which nobody has heard how they ended."""
        with self._lock:
            return [(name, known.meant) for name, known in self.known.items() if not known.outcomes]

    def finish(self, visible: Iterable[bytes], dead: Iterable[bytes]) -> None:
        """All that is in the topics, and in the dead-letter topic."""
        seen, died = Counter(visible), Counter(dead)
        owners: dict[bytes, str] = {}
        for name, known in self.known.items():
            owners.update(dict.fromkeys(known.bodies | known.unsure, name))
        for body in seen | died:
            if body not in owners:
                self.violated(f"nobody prepared {body[:60]!r}")
        for name, known in self.known.items():
            self._check(name, known, seen, died)
        self.counts.prepared = len(self.known)
        self.counts.messages = sum(seen.values())

    def _check(self, name: str, known: Known, seen: Counter[bytes], died: Counter[bytes]) -> None:
        every = known.bodies | known.unsure
        for body in every:
            if seen[body] > 1 or died[body] > 1 or (seen[body] and died[body]):
                self.violated(f"{body[:60]!r} is visible {seen[body]} times, dead {died[body]} times")
        shown, gone = {b for b in every if seen[b]}, {b for b in every if died[b]}
        if len(known.outcomes) != 1:
            if known.bodies or shown or gone:
                self.violated(f"how {name} ended is not known: {sorted(known.outcomes)}")
            return
        (outcome,), all_of = known.outcomes, len(known.bodies)
        if outcome == COMMITTED:
            self.counts.committed += 1
            if not known.bodies <= shown or gone:
                self.violated(f"{name} is committed; visible {len(shown)} of {all_of}, dead {len(gone)}")
            if known.meant is not Meant.COMMIT:
                self.violated(f"{name} is committed, its client meant {known.meant.value}")
        elif outcome == ROLLED_BACK:
            self.counts.rolled_back += 1
            if shown or gone:
                self.violated(f"{name} is rolled back; visible {len(shown)}, dead {len(gone)}")
            if known.meant is not Meant.ROLLBACK:
                self.violated(f"{name} is rolled back, its client meant {known.meant.value}")
        elif outcome == DEAD:
            self.counts.dead += 1
            if not known.bodies <= gone or shown:
                self.violated(f"{name} is dead; dead {len(gone)} of {all_of}, visible {len(shown)}")
        elif known.bodies or shown or gone:  # never there
            self.violated(f"{name} was answered {outcome}, and {len(known.bodies)} messages were prepared")
