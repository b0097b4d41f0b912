"""Which sends were stored lately: what makes a second send of the same message no second message. Pure.

A send says which one it is (ddmq_common/send_identity.py): by a key, remembered for the window after it was
stored, or by a producer's sequence, remembered until the producer has its answer. An engine asks `first`
before it stores a record and says `note` when it has given it an offset. What was noted is ahead of what is
durable: `keep` makes it count, `back_to` takes it back. The state is what the stored records say,
in their order, so that it can be had again from them (`restore`).

A topic that was deleted and made again is another topic: what was stored in the one before does not count.
Bounds: a topic may have as many keys as are free of `keys_max`: half of them when it is alone, a third each
when two take all they can, so that there is room for the next; and a SHARE-th of them in any case, as long as
there are no more than twice `keys_max`. More are refused.
PRODUCERS_MAX producers and SEQUENCES_ALL_MAX open sequences, SEQUENCES_MAX of one of them; above these who
has many forgets its oldest, else whoever was not heard of for longest is forgotten. What was forgotten before
its time is counted.

Its time is store time less `ahead_ms`: while the engine runs it goes by the monotonic clock (`start`,
`stamp`), so nothing gets older because somebody has set the wall clock forward.

Of producers that are forgotten nothing is left but `forgotten_ms`, when the last of them was heard of last.
What has been under way since before that, and of which nothing is known, is refused: it may be stored.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from struct import Struct

import google_crc32c

from backend.records import FirstStored
from ddmq_common.errors import BoundReachedError, CallerError, DdmqError
from ddmq_common.send_identity import DIGEST_BYTES, parse_key, parse_sequence

WINDOW_MS = 3_600_000
KEYS_MAX = 1_000_000
SHARE = 10_000  # every topic may have this part of all keys, whatever the others have
PRODUCERS_MAX = 100_000
SEQUENCES_MAX = 65_536
SEQUENCES_ALL_MAX = 262_144
ARRIVES_MS = 60_000  # by which a send may come later than it thinks; a SLICES-th of a shorter window
MANY = 16  # who has more than this part of all sequences has many
SLICE_KEYS = 65_536
SLICES = 8  # of time; forgetting goes by slice, so a key is known for up to an eighth of the window longer
# message id, offset, queue, incarnation, checksum of the body, when it was stored (epoch ms)
PLACE = Struct("<16sqiIIq")
ROW_BYTES = DIGEST_BYTES + PLACE.size + 4  # a key's digest and place, and their CRC-32C

Name = bytes | tuple[str, int]  # what tells a send from all others: a key's digest, or producer and sequence


def _parse(text: str) -> tuple[Name, int]:
    """Its name, and the checksum of the body or below what the producer has answers. Raises ValueError."""
    return parse_key(text) if text[:1] == "k" else parse_sequence(text)[:2]


def refusal_in(topic: str, error: DdmqError) -> DdmqError:
    """What `first` raised for a record of `topic`, with its name where it finds no room."""
    return BoundReachedError(f"topic {topic}: {error}") if isinstance(error, BoundReachedError) else error


def row_of(key: bytes) -> bytes:
    """A digest and a place as a file holds them."""
    crc: int = google_crc32c.value(key)
    return key + crc.to_bytes(4, "little")


def is_sound(row: bytes) -> bool:
    """Whether it is a whole row as it was written."""
    return len(row) == ROW_BYTES and row_of(row[:-4]) == row


class ProducerSequences:
    """Of one producer: what was stored of those that it may still ask about, by sequence. `encoded`: of
    whoever saves it, until it changes."""

    __slots__ = ("below", "encoded", "heard_ms", "places")

    def __init__(self, below: int = 0, heard_ms: int = 0, places: Mapping[int, bytes] | None = None) -> None:
        self.below = below  # nothing is known of lower ones, and nobody may ask
        self.heard_ms = heard_ms
        self.encoded: object | None = None
        self.places: dict[int, bytes] = dict(places or {})

    def raise_below(self, below: int) -> int:
        """Forget lower ones; how many that were. Those that lie far apart go in the order in which they were
        stored, some of them later: nobody's numbers cost others much."""
        places, before = self.places, len(self.places)
        if below - self.below <= before:
            for sequence in range(self.below, below):
                places.pop(sequence, None)
        else:
            for sequence in list(takewhile(below.__gt__, places)):  # one pass: a new one starts at the front
                del places[sequence]
        self.below = max(self.below, below)
        return before - len(places)

    def forget_oldest(self) -> None:
        """The one that was stored first, and all that are lower."""
        oldest = next(iter(self.places))
        del self.places[oldest]
        self.below = max(self.below, oldest + 1)


class KeySlice:
    """Keys that were stored one after the other. `number` ascends; `unsaved`: rows that no file has yet,
    behind the `saved` ones."""

    __slots__ = ("counts", "first_ms", "last_ms", "number", "places", "saved", "unsaved")

    def __init__(self, number: int, first_ms: int) -> None:
        self.number = number
        self.first_ms = self.last_ms = first_ms
        self.places: dict[bytes, bytes] = {}
        self.counts: Counter[int] = Counter()  # keys by incarnation of their topic
        self.saved = 0
        self.unsaved = bytearray()

    def add(self, digest: bytes, place: bytes, incarnation: int, stored_ms: int) -> None:
        self.places[digest] = place
        self.counts[incarnation] += 1
        self.last_ms = max(self.last_ms, stored_ms)


class KnownSends:
    """See the module's text. All times are its own (ms), but for those of `restore`."""

    def __init__(self, window_ms: int = WINDOW_MS, keys_max: int = KEYS_MAX, *, saving: bool = False) -> None:
        """`saving`: slices keep their rows until they are told that these are saved."""
        self._saving = saving
        self.bounds(window_ms, keys_max)
        self.slices: deque[KeySlice] = deque()
        self.producers: OrderedDict[str, ProducerSequences] = OrderedDict()  # heard of last: last
        self.ahead_ms = 0  # of its time the store times are: so far the wall clock was set forward
        self._base_ms = 0.0  # its time when the monotonic clock was at 0
        self.forgotten = 0  # before their time
        self.forgotten_ms = -1  # whatever producer is forgotten was heard of then at the latest
        self._counts: Counter[int] = Counter()
        self._keys = self._sequences = 0
        self._next_slice = 0
        self._asked: tuple[str, Name, int] = ("", b"", 0)  # last, as it was parsed: `note` follows `first`
        self._ahead: dict[Name, bytes] = {}
        # What was noted and does not count yet: name, the rest of its text, place, incarnation, stored at.
        self.notes: list[tuple[Name, int, bytes, int, int]] = []
        self._noted: Counter[int] = Counter()  # keys among the notes, by incarnation
        self._noted_keys = 0  # all of these

    def bounds(self, window_ms: int, keys_max: int) -> None:
        """Others from now on."""
        self.window_ms, self.keys_max = window_ms, keys_max
        self._all_max = keys_max + keys_max // SHARE * SHARE  # with shares where nothing is free

    def start(self, stored_ms: int, now_s: float) -> None:
        """All is restored; what is stored now has the store time `stored_ms`, at `now_s` (monotonic)."""
        self._base_ms = stored_ms - self.ahead_ms - now_s * 1000

    def stamp(self, stored_ms: int, now_s: float) -> int:
        """Its time when records are stored with `stored_ms`, at `now_s` (monotonic)."""
        time_ms = round(self._base_ms + now_s * 1000)
        self.ahead_ms = stored_ms - time_ms
        return time_ms

    # --- before a record is stored, and when it has its offset

    def first(self, text: str, incarnation: int, now_ms: int) -> FirstStored | None:
        """What was stored as the send `text` before, None: nothing. Raises CallerError, BoundReachedError."""
        try:
            if text[:1] == "k":
                digest, checksum = parse_key(text)
                self._asked = text, digest, checksum
                return self._first_of_key(digest, checksum, incarnation, now_ms)
            name, below, under_way_ms = parse_sequence(text)
        except ValueError as error:
            raise CallerError(f"identity {text[:100]!r} of a send: {error}") from error
        self._asked = text, name, below
        place = self._place_of(name)
        if place is None:
            if under_way_ms is not None:
                self._check_known(name, now_ms - under_way_ms)
            return None
        message_id, offset, queue_id, found, _, _ = PLACE.unpack(place)
        return FirstStored(message_id, queue_id, offset, False) if found == incarnation else None

    def _first_of_key(
        self, digest: bytes, checksum: int, incarnation: int, now_ms: int
    ) -> FirstStored | None:
        place = self._ahead.get(digest)
        if place is None:
            for one in reversed(self.slices):
                place = one.places.get(digest)
                if place is not None:
                    break
        if place is not None:
            message_id, offset, queue_id, found, sum_before, stored_ms = PLACE.unpack(place)
            if found == incarnation and stored_ms >= now_ms - self.window_ms:
                return FirstStored(message_id, queue_id, offset, checksum != sum_before)
        self._expire(now_ms)
        if 2 * (self._keys + len(self.notes)) >= self.keys_max:
            self._check_room(incarnation)
        return None

    def _check_room(self, incarnation: int) -> None:
        keys = self._keys + self._noted_keys
        own = self._counts[incarnation] + self._noted[incarnation]
        free, share = max(0, self.keys_max - keys), self.keys_max // SHARE
        if (own >= free and own >= share) or keys >= self._all_max:
            raise BoundReachedError(
                f"{own} of its idempotency keys are known, and {keys} of all topics; allowed: as many as are"
                f" free, {free} of {self.keys_max} (idempotency_keys_max), and {share} in any case; a key is"
                f" known for {self.window_ms} ms: send it again later, or have the bound raised"
            )

    def _place_of(self, name: tuple[str, int]) -> bytes | None:
        place, (producer, sequence) = self._ahead.get(name), name
        if place is None:
            known = self.producers.get(producer)
            if known is not None:
                if sequence < known.below:
                    raise CallerError(
                        f"sequence {sequence} of producer {producer}: below {known.below} nothing is known"
                    )
                place = known.places.get(sequence)
        return place

    def _check_known(self, name: tuple[str, int], since_ms: int) -> None:
        """Whether what has been under way since then is certainly not stored. Raises CallerError."""
        if since_ms - min(ARRIVES_MS, self.window_ms // SLICES) <= self.forgotten_ms:
            raise CallerError(
                f"sequence {name[1]} of producer {name[0]} is sent again, and it is not known any more"
                " whether it was stored: producers that were heard of as long ago are forgotten"
            )

    def note(
        self, text: str, message_id: bytes, offset: int, queue_id: int, incarnation: int, stored_ms: int
    ) -> None:
        """The send `text`, of which `first` knew nothing, has this place."""
        asked, name, rest = self._asked
        if asked != text:
            name, rest = _parse(text)
        checksum = 0
        if isinstance(name, bytes):
            checksum = rest
            self._noted[incarnation] += 1
            self._noted_keys += 1
        place = PLACE.pack(message_id, offset, queue_id, incarnation, checksum, stored_ms)
        self._ahead[name] = place
        self.notes.append((name, rest, place, incarnation, stored_ms))

    def back_to(self, mark: int) -> None:
        """Take back all notes but the first `mark`."""
        del self.notes[mark:]
        self._ahead = {noted[0]: noted[2] for noted in self.notes}
        self._noted = Counter([noted[3] for noted in self.notes if isinstance(noted[0], bytes)])
        self._noted_keys = self._noted.total()

    def keep(self) -> None:
        """All that was noted is stored."""
        last, known = (
            None,
            ProducerSequences(),
        )  # of the sequence before: a batch has them one behind the other
        for name, rest, place, incarnation, stored_ms in self.notes:
            if isinstance(name, bytes):
                self._keep_key(name, place, incarnation, stored_ms)
                continue
            producer, sequence = name
            told, places = (producer, rest, stored_ms), known.places
            full = len(places) >= SEQUENCES_MAX or self._sequences >= SEQUENCES_ALL_MAX
            if full or told != last or sequence < known.below:
                self._keep_sequence(producer, sequence, rest, place, stored_ms)
                last, known = told, self.producers[producer]
            else:
                self._sequences += sequence not in places
                places[sequence] = place
        self._forget_producers(self.notes[-1][4] if self.notes else 0)
        self.notes, self._ahead = [], {}
        self._noted.clear()
        self._noted_keys = 0

    def restore(
        self, text: str, message_id: bytes, offset: int, queue_id: int, incarnation: int, stored_ms: int
    ) -> None:
        """A stored record said this, in the order of the log. Raises ValueError for what is no identity."""
        self.note(text, message_id, offset, queue_id, incarnation, stored_ms - self.ahead_ms)
        self.keep()

    # --- what counts

    def _keep_key(self, digest: bytes, place: bytes, incarnation: int, stored_ms: int) -> None:
        last = self.slices[-1] if self.slices else None
        if (
            last is None
            or len(last.places) >= SLICE_KEYS
            or stored_ms >= last.first_ms + self.window_ms // SLICES
        ):
            self._expire(stored_ms)
            last = KeySlice(self._next_slice, stored_ms)
            self._next_slice += 1
            self.slices.append(last)
        last.add(digest, place, incarnation, stored_ms)
        if self._saving:
            last.unsaved += row_of(digest + place)
        self._counts[incarnation] += 1
        self._keys += 1
        if self._keys > self._all_max:  # commits were not asked for room
            self._expire(stored_ms)
            while self._keys > self._all_max and len(self.slices) > 1:
                self.forgotten += self._forget_slice()

    def _expire(self, now_ms: int) -> None:
        """Slices all of whose keys are older than the window go."""
        while self.slices and self.slices[0].last_ms < now_ms - self.window_ms:
            self._forget_slice()

    def _forget_slice(self) -> int:
        """The oldest; how many keys that were."""
        gone = self.slices.popleft()
        count = sum(gone.counts.values())
        self._keys -= count
        self._counts -= gone.counts
        return count

    def _keep_sequence(self, producer: str, sequence: int, below: int, place: bytes, stored_ms: int) -> None:
        known = self.producers.get(producer)
        if known is None:
            known = self.producers[producer] = ProducerSequences()
        else:
            self.producers.move_to_end(producer)
        known.encoded = None
        if stored_ms > known.heard_ms:
            known.heard_ms = stored_ms
        if below > known.below:
            self._sequences -= known.raise_below(below)
        if sequence >= known.below:
            places = known.places
            self._sequences += sequence not in places
            places[sequence] = place
            if len(places) > SEQUENCES_MAX or self._sequences > SEQUENCES_ALL_MAX:
                self._forget_own(known)

    def _forget_own(self, known: ProducerSequences) -> None:
        """Who has many forgets its own, from its oldest on."""
        while len(known.places) > SEQUENCES_MAX or (
            self._sequences > SEQUENCES_ALL_MAX and len(known.places) > SEQUENCES_ALL_MAX // MANY
        ):
            known.forget_oldest()
            self._sequences -= 1
            self.forgotten += 1

    def _forget_producers(self, now_ms: int) -> None:
        """Whoever was not heard of for longest goes."""
        while len(self.producers) > 1 and self._over(now_ms):
            _, oldest = self.producers.popitem(last=False)
            self._sequences -= len(oldest.places)
            self.forgotten_ms = max(self.forgotten_ms, oldest.heard_ms)
            if oldest.heard_ms >= now_ms - self.window_ms:
                self.forgotten += 1 + len(oldest.places)

    def _over(self, now_ms: int) -> bool:
        if len(self.producers) > PRODUCERS_MAX or self._sequences > SEQUENCES_ALL_MAX:
            return True
        return next(iter(self.producers.values())).heard_ms < now_ms - self.window_ms

    # --- across restarts

    def put_producer(self, name: str, known: ProducerSequences) -> None:
        """As a checkpoint holds it; those heard of last come last."""
        self.producers[name] = known
        self._sequences += len(known.places)

    def has_key(self, text: str, stored_ms: int) -> bool:
        """Whether a record with this key that was stored then (store time), or later, is known."""
        digest, _ = parse_key(text)
        places = [one.places[digest] for one in self.slices if digest in one.places]
        return any(PLACE.unpack(place)[-1] >= stored_ms - self.ahead_ms for place in places)

    def put_slice(self, number: int, rows: Sequence[bytes], *, whole: bool = True) -> None:
        """A slice as its file holds it, oldest first; what is left of one that is not whole is another, to be
        saved. Without rows: the number is taken."""
        self._next_slice = max(self._next_slice, number + 1)
        if not whole:
            number, self._next_slice = self._next_slice, self._next_slice + 1
        made: KeySlice | None = None
        for row in rows:
            place = row[DIGEST_BYTES:-4]
            _, _, _, incarnation, _, stored_ms = PLACE.unpack(place)
            if made is None:
                made = KeySlice(number, stored_ms)
            made.add(row[:DIGEST_BYTES], place, incarnation, stored_ms)
        if made is not None:
            if whole:
                made.saved = len(rows)
            else:
                made.unsaved += b"".join(rows)
            self.slices.append(made)
            self._counts += made.counts
            self._keys += sum(made.counts.values())
