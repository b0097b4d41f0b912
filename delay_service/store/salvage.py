"""Salvages a damaged store: everything readable goes into a new copy, and lost messages are listed.

The damaged copy stays beside the new one, under its name and `.damaged`; it is never changed. From a
database whose blocks, tables, log or list of tables are damaged:
* pending messages, also those put aside, and the states of ids are copied, block by damaged block left out;
* a state that was lost comes back from its message;
* a message that was lost is named by its state: it is listed in `lost-ids.txt` (uuid, due time, offset, one
  a line) and its state is forgotten, so that its command, read again from the inner topic, counts as new;
* counts, and when to forget an id, are made anew;
* named values of others are forgotten: whoever noted there how far the inner topic was taken in begins again
  at its first command. So what was lost, listed or not (a state may be lost together with its message), comes
  back as far as the log still has it, and what is there is recognised by its id.

StoreDamage in nothing but the write-ahead log (or what power loss left behind its last sync) is simpler:
everything from there on is left out, because later changes may rest on lost ones, and the store is as it was
at an earlier moment, named values included. The whole log is kept in a folder `damaged-log-N` in the copy.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddmq_common.delays.command import read_sender
from ddmq_common.errors import DamagedError, StorageError
from ddmq_common.rocks.damage import files_after_gap
from ddmq_common.rocks.database import Pair, Rocks, RocksOptions, WalRecovery, WriteBatch, repair_folder
from delay_service.store import layout
from delay_service.store.copies import DAMAGED, MARK_FILE, clone_files, sync_path
from delay_service.store.layout import decode_pending, decode_state, encode_count, encode_state
from delay_service.store.port import IdKind, IdState, Pending, weigh_message

LOST_FILE = "lost-ids.txt"
_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class StoreDamage:
    """The damage that opening a store found.

    `lost`: the number of messages that `lost_file` lists. `log_truncated`: only the end of the write-ahead
    log was damaged; it is kept in the folder `lost_file`.
    """

    reason: str
    lost: int
    lost_file: Path
    log_truncated: bool = False

    def __str__(self) -> str:
        if self.log_truncated:
            return (
                f"{self.reason}; the end of its write-ahead log is left out ({self.lost_file} keeps it), and"
                " commands that were in it are taken in again"
            )
        return (
            f"{self.reason}; {self.lost} messages could not be read ({self.lost_file} lists them), the old"
            f" files are kept as *{DAMAGED}, and commands that the log still has are taken in again"
        )

    def moved_to(self, folder: Path) -> StoreDamage:
        """Return the same damage for a copy that was moved to `folder`."""
        return StoreDamage(self.reason, self.lost, folder / self.lost_file.name, self.log_truncated)


def mark_damaged(folder: Path, reason: str) -> None:
    """Mark a copy of the store as damaged, so that it is salvaged when it is opened next. Never raises."""
    try:
        (folder / MARK_FILE).write_text(reason, encoding="utf-8")
        sync_path(folder / MARK_FILE)
        sync_path(folder)
    except OSError:
        pass


def damage_mark(folder: Path) -> str | None:
    """Return why a copy is marked as damaged; None if it is not."""
    try:
        return (folder / MARK_FILE).read_text(encoding="utf-8") or "unknown"
    except FileNotFoundError:
        return None


def _new_log_folder(copy: Path) -> Path:
    number = 1
    while (log_folder := copy / f"damaged-log-{number}").exists():
        number += 1
    log_folder.mkdir()
    return log_folder


def _log_files(folder: Path) -> dict[str, int]:
    """Return the non-empty write-ahead log files of a folder: name → size."""
    sizes = {file.name: file.stat().st_size for file in folder.glob("*.log")}
    return {name: size for name, size in sizes.items() if size}


def set_aside_log_gap(copy: Path) -> tuple[int, Path] | None:
    """Move the write-ahead log files after a gap into a folder; return how many and the folder, or None.

    The newest is moved first, so that an interrupted move leaves a gap for the next time.
    """
    behind = files_after_gap(copy)
    if not behind:
        return None
    log_folder = _new_log_folder(copy)
    for file in reversed(behind):
        file.rename(log_folder / file.name)
    sync_path(log_folder)
    sync_path(copy)
    return len(behind), log_folder


def back_up_log(copy: Path, reason: str) -> StoreDamage:
    """Copy the write-ahead log before its damaged end is dropped, only once even if opening is retried."""
    log_files = _log_files(copy)
    for log_folder in copy.glob("damaged-log-*"):
        if _log_files(log_folder) == log_files:
            return StoreDamage(reason, 0, log_folder, log_truncated=True)
    log_folder = _new_log_folder(copy)
    try:
        for name in log_files:
            shutil.copyfile(copy / name, log_folder / name)
    except OSError:
        shutil.rmtree(log_folder, ignore_errors=True)  # it will be tried again
        raise
    return StoreDamage(reason, 0, log_folder, log_truncated=True)


def salvage_store(source: Path, target: Path, reason: str, options: RocksOptions) -> StoreDamage:
    """Copy all readable data of `source` into the empty folder `target`; return the damage."""
    work = target / "work"
    work.mkdir()
    clone_files(source, work)
    (work / MARK_FILE).unlink(missing_ok=True)
    old = _open_at_any_price(work, options)
    try:
        new = Rocks(target, options)
        try:
            lost = _copy(old, new, target / LOST_FILE)
            new.sync()
        finally:
            new.close()
    finally:
        with suppress(StorageError):  # it is thrown away; its damage may show once more here
            old.close()
    shutil.rmtree(work)
    return StoreDamage(reason, lost, target / LOST_FILE)


def _open_at_any_price(folder: Path, options: RocksOptions) -> Rocks:
    try:
        return Rocks(folder, options, WalRecovery.PREFIX)
    except DamagedError:
        repair_folder(folder)
        return Rocks(folder, options, WalRecovery.PREFIX)


def _copy(old: Rocks, new: Rocks, lost_file: Path) -> int:
    writer = _Batches(new)
    for prefix in (layout.DUE, layout.ASIDE, layout.ID):
        for key, value in read_undamaged(old, prefix, layout.range_end(prefix)):
            if _is_readable(prefix, value):
                writer.put(key, value)
    writer.flush()
    with open(lost_file, "w", encoding="ascii") as file:
        lost = 0
        for uuid, state in _read_states(new):
            if not _has_message(old, new, state, writer):
                file.write(f"{uuid.hex()} {state.at_ms} {state.offset}\n")
                writer.batch.delete(layout.ID + uuid)
                lost += 1
    writer.flush()
    _count_and_complete(new, writer)
    sync_path(lost_file)
    return lost


def read_undamaged(database: Rocks, start: bytes, end: bytes) -> Iterator[Pair]:
    """Yield all pairs in [start, end) that are not in damaged blocks."""
    at: bytes | None = start
    while at is not None:
        last = at
        try:
            for chunk in database.read_chunks(at, end):
                yield from chunk
                last = chunk[-1][0]
        except DamagedError:
            at = database.salvage_from(last)
            if at is None or at >= end:
                return
        else:
            return


def _is_readable(prefix: bytes, value: bytes) -> bool:
    try:
        if prefix in (layout.DUE, layout.ASIDE):
            decode_pending(value)
        elif prefix == layout.ID:
            decode_state(value)
    except DamagedError:
        return False
    return True


def _read_states(database: Rocks) -> Iterator[tuple[bytes, IdState]]:
    for chunk in database.read_chunks(layout.ID, layout.ID_END):
        for key, value in chunk:
            yield key[1:], decode_state(value)


def _has_message(old: Rocks, new: Rocks, state: IdState, writer: _Batches) -> bool:
    """Return whether the message of a state exists in the new store; copy it from the old one if
    necessary."""
    if state.kind is not IdKind.PENDING:
        return True
    key = layout.due_key(state.at_ms, state.offset)
    if new.get(key) is not None or _is_deferred(new, state):
        return True
    try:
        value = old.get(key)
    except DamagedError:
        return False
    if value is None or not _is_readable(layout.DUE, value):
        return False
    writer.put(key, value)
    return True


def _is_deferred(database: Rocks, state: IdState) -> bool:
    """Return whether a message is deferred: due, but put aside until its topic is available.

    Searches for the message of `state` in each topic that has deferred messages.
    """
    at = layout.ASIDE
    while (key := database.first_key(at, layout.ASIDE_END)) is not None:
        topic = key[1 : key.index(b"\0")].decode()
        if database.get(layout.aside_key(topic, state.at_ms, state.offset)) is not None:
            return True
        at = layout.range_end(layout.aside_prefix(topic))
    return False


def _count_and_complete(new: Rocks, writer: _Batches) -> None:
    """Rebuild counters, add missing id states, and re-create expiry keys."""
    pending, aside, sizes, senders = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for prefix, counter in ((layout.DUE, None), (layout.ASIDE, aside)):
        for key, message in _read_messages(new, prefix):
            stored_state = new.get(layout.ID + message.uuid)
            if stored_state is not None and _has_moved(new, message, decode_state(stored_state)):
                writer.batch.delete(key)
                continue
            pending[message.topic] += 1
            sizes[message.topic] += weigh_message(message)
            senders[read_sender(message.command)] += 1
            if counter is not None:
                counter[message.topic] += 1
            if stored_state is None:
                state = IdState(IdKind.PENDING, message.due_ms, message.offset)
                writer.put(layout.ID + message.uuid, encode_state(state))
    for topic, count in pending.items():
        writer.put(layout.COUNT + topic.encode(), encode_count(count, aside[topic], sizes[topic]))
    del senders[""]
    for sender, count in senders.items():
        writer.put(layout.SENDER + sender.encode(), layout.encode_sender_count(count))
    writer.flush()
    for uuid, state in _read_states(new):
        if state.forget_ms > 0:
            writer.put(layout.forget_key(state.forget_ms, uuid), b"")
    writer.flush()


def _has_moved(database: Rocks, message: Pending, state: IdState) -> bool:
    """Return whether a message waits at another time, because its deletion here was lost with a damaged
    block.
    """
    if state.kind is not IdKind.PENDING or state.offset != message.offset or state.at_ms == message.due_ms:
        return False
    return database.get(layout.due_key(state.at_ms, state.offset)) is not None or _is_deferred(
        database, state
    )


def _read_messages(database: Rocks, prefix: bytes) -> Iterator[tuple[bytes, Pending]]:
    for chunk in database.read_chunks(prefix, layout.range_end(prefix)):
        for key, value in chunk:
            yield key, decode_pending(value)


class _Batches:
    """Writes pairs to a database in batches."""

    def __init__(self, database: Rocks) -> None:
        self._db = database
        self.batch = WriteBatch()

    def put(self, key: bytes, value: bytes) -> None:
        self.batch.put(key, value)
        if len(self.batch) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        self._db.write(self.batch)
        self.batch = WriteBatch()
