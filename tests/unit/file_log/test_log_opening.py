"""What opening a log of many queues costs, in calls."""

from __future__ import annotations

from pathlib import Path

from backend.file_log import FileLogOptions, open_log
from backend.file_log.storage import File, Storage
from backend.records import NewRecord, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry


class Counting(Storage):
    """Notes what is opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str, *, write: bool = False) -> File:
        self.opened.append(path)
        return super().open(path, write=write)


def test_no_file_of_a_queue_that_is_in_order_is_opened(tmp_path: Path) -> None:
    options, clock, storage = FileLogOptions(), ManualClock(), Counting()
    log = open_log(tmp_path, options, clock=clock, metrics=Registry())
    for number in range(20):
        log.put_topic(TopicInfo(f"t{number}", 0, 4), clock.monotonic() + 60).wait(60)
        record = NewRecord(f"t{number}", 3, number.to_bytes(16, "big"), 0, b"")
        log.append([record], clock.monotonic() + 60).wait(60)
    log.drain(clock.monotonic() + 60).wait(60)
    log.close()
    reopened = open_log(tmp_path, options, clock=clock, metrics=Registry(), storage=storage)
    assert [path for path in storage.opened if "consumequeue" in path] == []
    reopened.close()
