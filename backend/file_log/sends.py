"""The files that keep idempotency keys (backend/idempotency.py) across restarts, one for each slice of keys.

The records of the log name their identities, so recovery restores those after the checkpoint from the log.
The files hold the earlier ones, row by row. A checkpoint names the slices and the number of valid rows of
each, and is written when these rows are durable. Files that neither it nor the previous checkpoint names are
removed afterwards. Rows that are missing or damaged are restored from the log if it still has them; the valid
rows of such a file go to a new file. Sequences of producers are few and change constantly, so the checkpoint
itself holds them (`encode_sends`).

The functions at the end restore the identities while the log is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from backend.file_log.core import names
from backend.file_log.core.layout import RECORD_BYTES, Frame, Record, RecordKind
from backend.file_log.core.scan import Bad
from backend.file_log.segments import SegmentSet
from backend.file_log.storage import Storage, is_full
from backend.idempotency import ROW_BYTES, KeySlice, ProducerSequences, StoredSends, is_valid_row
from ddmq_common.errors import DamagedError
from ddmq_common.send_identity import IDENTITY, NO_OWNER, is_key

log = logging.getLogger(__name__)
SliceRow = tuple[int, int, int]  # number, rows, time of the last one on the clock of StoredSends
ProducerRow = tuple[str, int, int, dict[int, bytes]]


class SavedSends(msgspec.Struct, array_like=True):
    """The sends as a checkpoint stores them. `owners`: of the producers, in their order; none: unknown."""

    slices: list[SliceRow]
    producers: list[ProducerRow]
    forgotten_ms: int = -1
    ahead_ms: int = 0
    owners: list[str] = []


_decode: Any = msgspec.msgpack.Decoder(SavedSends).decode
_encode: Any = msgspec.msgpack.Encoder().encode
OnDamage = Callable[[str, int, int, str], None]  # damage: kind of file, position, length, description


class SliceRows(NamedTuple):
    """Rows to append to the file of a slice, from row number `at` on."""

    slice: KeySlice
    at: int
    rows: bytes


def encode_sends(sends: StoredSends) -> bytes:
    """Encode the sends for a checkpoint; b"" if there are none."""
    slices = [
        (item.number, item.saved + len(item.unsaved) // ROW_BYTES, item.last_ms) for item in sends.slices
    ]
    producers = [item.encoded or _encode_producer(name, item) for name, item in sends.producers.items()]
    if not slices and not producers:
        return b""
    owners = [item.owner for item in sends.producers.values()]
    data: bytes = _encode((slices, producers, sends.saved_forgotten_ms, sends.ahead_ms, owners))
    return data


def _encode_producer(name: str, producer: ProducerSequences) -> object:
    """Encode a producer and cache the result: most producers are idle between two checkpoints."""
    producer.encoded = msgspec.Raw(_encode((name, producer.below, producer.active_ms, producer.locations)))
    return producer.encoded


def decode_sends(data: bytes, sends: StoredSends) -> list[SliceRow]:
    """Decode the sends of a checkpoint: restore its producers in `sends`, and return the slices to load.

    Raises DamagedError.
    """
    try:
        saved: SavedSends = _decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedError(f"sends in a checkpoint: {error}") from error
    producers = saved.producers
    owners = saved.owners if len(saved.owners) == len(producers) else [NO_OWNER] * len(producers)
    for (name, below, active_ms, locations), owner in zip(producers, owners, strict=True):
        sends.put_producer(name, ProducerSequences(below, active_ms, locations, owner))
    sends.forgotten_ms, sends.ahead_ms = saved.forgotten_ms, saved.ahead_ms
    return saved.slices


class SendFiles:
    """The files of idempotency keys of one directory.

    All methods except `list_unsaved` and `drop_saved` block.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._folder = f"{directory}/{names.SENDS}"
        self._folder_exists = False
        self._named_files: set[str] | None = (
            None  # the files of the last saved checkpoint; None before the first one of this process
        )

    def load(self, sends: StoredSends, slices: Sequence[SliceRow], now_ms: int, on_damage: OnDamage) -> bool:
        """Load the rows that a checkpoint names; report damaged ones to `on_damage` and then return False."""
        complete = True
        for number, _, _ in slices:
            sends.put_slice(number, ())
        for number, rows, last_ms in slices:
            if last_ms >= now_ms - sends.window_ms:
                valid, why = self._valid_rows(number, rows)
                lost = rows - len(valid)
                if lost:
                    complete = False
                    what = f"{lost} of {rows} idempotency keys in {names.slice_name(number)}: {why}"
                    on_damage(names.SENDS, number, lost * ROW_BYTES, what)
                sends.put_slice(number, valid, complete=not lost)
        return complete

    def _valid_rows(self, number: int, rows: int) -> tuple[list[bytes], str]:
        """Return the valid rows of a slice's file, and why others are not valid."""
        data, why = self._read(number)
        available = len(data) // ROW_BYTES
        candidates = [data[at * ROW_BYTES : (at + 1) * ROW_BYTES] for at in range(min(rows, available))]
        if not why and available < rows:
            why = f"the file has {len(data)} bytes, {rows * ROW_BYTES} are expected"
        return [row for row in candidates if is_valid_row(row)], why or "their checksums are wrong"

    def _read(self, number: int) -> tuple[bytes, str]:
        """Return the readable bytes of a slice's file, and why there are none."""
        try:
            file = self._storage.open(f"{self._folder}/{names.slice_name(number)}")
        except OSError as error:
            return b"", str(error)
        try:
            return file.salvage(file.size(), 0), ""
        finally:
            file.close()

    def list_unsaved(self, sends: StoredSends) -> tuple[list[SliceRows], set[str]]:
        """Return the rows to write now, and the names of all files after that. Runs on the hub."""
        chunks = [
            SliceRows(slice_, slice_.saved, bytes(slice_.unsaved))
            for slice_ in sends.slices
            if slice_.unsaved
        ]
        return chunks, {names.slice_name(slice_.number) for slice_ in sends.slices}

    def write(self, chunks: Sequence[SliceRows]) -> Sequence[SliceRows]:
        """Write rows to their files and return the durable ones. There are none if the disk is full.

        Raises other OSErrors. A checkpoint must not wait for the rows, because segments can be deleted, and
        space freed, only after it is saved. Unwritten rows stay in memory for the next checkpoint; a restart
        before that restores them from the log.
        """
        try:
            if chunks:
                self._make_folder()
            for chunk in chunks:
                self._write(chunk)
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("idempotency keys are not written, the disk is full; the next checkpoint will retry")
            return ()
        if any(not chunk.at for chunk in chunks):
            self._storage.sync_folder(self._folder)
        return chunks

    def _make_folder(self) -> None:
        if not self._folder_exists:
            self._storage.make_folder(self._folder)
            self._storage.sync_folder(self._folder.rpartition("/")[0])
            self._folder_exists = True

    def _write(self, chunk: SliceRows) -> None:
        file = self._storage.open(f"{self._folder}/{names.slice_name(chunk.slice.number)}", write=True)
        try:
            file.pwrite(chunk.rows, chunk.at * ROW_BYTES)
            file.sync_all()
        except OSError as error:
            if is_full(error):
                file.truncate(chunk.at * ROW_BYTES)  # the checkpoint needs this space
            raise
        finally:
            file.close()

    def remove_unnamed(self, names_now: set[str]) -> None:
        """Remove the files that neither the checkpoint just saved nor the previous one names."""
        before, self._named_files = self._named_files, names_now
        if before is None:
            return
        with suppress(OSError):  # a file that stays too long only takes space
            for name in self._storage.list(self._folder):
                if name not in names_now and name not in before:
                    self._storage.remove(f"{self._folder}/{name}")

    def drop_saved(self, chunks: Sequence[SliceRows]) -> None:
        """Drop rows from memory after `write` returned them as durable. Runs on the hub."""
        for chunk in chunks:
            del chunk.slice.unsaved[: len(chunk.rows)]
            chunk.slice.saved += len(chunk.rows) // ROW_BYTES


Items = Callable[[int, int], Iterator[Frame | Record | Bad]]


def apply_identity(record: Record, sends: StoredSends) -> None:
    """Restore the identity of a stored message, if it has one. Raises DamagedError."""
    if len(record.meta) == RECORD_BYTES + record.topic_bytes + record.key_bytes:
        return
    identity = record.system.get(IDENTITY)
    if identity is None:
        return
    location = record.message_id, record.offset, record.queue_id, record.incarnation, record.stored_ms
    try:
        sends.restore(identity, *location)
    except ValueError as error:
        raise DamagedError(f"identity {identity[:100]!r} of a send: {error}") from error


def forget_before(sends: StoredSends, items: Iterator[Frame | Record | Bad]) -> None:
    """Record that identities from before the first frame of `items` are lost."""
    sends.forgotten_ms = next(
        (frame.stored_ms for frame in items if isinstance(frame, Frame)), sends.forgotten_ms
    )


def load_keys(
    sends: StoredSends,
    files: SendFiles,
    slices: Sequence[SliceRow],
    now_ms: int,
    on_damage: OnDamage,
    segments: SegmentSet,
    items: Items,
    end: int,
) -> None:
    """Load the keys of records below the log position `end`, from their files and, if missing there, from the
    log.

    `now_ms`: the newest store time.
    """
    if files.load(sends, slices, now_ms - sends.ahead_ms, on_damage):
        return
    added = 0
    for item in items(_window_start(segments, items, end, now_ms - sends.window_ms), end):
        if isinstance(item, Record) and _is_missing(item, sends):  # one at a time: there may be many
            apply_identity(item, sends)
            added += 1
    log.warning("restored %d idempotency keys of the last %d ms, which their files lack, from the log; others"
                " are lost: repeated sends with them are stored again", added, sends.window_ms)  # fmt: skip


def _window_start(segments: SegmentSet, items: Items, end: int, since_ms: int) -> int:
    """Return the start of the last segment below `end` whose first frame is older than `since_ms`.

    Returns the start of the first segment if there is no such segment.
    """
    for segment in reversed(segments.segments):
        within = items(segment.start, min(segment.end, end)) if segment.start < end else ()
        first = next((frame.stored_ms for frame in within if isinstance(frame, Frame)), since_ms)
        if first < since_ms:
            return segment.start
    return segments.starts[0] if segments.segments else end


def _is_missing(record: Record, sends: StoredSends) -> bool:
    """Return whether a record has a key that is not restored yet; a later send with the key counts
    instead.
    """
    identity = record.system.get(IDENTITY, "") if record.kind == RecordKind.MESSAGE else ""
    return is_key(identity) and not sends.has_key(identity, record.stored_ms)
