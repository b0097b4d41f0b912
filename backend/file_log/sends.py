"""The idempotency keys of the log (backend/idempotency.py) across restarts: a file for each slice of them.

The records of the log say who they are, so the tail brings back what was stored since the checkpoint; the
files hold what stood there before it, row after row. A checkpoint names the slices and how many rows of
each count; it is written when those are durable. What neither it nor the one before names goes afterwards.
What a file lacks, or holds damaged, is had from the log again, if it is there; its sound rows count, and go
to another file.
Sequences of producers are few and change all the time: they stand in the checkpoint itself
(`encode_sends`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from backend.file_log.core import names
from backend.file_log.storage import Storage, is_full
from backend.idempotency import ROW_BYTES, KeySlice, KnownSends, ProducerSequences, is_sound
from ddmq_common.errors import DamagedError

log = logging.getLogger(__name__)
SliceRow = tuple[int, int, int]  # number, rows, when the last one was stored (time of KnownSends)
ProducerRow = tuple[str, int, int, dict[int, bytes]]


class SavedSends(msgspec.Struct, array_like=True):
    """The sends as a checkpoint stores them."""

    slices: list[SliceRow]
    producers: list[ProducerRow]
    forgotten_ms: int = -1
    ahead_ms: int = 0


_decode: Any = msgspec.msgpack.Decoder(SavedSends).decode
_encode: Any = msgspec.msgpack.Encoder().encode
Found = Callable[[str, int, int, str], None]  # a damaged piece: file, position, length, what


class SliceRows(NamedTuple):
    """Rows to be written behind those that the file of a slice has."""

    slice: KeySlice
    at: int
    rows: bytes


def encode_sends(known: KnownSends) -> bytes:
    """Encode the sends for a checkpoint; b"" if there are none."""
    slices = [(one.number, one.saved + len(one.unsaved) // ROW_BYTES, one.last_ms) for one in known.slices]
    producers = [one.encoded or _encoded(name, one) for name, one in known.producers.items()]
    if not slices and not producers:
        return b""
    found: bytes = _encode((slices, producers, known.forgotten_ms, known.ahead_ms))
    return found


def _encoded(name: str, one: ProducerSequences) -> object:
    """Kept until it changes: most producers have nothing to do between two checkpoints."""
    one.encoded = msgspec.Raw(_encode((name, one.below, one.heard_ms, one.places)))
    return one.encoded


def decode_sends(data: bytes, known: KnownSends) -> list[SliceRow]:
    """The other way: producers go into `known`, the slices are to be loaded. Raises DamagedError."""
    try:
        saved: SavedSends = _decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedError(f"sends in a checkpoint: {error}") from error
    for name, below, heard_ms, places in saved.producers:
        known.put_producer(name, ProducerSequences(below, heard_ms, places))
    known.forgotten_ms, known.ahead_ms = saved.forgotten_ms, saved.ahead_ms
    return saved.slices


class SendFiles:
    """Of one directory. All but `take` and `written` block."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._folder = f"{directory}/{names.SENDS}"
        self._made = False
        self._named: set[str] | None = (
            None  # by the checkpoint that was saved last, None: by an older start's
        )

    def load(self, known: KnownSends, slices: Sequence[SliceRow], now_ms: int, found: Found) -> bool:
        """Load the rows that a checkpoint names; report damaged ones to `found` and then return False."""
        sound = True
        for number, _, _ in slices:
            known.put_slice(number, ())
        for number, rows, last_ms in slices:
            if last_ms >= now_ms - known.window_ms:
                good, why = self._sound_rows(number, rows)
                lost = rows - len(good)
                if lost:
                    sound = False
                    what = f"{lost} of {rows} idempotency keys in {names.slice_name(number)}: {why}"
                    found(names.SENDS, number, lost * ROW_BYTES, what)
                known.put_slice(number, good, whole=not lost)
        return sound

    def _sound_rows(self, number: int, rows: int) -> tuple[list[bytes], str]:
        """Return the valid rows, and why others are not valid."""
        data, why = self._read(number)
        found = len(data) // ROW_BYTES
        every = [data[at * ROW_BYTES : (at + 1) * ROW_BYTES] for at in range(min(rows, found))]
        if not why and found < rows:
            why = f"the file has {len(data)} bytes, {rows * ROW_BYTES} are wanted"
        return [row for row in every if is_sound(row)], why or "their checksums are wrong"

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

    def take(self, known: KnownSends) -> tuple[list[SliceRows], set[str]]:
        """Return the rows to write now, and the names of all files after that. Runs on the hub."""
        parts = [SliceRows(one, one.saved, bytes(one.unsaved)) for one in known.slices if one.unsaved]
        return parts, {names.slice_name(one.number) for one in known.slices}

    def write(self, parts: Sequence[SliceRows]) -> Sequence[SliceRows]:
        """Return those that are durable now: not all of them where the disk is full. Raises other OSErrors.

        A checkpoint is not to wait for them: only when it is saved may segments go, and space come. What is
        not written stays in memory for the next one; a start before that takes it from the log.
        """
        try:
            if parts:
                self._make()
            for part in parts:
                self._write(part)
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("idempotency keys are not written, the disk is full; the next checkpoint tries again")
            return ()
        if any(not part.at for part in parts):
            self._storage.sync_folder(self._folder)
        return parts

    def _make(self) -> None:
        if not self._made:
            self._storage.make_folder(self._folder)
            self._storage.sync_folder(self._folder.rpartition("/")[0])
            self._made = True

    def _write(self, part: SliceRows) -> None:
        file = self._storage.open(f"{self._folder}/{names.slice_name(part.slice.number)}", write=True)
        try:
            file.pwrite(part.rows, part.at * ROW_BYTES)
            file.sync_all()
        except OSError as error:
            if is_full(error):
                file.truncate(part.at * ROW_BYTES)  # the checkpoint needs what this has taken
            raise
        finally:
            file.close()

    def tidy(self, named: set[str]) -> None:
        """The checkpoint that was saved just now names these; the older one those before, and both may be
        read."""
        before, self._named = self._named, named
        if before is None:
            return
        with suppress(OSError):  # what stays too long takes space, no more
            for name in self._storage.list(self._folder):
                if name not in named and name not in before:
                    self._storage.remove(f"{self._folder}/{name}")

    def written(self, parts: Sequence[SliceRows]) -> None:
        """On the hub, after `write`: these are in their files."""
        for part in parts:
            del part.slice.unsaved[: len(part.rows)]
            part.slice.saved += len(part.rows) // ROW_BYTES
