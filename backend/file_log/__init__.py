"""The file log: the bundled engine. One process writes a directory, others join it over a socket.

    log.py        FileLog, the backend port; opened.py creates its components
    commit/       the path of a write      read/   the path of a read
    start/        recovery, checkpoints    state.py, segments.py, consume_queue.py   the state and its files
    core/         byte layouts and decisions, pure
    index/, retention.py, holds.py, sessions/   lookups, deletion of old segments, other processes
    storage.py    every file operation

docs/formats.md describes every byte before the code does.
"""

from __future__ import annotations

from pathlib import Path

from backend.file_log.lock import DirectoryLock
from backend.file_log.log import FileLog
from backend.file_log.opened import OpenedDirectory
from backend.file_log.options import FileLogOptions
from backend.file_log.sessions.election import ElectedBackend, ElectedLog, Election
from backend.file_log.sessions.reads import local_reads
from backend.file_log.storage import Storage
from ddmq_common.clock import Clock
from ddmq_common.errors import StorageError
from ddmq_common.metrics.registry import Registry
from ddmq_common.private_files import make_private

__all__ = ["FileLog", "FileLogOptions", "open_log", "open_shared"]


def open_log(
    directory: Path,
    options: FileLogOptions | None = None,
    *,
    clock: Clock,
    metrics: Registry,
    storage: Storage | None = None,
    lock: DirectoryLock | None = None,
) -> FileLog:
    """Lock and recover a directory, which is created if missing, and return its log, ready for appends.
    Blocks.

    `lock`: a lock that is held already. Raises DirectoryInUseError when another process writes the directory,
    StorageError when it cannot be used. The lock is released when the log is closed, or when opening fails.
    """
    options = FileLogOptions() if options is None else options
    try:
        make_private(directory)
    except OSError as error:
        raise StorageError(f"the directory {directory} cannot be made: {error}") from error
    writer_lock = DirectoryLock.acquire(directory, clock.wall_ms()) if lock is None else lock
    try:
        opened = OpenedDirectory(
            directory, options, writer_lock, Storage() if storage is None else storage, metrics
        )
        return FileLog(opened, options, clock, metrics)
    except BaseException:
        writer_lock.release()
        raise


def open_shared(
    directory: Path,
    options: FileLogOptions | None = None,
    *,
    clock: Clock,
    metrics: Registry,
    may_write: bool = True,
) -> ElectedBackend:
    """Open a directory that several processes share: as its writer if there is none, else as a member.

    Blocks the calling greenlet. Raises what Election.start raises. With `may_write` False this process never
    becomes the writer.
    """

    def open_writer(folder: Path, lock: DirectoryLock) -> ElectedLog:
        log = open_log(folder, options, clock=clock, metrics=metrics, lock=lock)
        return ElectedLog(log, log.publish_entries)

    reads = local_reads(directory, FileLogOptions() if options is None else options)
    election = Election(directory, open_writer, clock, metrics, may_write=may_write, reads=reads)
    return election.start()
