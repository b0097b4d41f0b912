"""SendWindow: decides for one shard which sends are stored, and which were stored before. Pure.

    admit_send ──▶ NEW: commit it ──▶ confirm_stored: repeats get its location, which is in the log
         │               └──────────▶ release: it is certainly not stored, repeats get the same answer
         ├───────▶ IN_PROGRESS: the first send is being committed; wait for its outcome
         └───────▶ STORED: answer with the location of the first

The window is what the entries in the log say, and the reservations of sends that are being committed. If the
outcome of a commit is uncertain, the owner drops the window and rebuilds it with `restore` from the log.

An entry is a row for each send of one commit: identity, message id, incarnation, queue and offset. The record
that holds the rows is `encode_rows`: a version byte and a MessagePack array.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import google_crc32c
import msgspec

from backend.idempotency import KEYS_MAX, WINDOW_MS, Name, StoredSends, parse_identity
from backend.records import FirstStored
from ddmq_common.errors import BoundReachedError, CallerError, DamagedError
from ddmq_common.security.quotas import SenderQuota
from ddmq_common.send_identity import is_key, parse_key, parse_sequence

SHARDS = 8  # of keys, and as many of numbers
QUEUES = 2 * SHARDS  # of the topic of entries: of keys and of numbers in turn, so that each process has both
NUMBERS_MS = 360_000  # of numbers that a take-over reads; a resend that is a minute younger is rejected
VERSION = b"\x01"
_INCARNATION = 0xFFFF_FFFF  # the bits of an incarnation that StoredSends keeps


class EntryRow(NamedTuple):
    """One send that was stored, as the log of its shard lists it."""

    identity: str
    message_id: bytes
    incarnation: int
    queue_id: int
    offset: int


_encode: Any = msgspec.msgpack.Encoder().encode
_decode: Any = msgspec.msgpack.Decoder(list[EntryRow]).decode


def encode_rows(rows: Sequence[EntryRow]) -> bytes:
    """Encode the rows of one commit; there are none in the entry that a take-over writes."""
    return VERSION + bytes(_encode(rows))


def decode_rows(data: bytes) -> list[EntryRow]:
    """Decode the rows of one commit. Raises DamagedError."""
    if data[:1] != VERSION:
        raise DamagedError(f"an entry of sends has version {data[:1].hex() or 'none'}; known: 01")
    try:
        rows: list[EntryRow] = _decode(data[1:])
    except msgspec.MsgspecError as error:
        raise DamagedError(f"an entry of sends: {error}") from error
    return rows


def queue_of_identity(identity: str, topic: str) -> int:
    """Return the queue of the entries of an identity. Raises ValueError if it is malformed.

    The keys of a topic have one queue, and the numbers of a producer: so a batch keeps its order.
    """
    if is_key(identity):
        parse_key(identity)
        checksum: int = google_crc32c.value(topic.encode())
        return 2 * (checksum % SHARDS)
    producer = parse_sequence(identity)[0][0]
    return 2 * (sum(bytes.fromhex(producer)) % SHARDS) + 1


def is_of_keys(queue_id: int) -> bool:
    """Return whether a queue of entries is that of keys, not that of numbers."""
    return queue_id % 2 == 0


class AdmissionKind(Enum):
    """The kinds of answers that a window gives about a send."""

    NEW = "new"
    IN_PROGRESS = "in progress"
    STORED = "stored"


class Reservation:
    """A send that is being committed. `repeats`: the caller's own notes of sends that repeat it."""

    __slots__ = ("checksum", "identity", "incarnation", "message_id", "name", "queue_id", "repeats")

    def __init__(
        self, name: Name, identity: str, checksum: int, message_id: bytes, queue_id: int, incarnation: int
    ) -> None:
        self.name = name
        self.identity = identity
        self.checksum = checksum
        self.message_id = message_id
        self.queue_id = queue_id
        self.incarnation = incarnation
        self.repeats: list[tuple[Any, bool]] = []

    def to_row(self, offset: int) -> EntryRow:
        """Return the row of the entry, once the record has its offset."""
        return EntryRow(self.identity, self.message_id, self.incarnation, self.queue_id, offset)

    def to_first(self, offset: int, differs: bool) -> FirstStored:
        """Return the answer to a repeat, once the record is stored at `offset`."""
        return FirstStored(self.message_id, self.queue_id, offset, differs)


class SendAdmission(NamedTuple):
    """The answer to a send: `reservation` unless it is STORED, else `first`.

    `differs`: a send IN_PROGRESS has another body than the first.
    """

    kind: AdmissionKind
    reservation: Reservation | None = None
    first: FirstStored | None = None
    differs: bool = False


class SendWindow:
    """The sends of one shard that were stored lately, or are being committed.

    All times are store times in ms; `now_s` is the monotonic clock, which the ages of keys follow.
    """

    def __init__(self, window_ms: int = WINDOW_MS, keys_max: int = KEYS_MAX) -> None:
        self._sends = StoredSends(window_ms, keys_max)
        self._reserved: dict[Name, Reservation] = {}
        self._reserved_keys = 0
        self._reserved_keys_max = max(1, keys_max // 2)

    def count_owned(self) -> dict[str, SenderQuota]:
        """Return how many keys and producers of each owner are remembered."""
        return self._sends.count_owned()

    # --- rebuilding

    def restore(self, rows: Iterable[EntryRow], stored_ms: int) -> None:
        """Add the rows of an entry that was stored at `stored_ms`, in the order of the log.

        Raises DamagedError.
        """
        for row in rows:
            incarnation = row.incarnation & _INCARNATION
            try:
                self._sends.restore(
                    row.identity, row.message_id, row.offset, row.queue_id, incarnation, stored_ms
                )
            except ValueError as error:
                raise DamagedError(f"identity {row.identity[:100]!r} of an entry: {error}") from error

    def forget_before(self, stored_ms: int) -> None:
        """Note that entries from before `stored_ms` were not restored: older resends are rejected."""
        self._sends.forgotten_ms = max(self._sends.forgotten_ms, stored_ms)

    def start(self, stored_ms: int, now_s: float) -> None:
        """Start the clock after the last `restore`: a record stored at `now_s` would get `stored_ms`."""
        self._sends.start(stored_ms, now_s)

    # --- sends

    def admit_send(
        self, identity: str, message_id: bytes, queue_id: int, incarnation: int, stored_ms: int, now_s: float
    ) -> SendAdmission:
        """Return whether a send is the first of its message; a NEW one is reserved.

        Raises CallerError if the identity is malformed, or its outcome is no longer known, and
        BoundReachedError if no key may be added.
        """
        now_ms = self._sends.stamp(stored_ms, now_s)
        try:
            name, rest = parse_identity(identity)
        except ValueError as error:
            raise CallerError(f"identity {identity[:100]!r} of a send: {error}") from error
        checksum = rest if isinstance(name, bytes) else 0
        reservation = self._reserved.get(name)
        if reservation is not None and reservation.incarnation == incarnation:
            return SendAdmission(
                AdmissionKind.IN_PROGRESS, reservation, differs=reservation.checksum != checksum
            )
        first = self._sends.find_first(identity, incarnation & _INCARNATION, now_ms)
        if first is not None:
            return SendAdmission(AdmissionKind.STORED, first=first)
        if isinstance(name, bytes):
            if self._reserved_keys >= self._reserved_keys_max:
                raise BoundReachedError(
                    f"{self._reserved_keys} sends with idempotency keys are being stored in this shard; that"
                    " is the bound: retry later"
                )
            self._reserved_keys += 1
        reservation = Reservation(name, identity, checksum, message_id, queue_id, incarnation)
        self._reserved[name] = reservation
        return SendAdmission(AdmissionKind.NEW, reservation)

    def confirm_stored(self, reservation: Reservation, offset: int, stored_ms: int, now_s: float) -> None:
        """Note that the record of a reservation and its entry are stored."""
        self._end(reservation)
        self._sends.add_pending(
            reservation.identity,
            reservation.message_id,
            offset,
            reservation.queue_id,
            reservation.incarnation & _INCARNATION,
            self._sends.stamp(stored_ms, now_s),
        )
        self._sends.confirm_pending()

    def release(self, reservation: Reservation) -> None:
        """Note that the record of a reservation is certainly not stored, and never will be."""
        self._end(reservation)

    def _end(self, reservation: Reservation) -> None:
        if isinstance(reservation.name, bytes):
            self._reserved_keys -= 1
        if self._reserved.get(reservation.name) is reservation:
            del self._reserved[reservation.name]
