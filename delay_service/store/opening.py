"""Open a shard for its owner, whatever the owner before it is doing.

`epoch` is the one under which the shard was granted. The newest copy of the shard is taken over in place
when nobody holds it; when a living process does (a stopped owner, whose commits are refused by its older
epoch), it is cloned and left to that process. A copy that cannot be trusted is salvaged into a new one.
Everything here blocks on the disk: native thread.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from backend.records import QueueRef
from ddmq_common.errors import CallerError, ConfigError, DamagedError, FencedError, StorageError
from ddmq_common.rocks.database import Rocks, RocksOptions, WalRecovery, WriteBatch, lacks_only_log_ends
from delay_service.store import layout
from delay_service.store.copies import (
    DAMAGED,
    Copy,
    CopyLock,
    clone_files,
    copies_of,
    copy_name,
    finish_copy,
    has_copies,
    make_folder,
    new_folder,
    sweep_copies,
    sync_path,
)
from delay_service.store.port import DelayStore, StoreOpener
from delay_service.store.rocks_store import RocksStore
from delay_service.store.salvage import (
    StoreDamage,
    back_up_log,
    damage_mark,
    mark_damaged,
    salvage_store,
    set_aside_log_gap,
)
from delay_service.store.writing import own_key

log = logging.getLogger(__name__)

SCHEMA = 1
_TRIES = 50
CACHE_BYTES = 64 << 20  # of all shards together
BUFFER_BYTES = 64 << 20  # the same, of what is not in files yet; with more than 16 shards it is more
BUFFERS = 4
BUFFER_BYTES_MIN = 1 << 20


def stores_in(folder: Path, shards: int) -> StoreOpener:
    """Return an opener of shard stores in `folder`. It creates the folder if it is missing.

    The opener blocks (native thread).
    """
    options = RocksOptions(
        write_buffer_bytes=max(BUFFER_BYTES // BUFFERS // shards, BUFFER_BYTES_MIN),
        write_buffers=BUFFERS,
        block_cache_bytes=CACHE_BYTES // shards,
    )

    def open_shard(queue: QueueRef, epoch: int) -> DelayStore:
        return open_store(folder, queue.queue_id, epoch, options)

    return open_shard


def standby_stores_in(folder: Path, shards: int) -> Callable[[QueueRef], DelayStore]:
    """Return an opener of standby stores: of the newest store in `folder`, or of a new empty one.

    The opener raises CallerError while a living process uses that store.
    """
    opener = stores_in(folder, shards)

    def open_standby(queue: QueueRef) -> DelayStore:
        copies = copies_of(folder, queue.queue_id) if folder.is_dir() else []
        lock = CopyLock.try_take(copies[-1].path) if copies else None
        if copies and lock is None:
            raise CallerError(f"{copies[-1].path} is in use by another process")
        if lock is not None:
            lock.release()
        return opener(queue, copies[-1].epoch if copies else 0)

    return open_standby


def check_store_folder(folder: Path, default_folder: Path, record_file: Path) -> None:
    """Check that the stores of this log are in `folder`, and record the folder in `record_file`.

    `default_folder`: used if there is no `record_file`. Raises ConfigError if `folder` has no stores and
    the recorded folder has some, because messages wait there that the log may not have any more. If both have
    stores, `folder` is used and a warning is logged. Raises OSError when the disk fails.
    """
    recorded_folder = (
        Path(record_file.read_text(encoding="utf-8")) if record_file.exists() else default_folder
    )
    if has_copies(recorded_folder) and not (folder.is_dir() and recorded_folder.samefile(folder)):
        if not has_copies(folder):
            copied = (
                f"; if this is a copy of another's log, delete {record_file}" if record_file.exists() else ""
            )
            raise ConfigError(
                f"the delay stores of this log are in {recorded_folder.absolute()},"
                f" and {folder.absolute()} has none:"
                " set dir in delay_service.yaml to where they are, or move them, there or away, while no"
                f" service runs{copied}"
            )
        log.warning("delay stores in two folders", extra={"taken": str(folder), "left": str(recorded_folder)})
    if folder.absolute() == default_folder.absolute():
        record_file.unlink(missing_ok=True)
        return
    making = record_file.with_name(f"{record_file.name}.{os.getpid()}.making")
    making.write_text(str(folder.absolute()), encoding="utf-8")
    sync_path(making)
    making.rename(record_file)
    sync_path(record_file.parent)


def open_store(folder: Path, shard: int, epoch: int, options: RocksOptions | None = None) -> RocksStore:
    """Open the store of `shard` in `folder` (created if missing) for the owner of `epoch`.

    Raises FencedError if a newer epoch has it, CallerError if it is open already, and StorageError if the
    disk or the store fails or a newer program wrote the store.
    """
    options = options or RocksOptions()
    try:
        make_folder(folder)
        copy, lock = _claim_copy(folder, shard, epoch)
        try:
            return _open(folder, shard, copy, lock, options)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise StorageError(f"cannot open delay shard {shard} in {folder}: {error}") from error


def restore(source: Path, folder: Path, shard: int) -> None:
    """Restore a shard's store from the checkpoint `source`.

    Raises CallerError if `folder` has a store of the shard already, and StorageError if the disk fails; then
    no store was created, and the call can be repeated.
    """
    try:
        make_folder(folder)
        if copies_of(folder, shard):
            raise CallerError(f"{folder} has a store of shard {shard} already: restore into an empty folder")
        if not (source / "CURRENT").is_file():
            raise CallerError(f"{source} is no copy of a delay store: it has no file CURRENT")
        _copy_store(source, folder / copy_name(shard, 0))
    except OSError as error:
        raise StorageError(f"cannot restore {source} into {folder}: {error}") from error


def _copy_store(source: Path, target: Path) -> None:
    making, lock = new_folder(target)
    try:
        for file in source.iterdir():
            if file.is_file() and file.name not in ("LOCK", "copy.lock"):
                shutil.copyfile(file, making / file.name)
        finish_copy(making, target)
    finally:
        lock.release()


def _claim_copy(folder: Path, shard: int, epoch: int) -> tuple[Copy, CopyLock]:
    """Return the copy of this epoch and its lock: the renamed newest copy, a clone of it, or a new one."""
    for _ in range(_TRIES):
        copies = copies_of(folder, shard)
        target = folder / copy_name(shard, epoch)
        if not copies:
            return _new_copy(target, epoch)
        newest = copies[-1]
        if newest.epoch > epoch:
            raise FencedError(
                f"delay shard {shard} belongs to epoch {newest.epoch} by now, this owner has {epoch}"
            )
        lock = CopyLock.try_take(newest.path)
        if lock is not None:
            return _take_over(newest, target, epoch, lock), lock
        if newest.path.exists():
            if newest.epoch == epoch:
                raise CallerError(f"delay shard {shard} is open already under epoch {epoch}")
            return _clone_copy(newest, target, epoch)
    raise StorageError(f"copies of delay shard {shard} in {folder} come and go: who else opens it?")


def _new_copy(target: Path, epoch: int) -> tuple[Copy, CopyLock]:
    making, lock = new_folder(target)
    try:
        finish_copy(making, target)
    except BaseException:
        lock.release()
        raise
    return Copy(epoch, 0, target), lock


def _take_over(newest: Copy, target: Path, epoch: int, lock: CopyLock) -> Copy:
    if newest.epoch == epoch:
        return newest
    try:
        newest.path.rename(target)
        sync_path(target.parent)
    except BaseException:
        lock.release()
        raise
    return Copy(epoch, 0, target)


def _clone_copy(newest: Copy, target: Path, epoch: int) -> tuple[Copy, CopyLock]:
    making, lock = new_folder(target)
    try:
        clone_files(newest.path, making)
        finish_copy(making, target)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        lock.release()
        raise
    return Copy(epoch, 0, target), lock


def _open(folder: Path, shard: int, copy: Copy, lock: CopyLock, options: RocksOptions) -> RocksStore:
    """Open a copy: complete, without the damaged end of its write-ahead log, or salvaged."""
    reason = damage_mark(copy.path)
    if reason is None:
        if moved := set_aside_log_gap(copy.path):
            log.warning(
                "delay shard %d: a power loss left a gap in the write-ahead log of %s: %d files behind it are"
                " left out (%s keeps them), commands in them are taken in again", shard, copy.path, *moved,
            )  # fmt: skip
        try:
            return _open_database(folder, shard, copy, lock, options, None)
        except DamagedError as error:
            reason = str(error)
        damage = None if lacks_only_log_ends(copy.path, options) else back_up_log(copy.path, reason)
        try:
            return _open_database(folder, shard, copy, lock, options, damage, WalRecovery.PREFIX)
        except DamagedError:
            mark_damaged(copy.path, reason)
    store = _salvage_copy(folder, shard, copy, reason, options)
    lock.release()
    return store


def _salvage_copy(folder: Path, shard: int, copy: Copy, reason: str, options: RocksOptions) -> RocksStore:
    path = folder / copy_name(shard, copy.epoch, copy.revision + 1)
    making, lock = new_folder(path)
    try:
        damage = salvage_store(copy.path, making, reason, options)
        finish_copy(making, path)
        copy.path.rename(copy.path.with_name(copy.path.name + DAMAGED))
        sync_path(folder)
        newer = Copy(copy.epoch, copy.revision + 1, path)
        return _open_database(folder, shard, newer, lock, options, damage.moved_to(path))
    except BaseException:
        lock.release()
        raise


def _open_database(
    folder: Path,
    shard: int,
    copy: Copy,
    lock: CopyLock,
    options: RocksOptions,
    damage: StoreDamage | None,
    recovery: WalRecovery = WalRecovery.COMPLETE,
) -> RocksStore:
    database = Rocks(copy.path, options, recovery)
    try:
        _check_identity(database, shard)
        batch = WriteBatch()
        if database.get(layout.COUNTED_EPOCH_KEY) != database.get(own_key(".epoch")):
            batch.delete(layout.COUNTED_KEY)  # a release without these counters may have changed the store
            batch.delete_range(layout.SENDER, layout.SENDER_END)
        batch.put(layout.COUNTED_EPOCH_KEY, b"%d" % copy.epoch)
        batch.put(own_key(".schema"), b"%d" % SCHEMA)
        batch.put(own_key(".shard"), b"%d" % shard)
        batch.put(own_key(".epoch"), b"%d" % copy.epoch)
        database.write(batch)
        store = RocksStore(database, lock.release, lambda: sweep_copies(folder, shard, copy.path), damage)
    except BaseException:
        database.close()
        raise
    sweep_copies(folder, shard, copy.path)
    if damage is not None:
        log.error("the store of delay shard %d was damaged: %s", shard, damage)
    return store


def _check_identity(database: Rocks, shard: int) -> None:
    schema, owner = database.get(own_key(".schema")), database.get(own_key(".shard"))
    if schema is not None and int(schema) > SCHEMA:
        raise StorageError(
            f"{database.folder} has schema {schema.decode()}, this program knows up to {SCHEMA}:"
            " run the newer program, or restore a backup that the older one made"
        )
    if owner is not None and int(owner) != shard:
        raise StorageError(f"{database.folder} holds shard {owner.decode()}, not {shard}: was it moved?")
