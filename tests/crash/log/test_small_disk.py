"""Small disks that others fill: the log opens, is read, acknowledged and cleaned, and takes sends again.

Whoever made the disk full and at whatever moment, nobody has to delete files by hand.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from backend.file_log import FileLog, FileLogOptions, open_log
from backend.file_log.commit.committer import FREE_SHARE, LogEnd
from backend.file_log.core.retention import RetentionOptions
from backend.file_log.segments import SegmentSet
from backend.records import AppendStatus, CommitBatch, NewRecord, ProgressDelta, QueueRef, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.errors import DiskFullError
from ddmq_common.metrics.registry import Registry
from tests.crash.log.log_story import wait
from tests.crash.log.small_disk import SmallDisk
from tests.support.constants import build_options
from tests.support.waits import until

MIB = 1 << 20
TOTAL = 12 * MIB
BODY = b"x" * 10_000
RETENTION = RetentionOptions(
    cleaning_hour=None, clean_free_bytes=4 * MIB, refuse_free_bytes=MIB, reserve_free_bytes=128 << 10
)


class Disk:
    """A log on a small disk."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.clock = ManualClock()
        log_options: dict[str, Any] = {
            "segment_bytes": MIB,
            "allocate_bytes": 64 * MIB,
            "checkpoint_ms": 3_600_000,
            "tail_ms": 3_600_000,
            "recover_retry_ms": 20,
            "retention": RETENTION,
        }
        self.options = build_options(FileLogOptions, **{**log_options, **options})
        self.sent = 0
        self.put(folder)
        self.open()
        info = wait(self.log.put_topic(TopicInfo("t", 0, 1), self.soon))
        self.ref = QueueRef("t", info.incarnation, 0)

    def put(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.storage = SmallDisk(folder, TOTAL)

    def open(self) -> FileLog:
        self.log = open_log(
            self.folder, self.options, clock=self.clock, metrics=Registry(), storage=self.storage
        )
        return self.log

    @property
    def soon(self) -> float:
        return self.clock.monotonic() + 1_000

    def send(self, count: int = 1, body: bytes = BODY) -> list[AppendStatus]:
        statuses = []
        for _ in range(count):
            self.sent += 1
            record = NewRecord("t", 0, self.sent.to_bytes(16, "big"), 0, body)
            statuses.append(wait(self.log.append([record], self.soon))[0].status)
        return statuses

    def acknowledge(self, offset: int) -> None:
        delta = ProgressDelta("g", self.ref, 0, 0, [(offset, offset + 1)])
        wait(self.log.commit(CommitBatch([], [delta]), self.soon))

    def offsets(self) -> list[int]:
        bounds = wait(self.log.bounds([self.ref]))[0]
        assert bounds is not None
        offsets: list[int] = []
        at = bounds.min
        while at < bounds.next:
            batch = wait(self.log.read(self.ref, at, 100, MIB))
            offsets += batch.offsets
            at = batch.next_offset
        return offsets

    def crash(self, into: Path) -> None:
        """What kill -9 leaves, on a disk as full as it was."""
        others = self.storage.others
        shutil.copytree(self.folder, into)
        self.log.close()
        self.put(into)
        self.storage.others = others

    def goes_on(self) -> None:
        """Once others are gone, sends are taken again by themselves."""
        self.storage.others = 0
        self.log._retention.run_once()
        until(lambda: self.log.health().ready, self.log.health)
        assert self.send(20) == [AppendStatus.STORED] * 20


@pytest.mark.parametrize("free_bytes", [0, 8 << 10, 200 << 10])
def test_a_log_killed_on_a_full_disk_opens_and_is_read_and_acknowledged(
    tmp_path: Path, free_bytes: int
) -> None:
    disk = Disk(tmp_path / "live")
    disk.send(130)
    disk.storage.fill(free_bytes)
    disk.crash(tmp_path / "dark")
    log = disk.open()
    assert disk.offsets() == list(range(130))
    disk.acknowledge(5)
    assert wait(log.progress("g", [disk.ref]))[0].finished == ((5, 6),)
    disk.goes_on()
    log.close()


def test_space_reserved_by_an_open_log_is_used_before_the_disk_is_full(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "live", segment_bytes=8 * MIB, retention=RetentionOptions(clean_free_percent=0,
                refuse_free_percent=0, reserve_free_percent=0))  # fmt: skip
    disk.send()
    disk.storage.fill()
    stored = 0
    while disk.send() == [AppendStatus.STORED]:
        stored += 1
    assert stored >= TOTAL // FREE_SHARE // 20_000, "an eighth of the disk lay ready"
    log_end = disk.log._writer._committer.log_end
    assert log_end._allocated - disk.log._writer.written < 2 * len(BODY)
    disk.goes_on()
    disk.log.close()


def test_the_disk_is_filled_beyond_the_last_large_allocation(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "live", retention=RetentionOptions(clean_free_percent=0, refuse_free_percent=0,
                reserve_free_percent=0))  # fmt: skip
    disk.storage.fill(600 << 10)
    while disk.send() == [AppendStatus.STORED]:
        pass
    assert disk.storage.free() < 64 << 10, "smaller pieces are taken when the large one is not there"
    stored = disk.sent - 1
    assert disk.offsets() == list(range(stored))
    disk.log.close()


def test_a_failed_allocation_is_released(tmp_path: Path) -> None:
    storage = SmallDisk(tmp_path, 4 * MIB)
    segments = SegmentSet(storage, str(tmp_path))
    storage.make_folder(segments.folder)
    segments.add(segments.create(0, 64 * MIB))
    log_end = LogEnd(segments, 64 * MIB, 64 * MIB)
    storage.space = lambda _: storage.__class__.space(storage, "")._replace(free=1 << 40)  # type: ignore[method-assign]
    log_end.write(b"a small frame", 0, sync=True)
    assert storage.used() < 64 << 10, "a file system keeps what it found before it failed"
    assert storage.allocations == 2
    segments.close()


def test_retention_works_after_a_crash_on_a_disk_without_space_for_views(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "live", retention=RetentionOptions(log_bytes_max=4 * MIB, cleaning_hour=None,
                clean_free_percent=0, refuse_free_percent=0, reserve_free_percent=0))  # fmt: skip
    disk.send(700)
    disk.crash(tmp_path / "dark")
    disk.storage.total = 0
    log = disk.open()
    queue = next(iter(log._state.queues()))
    assert queue.tail, "no entry found a place in its file"
    assert disk.offsets() == list(range(700))
    written: list[bool] = []
    disk.storage.total = disk.storage.used() + (256 << 10)  # for the views; segments are to make the rest
    for offset in range(3):
        disk.acknowledge(offset)
        log.write_checkpoint(lambda: written.append(True))
        until(lambda: written)
        written.clear()
    assert log._retention.run_once()
    assert disk.storage.free() > 2 * MIB
    log.close()


def test_a_disk_of_any_size_holds_many_segments(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "live", segment_bytes=1024 * MIB)
    disk.storage.total = 10_000 * MIB
    disk.log.close()
    disk.open()
    assert disk.log._opened._segment_bytes == 10_000 * MIB // 32
    disk.log.close()


def test_a_full_disk_and_its_end_are_logged_once_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path / "live", retention=RetentionOptions(clean_free_percent=0, refuse_free_percent=0,
                reserve_free_percent=0))  # fmt: skip
    disk.storage.fill(600 << 10)
    while disk.send() == [AppendStatus.STORED]:
        pass
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert disk.send(50) == [AppendStatus.REFUSED] * 50
        assert not disk.log.health().ready
        assert "cannot grow" in disk.log.health().reason
        assert [text for text in caplog.messages if "grow" in text] == []
        disk.storage.total += MIB
        until(lambda: disk.log.health().ready, "that there is space, though nobody sends")
        assert "the log can grow again" in caplog.messages
    assert disk.send() == [AppendStatus.STORED]
    disk.log.close()


def test_a_log_that_cannot_grow_refuses_a_new_topic_at_once(tmp_path: Path) -> None:
    """It does not wait for its deadline: the clock stands still."""
    disk = Disk(tmp_path / "live", retention=RetentionOptions(clean_free_percent=0, refuse_free_percent=0,
                reserve_free_percent=0))  # fmt: skip
    disk.storage.fill(600 << 10)
    for size in (10_000, 1_000, 100, 0):  # smaller ones find a place for a while
        while disk.send(body=bytes(size)) == [AppendStatus.STORED]:
            pass
    with pytest.raises(DiskFullError, match="cannot grow"):
        wait(disk.log.put_topic(TopicInfo("new", 0, 1), disk.soon))
    disk.log.close()
