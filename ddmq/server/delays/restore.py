"""Restores a backup of pending messages, while no server runs over the directory.

There are two ways, chosen by the content of the directory:
* It has the log, but no delay stores: the copies become the stores. Messages that fired or were cancelled
  after the backup, according to the log, do not fire again; commands that came after the backup are read from
  the log, as far as it still has them.
* It is empty: a new log is created, and every pending message becomes a command in it, with its own id and
  its occurrence in its series. The new log has nothing else: no outcomes of earlier messages, no progress of
  consumers and no other topics.

Anything else is refused: a restore never mixes with existing stores, nor with a log that the backup
does not belong to.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from backend.file_log import open_shared
from backend.file_log.lock import DirectoryInUseError, DirectoryLock
from backend.file_log.options import FileLogOptions
from backend.port import Backend
from backend.records import AppendStatus, Bounds, Durability, NewRecord, QueueRef, TopicInfo
from ddmq.server.config import BACKUPS
from ddmq.server.delays.backup import MANIFEST
from ddmq_common.clock import Clock, SystemClock
from ddmq_common.delays.command import COMMAND_PROPERTY, decode_command, encode_command
from ddmq_common.errors import CallerError, DdmqError, RemoteError
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_TOPIC, QUEUES_DEFAULT
from ddmq_common.private_files import make_private
from delay_service.core.decider import INGESTED
from delay_service.core.held_messages import is_held_ms, plain_due_ms
from delay_service.ingest import ingested_offset
from delay_service.store.opening import open_store, restore
from delay_service.store.port import DelayStore, DueKey, Pending, Scan

PAGE = 500
PAGE_BYTES = 4 << 20
LOOKED_AT_MAX = 2_000  # messages of a shard whose commands are looked for
WAIT_S = 30.0
FOREVER_MS = 1 << 62
WORK = "delay-restore"  # the stores, while a new log is made of them


class Restored(NamedTuple):
    """The result of a restore. `way`: "stores" or "new log"; `messages`: how many were sent as commands, None
    for stores. `damaged`: the shards of which some data could not be read; the log lists what is missing."""

    way: str
    shards: int
    messages: int | None
    damaged: tuple[int, ...] = ()


class Backup(NamedTuple):
    """A complete backup on disk: its folder and its shards."""

    folder: Path
    shards: tuple[int, ...]


def read_backup(folder: Path) -> Backup:
    """Return the backup in a folder. Raises CallerError if the folder has no complete backup."""
    try:
        facts: Any = msgspec.json.decode((folder / MANIFEST).read_bytes())
        version = facts["format"]
        shards = tuple(int(number) for number in facts["shards"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise CallerError(f"{folder} is no whole backup: {MANIFEST} cannot be read ({error})") from error
    if version != 1:
        raise CallerError(f"{folder} has format {version}; this program knows 1: use the newer one")
    return Backup(folder, shards)


def restore_backup(folder: Path, data_dir: Path, delay_dir: Path | None, log: FileLogOptions) -> Restored:
    """Restore the backup in `folder` into `data_dir`. Raises DdmqError; then nothing in `data_dir` may be
    used.

    `delay_dir`: the folder of the stores, if the configuration has them elsewhere than in `data_dir`/delay.
    """
    backup = read_backup(folder)
    _refuse_beside_a_server(data_dir)
    stores = delay_dir or data_dir / "delay"
    if _has_entries(stores):
        raise CallerError(
            f"{stores} is not empty; a restore needs a directory without delay stores: put away what is"
            " there, also what a restore that was cut short has left"
        )
    if (data_dir / WORK).exists():
        raise CallerError(f"a restore into {data_dir} was cut short: what is there is a part; empty it first")
    if (data_dir / "commitlog").is_dir():
        damaged = _as_stores(backup, data_dir, stores, log)
        return Restored("stores", len(backup.shards), None, damaged)
    if any(entry.name != BACKUPS for entry in _list_entries(data_dir)):
        raise CallerError(f"{data_dir} is not empty and has no log; choose an empty directory, or the log's")
    count, damaged = _into_new_log(backup, data_dir, log)
    return Restored("new log", len(backup.shards), count, damaged)


def _refuse_beside_a_server(data_dir: Path) -> None:
    """Raise an error if a server uses the directory: its delay service would take the restored stores for
    outdated copies of its own, and delete them."""
    if not (data_dir / "commitlog").is_dir():
        return
    try:
        DirectoryLock.acquire(data_dir, SystemClock().wall_ms()).release()
    except DirectoryInUseError as error:
        raise CallerError(f"a server runs over {data_dir}; stop it for the restore ({error})") from error


def _as_stores(backup: Backup, data_dir: Path, stores: Path, log: FileLogOptions) -> tuple[int, ...]:
    """Restore all stores and return the damaged shards. If one fails, restore none: the folder is emptied
    again."""
    try:
        for number in backup.shards:
            restore(backup.folder / str(number), stores, number)
        return _check_log(backup, data_dir, stores, log)
    except DdmqError:
        shutil.rmtree(stores, ignore_errors=True)
        raise


def _check_log(backup: Backup, data_dir: Path, stores: Path, log: FileLogOptions) -> tuple[int, ...]:
    """Check that the restored stores belong to the log; return the damaged shards."""
    damaged = []
    backend = open_shared(data_dir, log, clock=SystemClock(), metrics=Registry())
    try:
        for number in backup.shards:
            store = open_store(stores, number, 0)
            try:
                why = find_difference(store, number, backend)
                damaged += [number] if store.damage is not None else []
            finally:
                store.close()
            if why is not None:
                raise CallerError(
                    f"the backup is not of the log in {data_dir}: {why}; restore it beside its own log, or"
                    " into an empty directory"
                )
    finally:
        backend.close()
    return tuple(damaged)


def _has_entries(folder: Path) -> bool:
    return any(_list_entries(folder))


def _list_entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _into_new_log(backup: Backup, data_dir: Path, log: FileLogOptions) -> tuple[int, tuple[int, ...]]:
    """Send the backup's messages as commands into a new log; return how many were sent, and the damaged
    shards."""
    make_private(data_dir)
    clock = SystemClock()
    work = data_dir / WORK
    backend = open_shared(data_dir, log, clock=clock, metrics=Registry())
    try:
        queues = max(backup.shards, default=0) + 1
        _make(backend, clock, TopicInfo(DELAY_TOPIC, 0, queues, durability=Durability.DURABLE))
        count, damaged = 0, []
        for number in backup.shards:
            restore(backup.folder / str(number), work, number)
            store = open_store(work, number, 0)
            try:
                count += _send_all(backend, clock, store, queues, log.request_bytes_max // 4)
                damaged += [number] if store.damage is not None else []
            finally:
                store.close()
        backend.drain(clock.monotonic() + WAIT_S).wait(WAIT_S)
    finally:
        backend.close()
    shutil.rmtree(work)
    return count, tuple(damaged)


def _send_all(backend: Backend, clock: Clock, store: DelayStore, queues: int, bytes_max: int) -> int:
    count = 0
    for page in read_pages(store, bytes_max):
        for topic in {message.topic for message in page}:
            if backend.topic(topic) is None:
                _make(backend, clock, TopicInfo(topic, 0, QUEUES_DEFAULT))
        records = [command_record(message, queues) for message in page]
        results = backend.append(records, clock.monotonic() + WAIT_S).wait(WAIT_S)
        for result in results:
            if result.status is not AppendStatus.STORED:
                raise result.error or RemoteError("a message may or may not be stored; begin anew, elsewhere")
        count += len(records)
    return count


def command_record(message: Pending, queues: int) -> NewRecord:
    """Return the add command with which a pending message waits in another log, at the same occurrence of its
    series. Raises DamagedError."""
    command = msgspec.structs.replace(
        decode_command(message.command),
        occurrence=message.occurrence,
        at_ms=plain_due_ms(message.due_ms),
        is_held=is_held_ms(message.due_ms),
        moved_at=0,
        reply_queue=-1,
        unless_cancelled="",
    )
    return NewRecord(
        DELAY_TOPIC,
        command.shard % queues,
        message.message_id,
        message.born_ms,
        message.delivery,
        flags=message.flags,
        system={COMMAND_PROPERTY: encode_command(command)},
    )


def _make(backend: Backend, clock: Clock, info: TopicInfo) -> None:
    backend.put_topic(info, clock.monotonic() + WAIT_S).wait(WAIT_S)


# --- whether a store belongs to a log, and what is in it


def find_difference(store: DelayStore, number: int, backend: Backend) -> str | None:
    """Return why the store of this shard does not belong to the log; None if no difference is found.

    A store identifies messages by the offsets of their commands in the log, and the log records by these
    offsets which messages have fired. Beside a different log, waiting messages would be taken for fired ones
    and be lost. The same is true of a log that a restore began, in which the commands have other offsets.
    """
    info = backend.topic(DELAY_TOPIC)
    ingested_to = ingested_offset(store.meta(INGESTED)) or 0
    queue = None if info is None or number >= info.queues else QueueRef(info.name, info.incarnation, number)
    bounds = Bounds(0, 0) if queue is None else backend.bounds([queue]).wait(WAIT_S)[0] or Bounds(0, 0)
    if ingested_to > bounds.next:
        return f"shard {number} has taken in {ingested_to} commands, the log has {bounds.next}"
    if queue is None:
        return None
    for message in islice(chain.from_iterable(read_pages(store)), LOOKED_AT_MAX):
        if bounds.min <= message.offset and _is_another(message, queue, backend):
            return f"command {message.offset} of shard {number} is another one in the log"
    return None


def read_pages(store: DelayStore, bytes_max: int = PAGE_BYTES) -> Iterator[list[Pending]]:
    """Yield all waiting messages by due time, in lists of up to `bytes_max` bytes and one message more."""
    after: DueKey | None = None
    while page := store.scan(Scan(None, 0, FOREVER_MS, PAGE, after, bytes_max)):
        yield page
        after = page[-1].key


def _is_another(message: Pending, queue: QueueRef, backend: Backend) -> bool:
    """Return whether the log has a different message at the offset. Returns False if the command is damaged
    or expired."""
    batch = backend.read(queue, message.offset, 1, 1).wait(WAIT_S)
    ids = [one.message_id for one in batch.carried(COMMAND_PROPERTY) if one.offset == message.offset]
    return bool(ids) and ids[0] != message.message_id
