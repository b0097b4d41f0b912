"""A file log on a storage that can be held, with a clock that stands still."""

from __future__ import annotations

import _thread
from pathlib import Path
from typing import Any

from backend.completion import Completion
from backend.file_log import FileLog, FileLogOptions, open_log
from backend.file_log.storage import File, Storage
from backend.records import AppendResult, NewRecord, QueueRef, StoredRecord, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from tests.support.constants import build_options
from tests.support.rig import Rig
from tests.support.waits import done, until


class BlockedFile(File):
    """Waits in the native thread while the storage is held."""

    __slots__ = ("storage",)
    storage: BlockedStorage

    def write_through(self, data: bytes, offset: int) -> None:
        self.storage.gate()
        super().write_through(data, offset)


class BlockedStorage(Storage):
    """Storage whose `block` stops the next group commits before they are written, until `unblock`."""

    def __init__(self) -> None:
        self._gate: Any = _thread.allocate_lock()
        self.is_blocked = False
        self.waiting = 0

    def open(self, path: str, *, write: bool = False) -> File:
        plain = super().open(path, write=write)
        file = BlockedFile(path, plain.fd)
        file.storage = self
        return file

    def gate(self) -> None:
        self.waiting += 1
        self._gate.acquire()
        self._gate.release()
        self.waiting -= 1

    def block(self) -> None:
        self._gate.acquire()
        self.is_blocked = True

    def unblock(self) -> None:
        if self.is_blocked:
            self.is_blocked = False
            self._gate.release()


class LogRig(Rig):
    """A log in `directory`, and short ways to use it."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__()
        log_options = {"segment_bytes": 64 << 10, "allocate_bytes": 16 << 10, "checkpoint_ms": 3_600_000}
        self.directory = directory
        self.options = build_options(FileLogOptions, **{**log_options, **options})
        self.clock = ManualClock()
        self.storage = BlockedStorage()
        self.metrics = Registry()
        self.log: FileLog = self.open()

    def open(self) -> FileLog:
        self.log = open_log(
            self.directory, self.options, clock=self.clock, metrics=self.metrics, storage=self.storage
        )
        return self.log

    def reopen(self) -> FileLog:
        self.log.close()
        return self.open()

    def close(self) -> None:
        self.storage.unblock()
        self.log.close()

    def make(self, name: str = "orders", queues: int = 1, **rest: Any) -> QueueRef:
        info = done(self.log.put_topic(TopicInfo(name, 0, queues, **rest), self.soon))
        return QueueRef(name, info.incarnation, 0)

    @property
    def soon(self) -> float:
        return self.clock.monotonic() + 1_000

    def append(
        self, *bodies: bytes, topic: str = "orders", queue: int = 0, deadline: float | None = None
    ) -> Completion[list[AppendResult]]:
        records = [record(body, topic, queue) for body in bodies]
        return self.log.append(records, self.soon if deadline is None else deadline)

    def bodies(self, ref: QueueRef, offset: int = 0) -> list[bytes]:
        return list(done(self.log.read(ref, offset, 10_000, 1 << 24)).deliveries)

    def stored(self, ref: QueueRef) -> list[StoredRecord]:
        batch = done(self.log.read(ref, 0, 10_000, 1 << 24))
        return [batch.record(index) for index in range(len(batch.offsets))]

    def checkpoint(self) -> None:
        written: list[bool] = []
        self.log.write_checkpoint(lambda: written.append(True))
        until(lambda: written, "a checkpoint")

    def append_blocked(self, *bodies: bytes, **more: Any) -> Completion[list[AppendResult]]:
        """One that the storage holds from here on; what comes later waits behind it."""
        self.storage.block()
        appended = self.append(*bodies, **more)
        self.wait_for_pending_commit()
        return appended

    def wait_for_pending_commit(self) -> None:
        until(lambda: self.storage.waiting, "a group commit that waits in the thread")


def forget_checkpoints(rig: LogRig) -> None:
    """The next opening reads the whole log."""
    for name in ("checkpoint", "checkpoint.old"):
        (rig.directory / name).unlink(missing_ok=True)


def record(body: bytes, topic: str = "orders", queue: int = 0, **rest: Any) -> NewRecord:
    return NewRecord(topic, queue, body[:16].ljust(16, b"."), 1, body, **rest)
