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
class _Record:
    """One body, or one key (its body is the key's)."""

    locations: set[StoredAt] = field(default_factory=set)
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
        self._records: dict[str, _Record] = defaultdict(_Record)
        self._keys: set[str] = set()

    def key(self, body: bytes) -> None:
        """One more send of a body that has a key of its own: it may be sent again and again."""
        with self._lock:
            self.counts.key_sends += 1
            self._keys.add(name_of(body))

    def confirmed(self, body: bytes, location: StoredAt | None, duplicate: bool | None) -> None:
        """Record a stored message. `location` and `duplicate` are None if the answer lacks them."""
        with self._lock:
            name = name_of(body)
            record = self._records[name]
            self.counts.confirmed += 1
            self.counts.duplicates += bool(duplicate)
            record.firsts += duplicate is False
            if location is not None:
                record.locations.add(location)
            if len(record.locations) > 1:
                self.violated(f"{name} was answered for {sorted(record.locations)}")
            if record.firsts > 1:
                self.violated(f"{name} was stored for the first time {record.firsts} times")
            record.confirmed = True

    def unknown(self, body: bytes) -> None:
        """Its time was over: perhaps."""
        with self._lock:
            self.counts.unknown += 1
            self._records[name_of(body)].unknown = True

    def refused(self, body: bytes) -> None:
        """Certainly not stored by this send."""
        with self._lock:
            self.counts.not_stored += 1
            self._records.setdefault(name_of(body), _Record())

    # --- the end

    def finish(self, stored: Iterable[tuple[StoredAt, bytes]]) -> None:
        """`stored`: all that is in the topics."""
        with self._lock:
            self.counts.keys = len(self._keys)
            locations_of: dict[str, list[StoredAt]] = defaultdict(list)
            for location, body in stored:
                locations_of[name_of(body)].append(location)
            for name, locations in locations_of.items():
                if name not in self._records:
                    self.violated(f"nobody sent {name}, stored at {locations}")
                if len(locations) > 1:
                    self.violated(f"{name} is stored {len(locations)} times, at {locations}")
            for name, record in self._records.items():
                self._check(name, record, locations_of.get(name, []))

    def _check(self, name: str, record: _Record, locations: list[StoredAt]) -> None:
        if record.confirmed and not locations:
            self.violated(f"lost: {name} was confirmed at {sorted(record.locations)}")
        elif record.confirmed and not record.locations.issubset(locations):
            self.violated(f"{name} was answered for {sorted(record.locations)}, is at {locations}")
        elif not record.confirmed and record.unknown:
            self.counts.unknown_stored += bool(locations)
            self.counts.unknown_absent += not locations
        elif not record.confirmed and locations:
            self.violated(f"{name} was refused as not stored, and is at {locations}")
