"""What must be true of sends that are stored once, whatever is killed: a ledger of all answers and the end.

Rules, each violation a sentence:
* a body is stored at most once, also one whose outcome its sender never heard;
* what was confirmed is stored, with that message id, at that queue and offset, and nothing else is there;
* what was certainly not stored (a refusal that nothing unknown went before) is not;
* of a key every answer names one place, and at most one says that it was the first;
* nothing is stored that nobody sent.

Pure: no sockets, no clock. One lock, as many threads report.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from tests.crash.kit.violations import Violations


class StoredAt(NamedTuple):
    """Where a message stands."""

    topic: str
    queue_id: int
    offset: int
    message_id: str


@dataclass
class OnceCounts:
    """For people."""

    confirmed: int = 0
    duplicates: int = 0  # of them, answered for an earlier attempt
    unknown: int = 0
    not_stored: int = 0
    key_sends: int = 0
    keys: int = 0
    unknown_stored: int = 0  # of those unknown: what became of them
    unknown_absent: int = 0


@dataclass
class _Known:
    """One body, or one key (its body is the key's)."""

    places: set[StoredAt] = field(default_factory=set)
    firsts: int = 0  # answers that said it was stored by that call
    confirmed: bool = False
    unknown: bool = False


def name_of(body: bytes) -> str:
    """What tells it from all others, and people what it is; long runs have millions."""
    head = body[:32].rpartition(b"/")[0].decode(errors="replace")
    return f"{head} {blake2b(body, digest_size=16).hexdigest()}"


class OnceLedger(Violations):
    """Hears everything; `violations` is empty as long as every promise holds."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = OnceCounts()
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = defaultdict(_Known)
        self._keys: set[str] = set()

    def key(self, body: bytes) -> None:
        """One more send of a body that has a key of its own: it may be sent again and again."""
        with self._lock:
            self.counts.key_sends += 1
            self._keys.add(name_of(body))

    def confirmed(self, body: bytes, place: StoredAt | None, duplicate: bool | None) -> None:
        """Stored. `place` and `duplicate` None: the answer did not say."""
        with self._lock:
            name = name_of(body)
            known = self._known[name]
            self.counts.confirmed += 1
            self.counts.duplicates += bool(duplicate)
            known.firsts += duplicate is False
            if place is not None:
                known.places.add(place)
            if len(known.places) > 1:
                self.violated(f"{name} was answered for {sorted(known.places)}")
            if known.firsts > 1:
                self.violated(f"{name} was stored for the first time {known.firsts} times")
            known.confirmed = True

    def unknown(self, body: bytes) -> None:
        """Its time was over: perhaps."""
        with self._lock:
            self.counts.unknown += 1
            self._known[name_of(body)].unknown = True

    def refused(self, body: bytes) -> None:
        """Certainly not stored by this send."""
        with self._lock:
            self.counts.not_stored += 1
            self._known.setdefault(name_of(body), _Known())

    # --- the end

    def finish(self, stored: Iterable[tuple[StoredAt, bytes]]) -> None:
        """`stored`: all that is in the topics."""
        with self._lock:
            self.counts.keys = len(self._keys)
            found: dict[str, list[StoredAt]] = defaultdict(list)
            for place, body in stored:
                found[name_of(body)].append(place)
            for name, places in found.items():
                if name not in self._known:
                    self.violated(f"nobody sent {name}, stored at {places}")
                if len(places) > 1:
                    self.violated(f"{name} is stored {len(places)} times, at {places}")
            for name, known in self._known.items():
                self._check(name, known, found.get(name, []))

    def _check(self, name: str, known: _Known, places: list[StoredAt]) -> None:
        if known.confirmed and not places:
            self.violated(f"lost: {name} was confirmed at {sorted(known.places)}")
        elif known.confirmed and not known.places.issubset(places):
            self.violated(f"{name} was answered for {sorted(known.places)}, is at {places}")
        elif not known.confirmed and known.unknown:
            self.counts.unknown_stored += bool(places)
            self.counts.unknown_absent += not places
        elif not known.confirmed and places:
            self.violated(f"{name} was refused as not stored, and is at {places}")
