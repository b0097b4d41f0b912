"""Thousands of queues: what opening and a checkpoint ask of the disk does not grow with their number."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from backend.file_log import FileLog, FileLogOptions, open_log
from backend.file_log.consume_queue import OTHERS_BYTES_MAX
from backend.file_log.start.checkpoint import SLICE, Encoder, decode_checkpoint
from backend.file_log.storage import PAGE_BYTES, File, Storage
from backend.records import CommitBatch, ProgressDelta, QueueRef, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from tests.support.waits import done, until
from tests.unit.file_log.log_rig import LogRig, record

TOPICS, QUEUES = 40, 4
SYNCS_MAX = 20  # of one checkpoint: the file system, the index, the checkpoint and its folder


class CountedFile(File):
    """Counts its syncs. `full`: asked before each write."""

    __slots__ = ("counts", "full")
    counts: Counter[str]
    full: Callable[[], bool]

    def pwrite(self, data: bytes, offset: int) -> None:
        if self.full():
            raise OSError(errno.ENOSPC, "no space")
        super().pwrite(data, offset)

    def sync(self) -> None:
        self.counts["sync"] += 1
        super().sync()

    def sync_all(self) -> None:
        self.counts["sync"] += 1
        super().sync_all()


class CountedStorage(Storage):
    """Counts calls on consume queues and syncs. With `can_sync` it can sync a complete file system."""

    def __init__(self, can_sync: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self.can_sync = can_sync
        self.full = False  # for consume queues
        self.dirty = 0

    def open(self, path: str, *, write: bool = False) -> File:
        self.counts["open"] += "/consumequeue/" in path
        file = CountedFile(path, super().open(path, write=write).fd)
        file.counts = self.counts
        file.full = lambda: self.full and "/consumequeue/" in path
        return file

    def list(self, folder: str) -> Sequence[str]:
        self.counts["list"] += "/consumequeue/" in folder
        return super().list(folder)

    def dirty_bytes(self) -> int:
        return self.dirty

    def sync_folder(self, folder: str) -> None:
        self.counts["sync"] += 1
        self.counts["folder"] += 1
        super().sync_folder(folder)

    def sync_disk(self, folder: str) -> bool:
        self.counts["sync"] += 1
        self.counts["disk"] += 1
        return super().sync_disk(folder) if self.can_sync else False


class Many:
    """A log with many queues, each with a record that a group has finished."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.storage = CountedStorage()
        self.directory = directory
        self.options = FileLogOptions(
            **{"segment_bytes": 1 << 20, "allocate_bytes": 64 << 10, "checkpoint_ms": 3_600_000, **options}
        )
        self.clock = ManualClock()
        self.log = self.open(directory)
        creations = [self.log.put_topic(TopicInfo(f"t{n}", 0, QUEUES), self.soon) for n in range(TOPICS)]
        self.refs = [
            QueueRef(info.name, info.incarnation, queue)
            for info in map(done, creations)
            for queue in range(info.queues)
        ]
        self.send(b"first")

    def open(self, directory: Path) -> FileLog:
        return open_log(directory, self.options, clock=self.clock, metrics=Registry(), storage=self.storage)

    @property
    def soon(self) -> float:
        return self.clock.monotonic() + 1_000

    def send(self, body: bytes) -> None:
        sent = self.log.append([record(body, ref.topic, ref.queue_id) for ref in self.refs], self.soon)
        offset = done(sent)[0].offset
        finished = [ProgressDelta("g", ref, 0, 0, [(offset, offset + 1)]) for ref in self.refs]
        done(self.log.commit(CommitBatch((), finished), self.soon))

    def bodies(self, log: FileLog) -> set[tuple[bytes, ...]]:
        return {tuple(map(bytes, done(log.read(ref, 0, 10, 1 << 20)).deliveries)) for ref in self.refs}

    def checkpoint(self) -> Counter[str]:
        """Writes one; what was asked of the storage meanwhile."""
        ends: list[bool] = []
        self.storage.counts.clear()
        self.log.write_checkpoint(lambda: ends.append(True))
        until(lambda: ends, "a checkpoint")
        return Counter(self.storage.counts)

    def killed(self, into: Path) -> FileLog:
        """Opened anew as kill -9 would have left it; counts begin with the opening."""
        shutil.copytree(self.directory, into)
        self.storage.counts.clear()
        return self.open(into)


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Many]:
    rig = Many(tmp_path / "log")
    yield rig
    rig.log.close()


def test_missing_consume_queues_do_not_need_a_disk_with_space(many: Many, tmp_path: Path) -> None:
    many.checkpoint()
    many.send(b"second")
    shutil.rmtree(many.directory / "consumequeue")
    many.storage.full = True
    log = many.killed(tmp_path / "killed")
    assert log.recovered.rebuilt_queues == len(many.refs)
    assert many.bodies(log) == {(b"first", b"second")}
    assert done(log.append([record(b"third", many.refs[0].topic)], many.soon))[0].offset == 2
    many.storage.full = False
    log.close()
    reopened = many.open(tmp_path / "killed")
    assert reopened.recovered.rebuilt_queues == 0
    assert (b"first", b"second", b"third") in many.bodies(reopened)
    assert log.damaged_ranges == reopened.damaged_ranges == 0
    reopened.close()


def test_a_checkpoint_syncs_many_queues_at_one_go(many: Many) -> None:
    assert many.checkpoint()["disk"] == 1
    many.send(b"second")
    counts = many.checkpoint()
    assert counts["disk"] == 1
    assert counts["sync"] <= SYNCS_MAX


def test_where_no_file_system_can_be_synced_every_queue_is(many: Many) -> None:
    many.storage.can_sync = False
    assert many.checkpoint()["sync"] >= 2 * len(many.refs)


@pytest.mark.slow
def test_many_queues_do_not_wait_for_files_of_others(many: Many, tmp_path: Path) -> None:
    """One call for all would write those first, and group commits would wait for it."""
    many.checkpoint()
    many.send(b"second")
    own = len(many.refs) * PAGE_BYTES
    many.storage.dirty = own + OTHERS_BYTES_MAX + 1
    counts = many.checkpoint()
    assert counts["disk"] == 0
    assert counts["sync"] >= 2 * len(many.refs), "files and their names"
    many.send(b"third")
    counts = many.checkpoint()
    assert counts["sync"] >= len(many.refs)
    assert counts["folder"] < SYNCS_MAX, "the names are durable since the last time"
    many.send(b"fourth")
    many.storage.dirty -= 1
    assert many.checkpoint()["disk"] == 1
    log = many.killed(tmp_path / "killed")
    assert many.bodies(log) == {(b"first", b"second", b"third", b"fourth")}
    log.close()


def test_a_great_many_queues_are_synced_at_one_go_all_the_same(
    many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    many.storage.dirty = 1 << 40
    monkeypatch.setattr("backend.file_log.consume_queue.EACH_BESIDE_MAX", len(many.refs))
    assert many.checkpoint()["disk"] == 0
    many.send(b"second")
    monkeypatch.setattr("backend.file_log.consume_queue.EACH_BESIDE_MAX", len(many.refs) - 1)
    assert many.checkpoint()["disk"] == 1


def test_a_few_queues_are_synced_one_by_one(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "log")
    rig.make(queues=4)
    rig.storage.sync_disk = lambda folder: pytest.fail("others' files are not ours to sync")  # type: ignore
    done(rig.append(b"one"))
    rig.checkpoint()


def test_opening_at_a_checkpoint_opens_no_consume_queue(many: Many, tmp_path: Path) -> None:
    many.checkpoint()
    log = many.killed(tmp_path / "killed")
    assert (many.storage.counts["open"], many.storage.counts["list"]) == (0, 0)
    assert many.bodies(log) == {(b"first",)}
    log.close()


def test_opening_without_a_checkpoint_leaves_consume_queues_for_later(many: Many, tmp_path: Path) -> None:
    log = many.killed(tmp_path / "killed")
    assert (many.storage.counts["open"], many.storage.counts["list"]) == (0, 0)
    assert many.bodies(log) == {(b"first",)}
    log.close()
    log = many.open(tmp_path / "killed")
    assert many.bodies(log) == {(b"first",)}
    log.close()


def test_a_checkpoint_holds_what_changed_while_it_was_prepared(many: Many) -> None:
    state = many.log._writer.state
    encoder = Encoder(state)
    slices = encoder.encode_changes()
    next(slices)
    many.send(b"second")
    done(many.log.delete_topic("t0", many.soon))
    for _ in slices:
        pass
    state_read = decode_checkpoint(encoder.encode(1, 0)).state
    assert sorted(state_read.topics) == sorted(state.topics)
    assert {queue.ref: queue.visible for queue in state_read.queues()} == {
        queue.ref: queue.visible for queue in state.queues()
    }
    assert {key: progress.view() for key, progress in state_read.progress} == {
        key: progress.view() for key, progress in state.progress
    }


def test_little_is_left_to_encode_at_the_moment_of_a_checkpoint(tmp_path: Path) -> None:
    many = Many(tmp_path / "log")
    state = many.log._writer.state
    encoder = Encoder(state)
    for group in range(5):
        finished = [ProgressDelta(f"g{group}", ref, 0, 0, [(0, 1)]) for ref in many.refs]
        done(many.log.commit(CommitBatch((), finished), many.soon))
    assert len(state.changed_progress) > 2 * SLICE
    for _ in encoder.encode_changes():
        pass
    assert len(state.changed_progress) < SLICE
    assert not state.changed_topics
    many.log.close()
