"""The sends that were stored lately, so that a repeated send does not store its message again. Pure.

A send names its identity (ddmq_common/send_identity.py): a key, remembered for a window of time after it was
stored, or a producer's sequence, remembered until the producer has received the answer. An engine calls
`find_first` before it stores a record, and `add_pending` when it has assigned an offset to it. Pending sends
are ahead of the durable state: `confirm_pending` confirms them, `back_to` takes them back. The stored records
contain the whole state, in their order; `restore` rebuilds it from them.

A topic that was deleted and created again is another topic: sends to the former one do not count.

Bounds:
* A topic may have as many keys as are free of `keys_max`: half of them when it is alone, a third each when
  two topics take all they can, so that some are always free for the next topic. It may have `keys_max` /
  SHARE keys in any case, while there are at most twice `keys_max` in all. More keys are refused.
* An owner (the identity or address that sends) may have at most OWNER_PARTS times as many keys as are free
  of `keys_max`, whatever its topics: three quarters when it is alone. After a restart, earlier keys have no
  owner.
* An owner with quotas of its own (`SENDER_QUOTAS`) may have that many keys and producers. More are refused
  until a key expires, or a producer was silent for the window.
* There may be PRODUCERS_MAX producers and SEQUENCES_ALL_MAX open sequences, SEQUENCES_MAX of one producer.
  Beyond that a producer with many sequences loses its oldest, and else the owner that has the most producers
  and sequences loses the producer that was silent for longest. Sequences forgotten before their time are
  counted.

All times are store times minus `ahead_ms`. While the engine runs they follow the monotonic clock (`start`,
`stamp`), so that entries do not expire because the wall clock was set forward.

After producers were forgotten, only the newest time at which one of them was active remains: of an owner, or
`forgotten_ms` of all. A send of that owner that was under way before that, and that is not recorded, is
refused, because it may be stored.

Keys and sequences are one module, because they share the window, the bounds and the times of their owners.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from struct import Struct

import google_crc32c

from backend.owner_shares import OwnerShares
from backend.records import FirstStored
from ddmq_common.errors import BoundReachedError, CallerError, DdmqError
from ddmq_common.security.quotas import SenderQuota, build_over_quota
from ddmq_common.security.sender_quotas import SENDER_QUOTAS
from ddmq_common.send_identity import DIGEST_BYTES, NO_OWNER, owner_of, parse_key, parse_sequence

WINDOW_MS = 3_600_000
KEYS_MAX = 1_000_000
SHARE = 10_000  # every topic may have keys_max / SHARE keys, however many the others have
OWNER_PARTS = 3
PRODUCERS_MAX = 100_000
FORGETFUL_OWNERS_MAX = 1_000  # owners whose producers were forgotten; beyond that, it counts for all
SEQUENCES_MAX = 65_536
SEQUENCES_ALL_MAX = 262_144
ARRIVES_MS = 60_000  # a send may arrive this much later than it states; window / SLICES if that is shorter
MANY = 16  # a producer with more than 1 / MANY of all sequences has many
SLICE_KEYS = 65_536
SLICES = 8  # per window; whole slices expire, so that a key lives for up to an eighth of the window longer
# message id, offset, queue, incarnation, checksum of the body, when it was stored (epoch ms)
LOCATION = Struct("<16sqiIIq")
ROW_BYTES = DIGEST_BYTES + LOCATION.size + 4  # a key's digest and place, and their CRC-32C

Name = bytes | tuple[str, int]  # identifies a send: a key's digest, or producer and sequence


def parse_identity(text: str) -> tuple[Name, int]:
    """Return (digest, body checksum) for a key, or ((producer, sequence), answered_below) for a sequence.

    Raises ValueError.
    """
    return parse_key(text) if text[:1] == "k" else parse_sequence(text)[:2]


def add_topic_name(topic: str, error: DdmqError) -> DdmqError:
    """Return the error that `find_first` raised, with the topic's name added if a bound was reached."""
    return BoundReachedError(f"topic {topic}: {error}") if isinstance(error, BoundReachedError) else error


def row_of(key: bytes) -> bytes:
    """Return a digest and location as a file stores them, with their CRC."""
    crc: int = google_crc32c.value(key)
    return key + crc.to_bytes(4, "little")


def is_valid_row(row: bytes) -> bool:
    """Return whether these are the complete bytes of one row, with a valid CRC."""
    return len(row) == ROW_BYTES and row_of(row[:-4]) == row


class ProducerSequences:
    """The stored sends of one producer that it may still repeat, by sequence.

    `encoded` caches the encoded form for the checkpoint until something changes.
    """

    __slots__ = ("active_ms", "below", "encoded", "locations", "owner")

    def __init__(
        self,
        below: int = 0,
        active_ms: int = 0,
        locations: Mapping[int, bytes] | None = None,
        owner: str = NO_OWNER,
    ) -> None:
        self.owner = owner  # that of its first send
        self.below = below  # lower sequences are forgotten, because the producer has their answers
        self.active_ms = active_ms
        self.encoded: object | None = None
        self.locations: dict[int, bytes] = dict(locations or {})

    def raise_below(self, below: int) -> int:
        """Forget the sequences below `below`; return how many were forgotten.

        Widely spaced sequences are removed in the order in which they were stored, some of them later. So the
        cost depends on the number of stored sequences, not on the numbers that a producer chooses.
        """
        locations, before = self.locations, len(self.locations)
        if below - self.below <= before:
            for sequence in range(self.below, below):
                locations.pop(sequence, None)
        else:
            for sequence in list(takewhile(below.__gt__, locations)):  # one pass over the oldest
                del locations[sequence]
        self.below = max(self.below, below)
        return before - len(locations)

    def forget_oldest(self) -> None:
        """Forget the sequence that was stored first; repeats of it or a lower one are then refused."""
        oldest = next(iter(self.locations))
        del self.locations[oldest]
        self.below = max(self.below, oldest + 1)


class KeySlice:
    """Keys that were stored one after the other; a whole slice expires at once.

    `number` ascends. `unsaved` holds the rows that follow the `saved` ones and are in no file yet.
    """

    __slots__ = ("counts", "first_ms", "last_ms", "locations", "number", "owned", "saved", "unsaved")

    def __init__(self, number: int, first_ms: int) -> None:
        self.number = number
        self.first_ms = self.last_ms = first_ms
        self.locations: dict[bytes, bytes] = {}
        self.counts: Counter[int] = Counter()  # keys by incarnation of their topic
        self.owned: Counter[str] = Counter()  # keys by owner, without those that have none
        self.saved = 0
        self.unsaved = bytearray()

    def add(self, digest: bytes, location: bytes, incarnation: int, stored_ms: int, owner: str) -> None:
        self.locations[digest] = location
        if owner:
            self.owned[owner] += 1
        self.counts[incarnation] += 1
        self.last_ms = max(self.last_ms, stored_ms)


class StoredSends:
    """Remembers the identities of recently stored sends; see the module's text.

    All times are in ms on the clock of this object, except those of `restore`, which are store times.
    """

    def __init__(self, window_ms: int = WINDOW_MS, keys_max: int = KEYS_MAX, *, saving: bool = False) -> None:
        """Create an empty object. With `saving`, slices keep their rows until the rows are saved in a
        file.
        """
        self._saving = saving
        self.set_bounds(window_ms, keys_max)
        self.slices: deque[KeySlice] = deque()
        self.producers: OrderedDict[str, ProducerSequences] = OrderedDict()  # the latest active one last
        self.ahead_ms = (
            0  # the lead of store times over this clock: by so much the wall clock was set forward
        )
        self._base_ms = 0.0  # this clock when the monotonic clock was at 0
        self.forgotten = 0  # entries forgotten before their time
        self.forgotten_ms = -1  # the newest activity of a forgotten producer
        self._forgotten_of: dict[str, int] = {}  # the same by owner
        self._shares = OwnerShares()  # producers and their sequences by owner
        self._producers_of: dict[str, OrderedDict[str, None]] = {}  # by owner, the latest active one last
        self._owned_keys: Counter[str] = Counter()
        self._counts: Counter[int] = Counter()
        self._keys = self._sequences = 0
        self._next_slice = 0
        self._parsed: tuple[str, Name, int] = (
            "",
            b"",
            0,
        )  # the latest text, parsed: `add_pending` follows `find_first`
        self._ahead: dict[Name, bytes] = {}
        # Not confirmed yet: name, checksum or answered_below, location, incarnation, store time, owner.
        self.pending: list[tuple[Name, int, bytes, int, int, str]] = []
        self._pending_counts: Counter[int] = Counter()  # pending keys by incarnation
        self._pending_owned: Counter[str] = Counter()  # pending keys by owner
        self._pending_keys = 0  # all of these

    def set_bounds(self, window_ms: int, keys_max: int) -> None:
        """Set the window and the bound on keys."""
        self.window_ms, self.keys_max = window_ms, keys_max
        self._all_max = keys_max + keys_max // SHARE * SHARE  # with shares where nothing is free

    def start(self, stored_ms: int, now_s: float) -> None:
        """Start this clock after restoring: a record stored now, at `now_s` (monotonic), gets `stored_ms`."""
        self._base_ms = stored_ms - self.ahead_ms - now_s * 1000

    def stamp(self, stored_ms: int, now_s: float) -> int:
        """Return this object's time for records stored with `stored_ms` at `now_s` (monotonic)."""
        time_ms = round(self._base_ms + now_s * 1000)
        self.ahead_ms = stored_ms - time_ms
        return time_ms

    # --- before a record is stored, and when it has its offset

    def find_first(self, text: str, incarnation: int, now_ms: int) -> FirstStored | None:
        """Return the first stored message with the identity `text`, or None if there is none.

        Raises CallerError for an identity that is malformed or whose outcome is forgotten, and
        BoundReachedError when no key may be added.
        """
        try:
            if text[:1] == "k":
                digest, checksum = parse_key(text)
                self._parsed = text, digest, checksum
                return self._first_of_key(text, digest, checksum, incarnation, now_ms)
            name, below, under_way_ms = parse_sequence(text)
        except ValueError as error:
            raise CallerError(f"identity {text[:100]!r} of a send: {error}") from error
        self._parsed = text, name, below
        location = self._location_of(name)
        if location is None:
            if under_way_ms is not None:
                self._check_forgotten(name, now_ms - under_way_ms, owner_of(text))
            if SENDER_QUOTAS.by_owner and name[0] not in self.producers:
                self._check_producer_quota(owner_of(text), now_ms)
            return None
        message_id, offset, queue_id, stored_incarnation, _, _ = LOCATION.unpack(location)
        return FirstStored(message_id, queue_id, offset, False) if stored_incarnation == incarnation else None

    def _first_of_key(
        self, text: str, digest: bytes, checksum: int, incarnation: int, now_ms: int
    ) -> FirstStored | None:
        location = self._ahead.get(digest)
        if location is None:
            for slice_ in reversed(self.slices):
                location = slice_.locations.get(digest)
                if location is not None:
                    break
        if location is not None:
            message_id, offset, queue_id, stored_incarnation, sum_before, stored_ms = LOCATION.unpack(
                location
            )
            if stored_incarnation == incarnation and stored_ms >= now_ms - self.window_ms:
                return FirstStored(message_id, queue_id, offset, checksum != sum_before)
        self._expire_slices(now_ms)
        if 2 * (self._keys + len(self.pending)) >= self.keys_max:
            self._check_capacity(incarnation, owner_of(text))
        if SENDER_QUOTAS.by_owner:
            self._check_key_quota(owner_of(text), now_ms)
        return None

    def _check_producer_quota(self, owner: str, now_ms: int) -> None:
        """Raise BoundReachedError if an owner has as many producers as its quota allows."""
        quota = SENDER_QUOTAS.by_owner.get(owner)
        names = self._producers_of.get(owner)
        if quota is None or names is None or not 0 < quota.producers <= len(names):
            return
        active_ms = self.producers[next(iter(names))].active_ms
        what = f"{len(names)} producers of this identity are remembered"
        wait_s = max(active_ms + self.window_ms - now_ms, 0) / 1_000
        raise BoundReachedError(build_over_quota("producers", what, quota.producers, wait_s))

    def _check_key_quota(self, owner: str, now_ms: int) -> None:
        """Raise BoundReachedError if an owner has as many keys as its quota allows."""
        quota = SENDER_QUOTAS.by_owner.get(owner)
        if quota is None or not quota.idempotency_keys:
            return
        owned = self._owned_keys[owner] + self._pending_owned[owner]
        if owned < quota.idempotency_keys:
            return
        expiry_ms = next((each.last_ms for each in self.slices if each.owned[owner]), now_ms) + self.window_ms
        what = f"{owned} idempotency keys of this identity are remembered"
        wait_s = max(expiry_ms - now_ms, 0) / 1_000
        raise BoundReachedError(build_over_quota("idempotency_keys", what, quota.idempotency_keys, wait_s))

    def count_owned(self) -> dict[str, SenderQuota]:
        """Return how many keys and producers of each owner are remembered."""
        owners = {*self._owned_keys, *self._producers_of} - {NO_OWNER}
        return {
            owner: SenderQuota(self._owned_keys[owner], len(self._producers_of.get(owner, ())))
            for owner in owners
        }

    def _check_capacity(self, incarnation: int, owner: str) -> None:
        keys = self._keys + self._pending_keys
        own = self._counts[incarnation] + self._pending_counts[incarnation]
        free, share = max(0, self.keys_max - keys), self.keys_max // SHARE
        if (own >= free and own >= share) or keys >= self._all_max:
            raise BoundReachedError(
                f"{own} of its idempotency keys are remembered, and {keys} of all topics; allowed: as many as"
                f" are free, {free} of {self.keys_max} (idempotency_keys_max), and {share} in any case; a key"
                f" is remembered for {self.window_ms} ms: retry later, or have the bound raised"
            )
        owned = self._owned_keys[owner] + self._pending_owned[owner] if owner else 0
        if owned >= OWNER_PARTS * free and owned >= share:
            raise BoundReachedError(
                f"{owned} idempotency keys of this sender's identity or address are remembered; allowed:"
                f" {OWNER_PARTS} times as many as are free, {free} of {self.keys_max} (idempotency_keys_max);"
                f" a key is remembered for {self.window_ms} ms: retry later, or have the bound raised"
            )

    def _location_of(self, name: tuple[str, int]) -> bytes | None:
        location, (producer, sequence) = self._ahead.get(name), name
        if location is None:
            sequences = self.producers.get(producer)
            if sequences is not None:
                if sequence < sequences.below:
                    raise CallerError(
                        f"sequence {sequence} of producer {producer}: those below {sequences.below} are"
                        " forgotten"
                    )
                location = sequences.locations.get(sequence)
        return location

    def _check_forgotten(self, name: tuple[str, int], since_ms: int, owner: str) -> None:
        """Raise CallerError unless a sequence under way since `since_ms` is certainly not stored."""
        forgotten_ms = max(self.forgotten_ms, self._forgotten_of.get(owner, -1))
        if since_ms - min(ARRIVES_MS, self.window_ms // SLICES) <= forgotten_ms:
            raise CallerError(
                f"sequence {name[1]} of producer {name[0]} is sent again, and it is not known any more"
                " whether it was stored: producers that were heard of as long ago are forgotten"
            )

    def add_pending(
        self, text: str, message_id: bytes, offset: int, queue_id: int, incarnation: int, stored_ms: int
    ) -> None:
        """Record the location of the send `text`, for which `find_first` returned None; `confirm_pending`
        confirms it.
        """
        parsed_text, name, rest = self._parsed
        if parsed_text != text:
            name, rest = parse_identity(text)
        checksum, owner = 0, owner_of(text)
        if isinstance(name, bytes):
            checksum = rest
            if owner:
                self._pending_owned[owner] += 1
            self._pending_counts[incarnation] += 1
            self._pending_keys += 1
        location = LOCATION.pack(message_id, offset, queue_id, incarnation, checksum, stored_ms)
        self._ahead[name] = location
        self.pending.append((name, rest, location, incarnation, stored_ms, owner))

    def back_to(self, mark: int) -> None:
        """Discard all pending sends after the first `mark` of them."""
        del self.pending[mark:]
        self._ahead = {entry[0]: entry[2] for entry in self.pending}
        self._pending_counts = Counter([entry[3] for entry in self.pending if isinstance(entry[0], bytes)])
        self._pending_owned = Counter([entry[5] for entry in self.pending if isinstance(entry[0], bytes)])
        self._pending_keys = self._pending_counts.total()

    def confirm_pending(self) -> None:
        """Confirm all pending sends: their records are stored."""
        last, sequences = (
            None,
            ProducerSequences(),
        )  # of the sequence before: a batch has them one behind the other
        for name, rest, location, incarnation, stored_ms, owner in self.pending:
            if isinstance(name, bytes):
                self._keep_key(name, location, incarnation, stored_ms, owner)
                continue
            producer, sequence = name
            sender, locations = (producer, rest, stored_ms), sequences.locations
            full = len(locations) >= SEQUENCES_MAX or self._sequences >= SEQUENCES_ALL_MAX
            if full or sender != last or sequence < sequences.below:
                self._keep_sequence(producer, sequence, rest, location, stored_ms, owner)
                last, sequences = sender, self.producers[producer]
            else:
                if sequence not in locations:
                    self._sequences += 1
                    self._shares.add(sequences.owner, 1)
                locations[sequence] = location
        self._forget_producers(self.pending[-1][4] if self.pending else 0)
        self.pending, self._ahead = [], {}
        self._pending_counts.clear()
        self._pending_owned.clear()
        self._pending_keys = 0

    def restore(
        self, text: str, message_id: bytes, offset: int, queue_id: int, incarnation: int, stored_ms: int
    ) -> None:
        """Add the identity of a stored record, in log order. Raises ValueError for a malformed identity."""
        self.add_pending(text, message_id, offset, queue_id, incarnation, stored_ms - self.ahead_ms)
        self.confirm_pending()

    # --- what counts

    def _keep_key(self, digest: bytes, location: bytes, incarnation: int, stored_ms: int, owner: str) -> None:
        last = self.slices[-1] if self.slices else None
        if (
            last is None
            or len(last.locations) >= SLICE_KEYS
            or stored_ms >= last.first_ms + self.window_ms // SLICES
        ):
            self._expire_slices(stored_ms)
            last = KeySlice(self._next_slice, stored_ms)
            self._next_slice += 1
            self.slices.append(last)
        last.add(digest, location, incarnation, stored_ms, owner)
        if self._saving:
            last.unsaved += row_of(digest + location)
        self._counts[incarnation] += 1
        if owner:
            self._owned_keys[owner] += 1
        self._keys += 1
        if self._keys > self._all_max:  # commits do not check the bound
            self._expire_slices(stored_ms)
            while self._keys > self._all_max and len(self.slices) > 1:
                self.forgotten += self._forget_slice()

    def _expire_slices(self, now_ms: int) -> None:
        """Forget the slices whose keys are all older than the window."""
        while self.slices and self.slices[0].last_ms < now_ms - self.window_ms:
            self._forget_slice()

    def _forget_slice(self) -> int:
        """Forget the oldest slice; return how many keys it had."""
        oldest = self.slices.popleft()
        count = sum(oldest.counts.values())
        self._keys -= count
        self._counts -= oldest.counts
        self._owned_keys -= oldest.owned
        return count

    def _keep_sequence(
        self, producer: str, sequence: int, below: int, location: bytes, stored_ms: int, owner: str
    ) -> None:
        sequences = self.producers.get(producer)
        if sequences is None:
            sequences = ProducerSequences(owner=owner)
            self._add_producer(producer, sequences)
        else:
            self.producers.move_to_end(producer)
            self._producers_of[sequences.owner].move_to_end(producer)
        sequences.encoded = None
        if stored_ms > sequences.active_ms:
            sequences.active_ms = stored_ms
        if below > sequences.below:
            self._count_sequences(sequences, -sequences.raise_below(below))
        if sequence >= sequences.below:
            locations = sequences.locations
            if sequence not in locations:
                self._count_sequences(sequences, 1)
            locations[sequence] = location
            if len(locations) > SEQUENCES_MAX or self._sequences > SEQUENCES_ALL_MAX:
                self._forget_own(sequences)

    def _add_producer(self, name: str, sequences: ProducerSequences) -> None:
        self.producers[name] = sequences
        self._producers_of.setdefault(sequences.owner, OrderedDict())[name] = None
        self._shares.add(sequences.owner, 1)
        self._count_sequences(sequences, len(sequences.locations))

    def _count_sequences(self, sequences: ProducerSequences, change: int) -> None:
        self._sequences += change
        self._shares.add(sequences.owner, change)

    def _forget_own(self, sequences: ProducerSequences) -> None:
        """Forget the oldest sequences of a producer that has many of them, until the bounds are kept."""
        while len(sequences.locations) > SEQUENCES_MAX or (
            self._sequences > SEQUENCES_ALL_MAX and len(sequences.locations) > SEQUENCES_ALL_MAX // MANY
        ):
            sequences.forget_oldest()
            self._count_sequences(sequences, -1)
            self.forgotten += 1

    def _forget_producers(self, now_ms: int) -> None:
        """Forget producers that were silent for the window, and others until the bounds are kept."""
        while len(self.producers) > 1:
            name = next(iter(self.producers))
            if self.producers[name].active_ms < now_ms - self.window_ms:
                self.forgotten_ms = max(self.forgotten_ms, self._drop_producer(name).active_ms)
            elif len(self.producers) > PRODUCERS_MAX or self._sequences > SEQUENCES_ALL_MAX:
                self._forget_producer_of(self._shares.find_largest(), now_ms)
            else:
                return

    def _forget_producer_of(self, owner: str, now_ms: int) -> None:
        """Forget the producer of an owner that was silent for longest."""
        oldest = self._drop_producer(next(iter(self._producers_of[owner])))
        if owner:
            before_ms = self._forgotten_of.pop(owner, -1)
            self._forgotten_of[owner] = max(before_ms, oldest.active_ms)
            if len(self._forgotten_of) > FORGETFUL_OWNERS_MAX:
                others_ms = self._forgotten_of.pop(next(iter(self._forgotten_of)))
                self.forgotten_ms = max(self.forgotten_ms, others_ms)
        else:
            self.forgotten_ms = max(self.forgotten_ms, oldest.active_ms)
        if oldest.active_ms >= now_ms - self.window_ms:
            self.forgotten += 1 + len(oldest.locations)

    def _drop_producer(self, name: str) -> ProducerSequences:
        sequences = self.producers.pop(name)
        owner = sequences.owner
        names = self._producers_of[owner]
        del names[name]
        if not names:
            del self._producers_of[owner]
        self._shares.add(owner, -1)
        self._count_sequences(sequences, -len(sequences.locations))
        return sequences

    # --- across restarts

    def put_producer(self, name: str, sequences: ProducerSequences) -> None:
        """Restore a producer from a checkpoint, where the latest active producers come last."""
        self._add_producer(name, sequences)

    @property
    def saved_forgotten_ms(self) -> int:
        """The newest activity of a forgotten producer of any owner, for a checkpoint."""
        return max(self.forgotten_ms, *self._forgotten_of.values(), -1)

    def has_key(self, text: str, stored_ms: int) -> bool:
        """Return whether the key `text` of a record stored at `stored_ms` (store time) or later is
        remembered.
        """
        digest, _ = parse_key(text)
        locations = [slice_.locations[digest] for slice_ in self.slices if digest in slice_.locations]
        return any(LOCATION.unpack(location)[-1] >= stored_ms - self.ahead_ms for location in locations)

    def put_slice(self, number: int, rows: Sequence[bytes], *, complete: bool = True) -> None:
        """Restore a slice from the rows of its file, oldest first. Without rows, only reserve its number.

        An incomplete slice gets a new number, and its valid rows are saved again.
        """
        self._next_slice = max(self._next_slice, number + 1)
        if not complete:
            number, self._next_slice = self._next_slice, self._next_slice + 1
        slice_: KeySlice | None = None
        for row in rows:
            location = row[DIGEST_BYTES:-4]
            _, _, _, incarnation, _, stored_ms = LOCATION.unpack(location)
            if slice_ is None:
                slice_ = KeySlice(number, stored_ms)
            slice_.add(row[:DIGEST_BYTES], location, incarnation, stored_ms, NO_OWNER)
        if slice_ is not None:
            if complete:
                slice_.saved = len(rows)
            else:
                slice_.unsaved += b"".join(rows)
            self.slices.append(slice_)
            self._counts += slice_.counts
            self._keys += sum(slice_.counts.values())
