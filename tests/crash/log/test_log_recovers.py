"""One failed call, wherever it strikes: the log goes on by itself, and what it gave up takes no space."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from backend.file_log import FileLog
from backend.file_log.storage import File
from backend.records import Durability
from tests.crash.faulty_storage import FaultyStorage
from tests.crash.log.log_story import Promises, Story, check, open_story
from tests.support.waits import until

ROUNDS = 2
DSYNC = getattr(os, "RWF_DSYNC", 0)


def written_and_durable(story: Story) -> None:
    """Segments roll in the middle of what is only written, and syncs follow soon after."""
    story.make("orders", 2)
    story.make("events", 1, Durability.WRITTEN)
    for _ in range(ROUNDS):
        for size in (6_000, 6_000, 6_000, 400):
            story.append([("events", 0, size)])
        story.append([("orders", 0, 300)])


def until_ready(log: FileLog, point: int) -> None:
    until(lambda: log.health().ready, lambda: f"ready after a fault at point {point}: {log.health()}")


def points(tmp_path: Path) -> int:
    storage = FaultyStorage(tmp_path)
    log = open_story(tmp_path, storage)
    written_and_durable(Story(log, Promises()))
    log.close()
    return storage.points


def check_one_fault(folder: Path, point: int) -> None:
    folder.mkdir()
    storage, promises = FaultyStorage(folder), Promises()
    log = open_story(folder, storage)
    storage.plan[point] = "fail"
    story = Story(log, promises)
    written_and_durable(story)
    until_ready(log, point)
    story.append([("orders", 1, 100)])
    check(log, promises, written_too=True)
    log.close()


def test_the_log_recovers_from_one_fault_at_some_points(tmp_path: Path) -> None:
    (tmp_path / "counted").mkdir()
    for point in range(8, points(tmp_path / "counted"), 3):
        check_one_fault(tmp_path / str(point), point)


@pytest.mark.slow
def test_the_log_recovers_from_one_fault_at_every_point(tmp_path: Path) -> None:
    (tmp_path / "counted").mkdir()
    for point in range(8, points(tmp_path / "counted")):
        check_one_fault(tmp_path / str(point), point)


def test_failed_writes_leave_no_space_and_no_descriptor_in_use(tmp_path: Path) -> None:
    storage, promises = FaultyStorage(tmp_path), Promises()
    log = open_story(tmp_path, storage, allocate_bytes=1 << 20, segment_bytes=8 << 20)
    story = Story(log, promises)
    story.make("orders", 2)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        storage.plan[storage.points + 1] = "fail"
        story.append([("orders", 0, 300)])
        story.append([("orders", 0, 300)])
    check(log, promises, written_too=True)
    old_segments = log._opened.segments.segments[:-1]
    assert sum(one.file.size() - (one.end - one.start) for one in old_segments) == 0
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * len(old_segments) + 2, (
        "a file and its map for each segment"
    )
    log.close()


def test_reopening_releases_the_space_that_a_crash_left_allocated(tmp_path: Path) -> None:
    log = open_story(tmp_path, allocate_bytes=4 << 20, segment_bytes=8 << 20)
    story = Story(log, Promises())
    story.make("orders", 2)
    story.append([("orders", 0, 100)])
    log.close()
    (first,) = (tmp_path / "commitlog").glob("[0-9]*")
    end = log.durable_position
    (tmp_path / "commitlog" / f"{end:020d}").touch()
    with first.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 4 << 20)
    open_story(tmp_path).close()
    assert first.stat().st_size == end


def test_without_synchronous_writes_each_sync_is_a_separate_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def refuse(*_: object) -> int:
        calls.append("pwritev")
        raise OSError(errno.EOPNOTSUPP, "no such flag")

    monkeypatch.setattr(os, "pwritev", refuse)
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync"))
    file = File(str(tmp_path / "file"), os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    file.write_through(b"one", 0)
    file.write_through(b"two", 3)
    assert file.pread(6, 0) == b"onetwo"
    assert calls == [*["pwritev"][: bool(DSYNC)], "sync", "sync"]
    file.close()
