"""Closing gives the directory back only when no native thread works in it any more."""

from __future__ import annotations

import threading
from pathlib import Path

from log_rig import done, record, until

from backend.completion import Completion
from backend.file_log import FileLogOptions, open_log
from backend.file_log.lock import DirectoryLock
from backend.file_log.storage import Storage
from backend.records import TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry


class SlowRename(Storage):
    """Renames only after `go`; `renamed` counts."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        self.renamed = 0

    def rename(self, source: str, target: str) -> None:
        self.asked.set()
        assert self.go.wait(20)
        super().rename(source, target)
        self.renamed += 1


def test_a_checkpoint_under_way_ends_before_the_directory_is_given_back(tmp_path: Path) -> None:
    storage, clock = SlowRename(), ManualClock()
    storage.go.set()
    log = open_log(tmp_path, FileLogOptions(), clock=clock, metrics=Registry(), storage=storage)
    made: Completion[TopicInfo] = log.put_topic(TopicInfo("t", 0, 1), clock.monotonic() + 10)
    done(made)
    done(log.append([record(b"x", "t")], clock.monotonic() + 10))
    storage.go.clear()
    storage.asked.clear()
    before = storage.renamed
    log.write_checkpoint(lambda: None)
    until(storage.asked.is_set, "checkpoint being saved")
    threading.Timer(0.2, storage.go.set).start()
    log.close()
    assert storage.renamed > before, "the checkpoint was in place when close returned"
    DirectoryLock.acquire(tmp_path, clock.wall_ms()).release()
