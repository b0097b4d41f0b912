"""Closing gives the directory back only when no native thread works in it any more."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from backend.completion import Completion
from backend.file_log import FileLog, FileLogOptions, open_log
from backend.file_log.lock import DirectoryInUseError, DirectoryLock
from backend.file_log.storage import Storage
from backend.records import AppendStatus, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from ddmq_common.native_threads import wait_for_native_work
from tests.support.waits import done, until
from tests.unit.file_log.log_rig import LogRig, record


class SlowRename(Storage):
    """Renames only after `go`; `renamed` counts."""

    def __init__(self) -> None:
        self.requested, self.go = threading.Event(), threading.Event()
        self.renamed = 0

    def rename(self, source: str, target: str) -> None:
        self.requested.set()
        assert self.go.wait(20)
        super().rename(source, target)
        self.renamed += 1


def with_a_checkpoint_to_make(directory: Path, storage: SlowRename, clock: ManualClock) -> FileLog:
    storage.go.set()
    log = open_log(directory, FileLogOptions(), clock=clock, metrics=Registry(), storage=storage)
    created: Completion[TopicInfo] = log.put_topic(TopicInfo("t", 0, 1), clock.monotonic() + 10)
    done(created)
    done(log.append([record(b"x", "t")], clock.monotonic() + 10))
    storage.go.clear()
    storage.requested.clear()
    return log


def test_a_running_checkpoint_ends_before_the_directory_is_released(tmp_path: Path) -> None:
    storage, clock = SlowRename(), ManualClock()
    log = with_a_checkpoint_to_make(tmp_path, storage, clock)
    before = storage.renamed
    log.write_checkpoint(lambda: None)
    until(storage.requested.is_set, "checkpoint being saved")
    threading.Timer(0.2, storage.go.set).start()
    log.close()
    assert storage.renamed > before, "the checkpoint was in place when close returned"
    DirectoryLock.acquire(tmp_path, clock.wall_ms()).release()


def test_a_group_commit_that_hangs_keeps_the_directory_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("backend.file_log.log.CLOSE_WAIT_S", 0.05)
    rig = LogRig(tmp_path)
    ref = rig.make()
    done(rig.append(b"first"))
    rig.storage.block()
    flying = rig.append(b"flying")
    rig.wait_for_pending_commit()
    waiting = rig.append(b"waiting")
    rig.log.close()
    assert done(flying)[0].status is AppendStatus.UNKNOWN
    assert done(waiting)[0].status is AppendStatus.REFUSED
    assert "has not answered" in caplog.text
    rig.log._opened._lock.release()  # as an election does
    with pytest.raises(DirectoryInUseError):
        DirectoryLock.acquire(tmp_path, 0)
    rig.storage.unblock()
    until(lambda: rig.log._writer._committer._exited.acquire(False), "end of the thread")
    os.close(rig.log._opened._lock._fd)  # as the end of the process does
    rig.open()
    assert rig.bodies(ref) == [b"first", b"flying"]
    assert rig.log.recovered.damaged_ranges == 0


def test_a_checkpoint_that_hangs_keeps_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last step may come hours later, and would take the place of a later writer's checkpoint."""
    monkeypatch.setattr("backend.file_log.log.CLOSE_WAIT_S", 0.05)
    storage, clock = SlowRename(), ManualClock()
    log = with_a_checkpoint_to_make(tmp_path, storage, clock)
    log.write_checkpoint(lambda: None)
    until(storage.requested.is_set, "checkpoint being saved")
    log.close()
    assert "has not answered" in caplog.text
    log._opened._lock.release()  # as an election does
    with pytest.raises(DirectoryInUseError):
        DirectoryLock.acquire(tmp_path, 0)
    storage.go.set()
    assert wait_for_native_work(20)
    os.close(log._opened._lock._fd)  # as the end of the process does
    reopened = open_log(tmp_path, FileLogOptions(), clock=clock, metrics=Registry())
    assert reopened.topic("t") is not None
    assert reopened.recovered.checkpoint == reopened.recovered.end
    reopened.close()
