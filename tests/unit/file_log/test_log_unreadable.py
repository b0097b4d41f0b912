"""A page that cannot be read (EIO) costs the records in it, whichever file of the directory it is in.

Through a mapping it would end the process (SIGBUS): the last tests really cut files off under the mapping.
"""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from format_kit import segments

from backend.file_log import FileLog, open_log
from backend.file_log.storage import PAGE_BYTES, File, Storage
from backend.records import CommitBatch, ProgressDelta, QueueRef, ReadStatus
from ddmq_common.metrics.registry import Registry
from tests.support.waits import done, until
from tests.unit.file_log.log_rig import LogRig, forget_checkpoints

SIZE = 500
COUNT = 400


class SickFile(File):
    """Reads fail where the storage says."""

    __slots__ = ("storage",)
    storage: SickStorage

    def pread(self, size: int, offset: int) -> bytes:
        self.storage.feel(self.path, offset, offset + size)
        return super().pread(size, offset)

    def check(self, view: mmap.mmap, start: int, end: int) -> None:
        pages = start - start % PAGE_BYTES, end + -end % PAGE_BYTES
        self.storage.feel(self.path, *pages)
        super().check(view, start, end)


class SickStorage(Storage):
    """`bad`: for a part of a path (its end is marked by $), which bytes of the file cannot be read."""

    def __init__(self) -> None:
        self.bad: list[tuple[str, int, int]] = []

    def open(self, path: str, *, write: bool = False) -> File:
        plain = super().open(path, write=write)
        file = SickFile(path, plain.fd)
        file.storage = self
        return file

    def feel(self, path: str, start: int, end: int) -> None:
        for name, low, high in self.bad:
            if name in f"{path}$" and start < high and low < end:
                raise OSError(errno.EIO, "Input/output error", path)


class Sick(LogRig):
    """A log on a storage that can be sick."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.sick = SickStorage()
        super().__init__(directory, **options)

    def open(self) -> FileLog:
        self.log = open_log(
            self.directory, self.options, clock=self.clock, metrics=Registry(), storage=self.sick
        )
        return self.log

    def close(self) -> None:
        self.log.close()


def body(offset: int) -> bytes:
    return b"%06d" % offset + b"." * (SIZE - 6)


def fill(rig: LogRig, *, checkpoint: bool = True) -> QueueRef:
    """COUNT messages over several segments, an acknowledgement, a setting."""
    ref = rig.make()
    for first in range(0, COUNT, 10):
        done(rig.append(*map(body, range(first, first + 10))))
    if checkpoint:
        rig.checkpoint()
    change = CommitBatch((), [ProgressDelta("billing", ref, 1, 0, ((0, 7),))], {"colour": b"blue"})
    done(rig.log.commit(change, rig.soon))
    return ref


def read_all(log: FileLog, ref: QueueRef, count: int = 50) -> dict[int, bytes]:
    readable: dict[int, bytes] = {}
    offset = 0
    while True:
        batch = done(log.read(ref, offset, count, 1 << 20))
        if batch.status is not ReadStatus.DATA:
            return readable
        readable.update(zip(batch.offsets, map(bytes, batch.deliveries), strict=True))
        offset = batch.next_offset


def check(rig: LogRig, ref: QueueRef, lost_max: int) -> dict[int, bytes]:
    """Everything but a few neighbours is served, and told to be lost."""
    readable = read_all(rig.log, ref)
    assert readable == {offset: body(offset) for offset in readable}
    lost = sorted(set(range(COUNT)) - set(readable))
    assert len(lost) <= lost_max, lost
    if lost:
        assert lost[-1] - lost[0] < lost_max
        assert rig.log.damaged_ranges >= 1
        assert "damaged" in rig.log.health().reason
    assert done(rig.append(body(COUNT)))[0].offset == COUNT, "the log goes on"
    assert done(rig.log.progress("billing", [ref]))[0].committed == 7
    assert rig.log.setting("colour") == b"blue"
    return readable


IN_A_PAGE = PAGE_BYTES // SIZE + 4


@pytest.mark.parametrize("hot_bytes", [1 << 30, 1], ids=["hot", "cold"])
@pytest.mark.parametrize("position", [0, 20_480])
@pytest.mark.parametrize("when", ["running", "opening"])
def test_a_page_of_the_log(tmp_path: Path, hot_bytes: int, position: int, when: str) -> None:
    rig = Sick(tmp_path / "log", hot_bytes=hot_bytes)
    ref = fill(rig)
    (_, second, *_) = segments(rig.directory)
    if when == "opening":
        rig.log.close()
    rig.sick.bad = [(second.name, position, position + PAGE_BYTES)]
    if when == "opening":
        rig.open()
    readable = check(rig, ref, IN_A_PAGE)
    assert len(readable) < COUNT


@pytest.mark.parametrize("position", [0, 20_480])
def test_a_page_of_the_log_that_is_read_at_the_start(tmp_path: Path, position: int) -> None:
    rig = Sick(tmp_path / "log")
    ref = fill(rig, checkpoint=False)
    rig.log.close()
    forget_checkpoints(rig)
    (_, second, *_) = segments(rig.directory)
    rig.sick.bad = [(second.name, position, position + PAGE_BYTES)]
    log = rig.open()
    assert log.recovered.damaged_ranges >= 1
    assert log.recovered.tail_bytes == 0
    assert len(check(rig, ref, IN_A_PAGE)) < COUNT


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["/checkpoint$", "consumequeue", "index", ".sorted", ".entries", "/format$"])
def test_a_view_costs_nothing(tmp_path: Path, kind: str) -> None:
    rig = Sick(tmp_path / "log")
    ref = fill(rig)
    rig.checkpoint()
    done(rig.log.commit(CommitBatch((), (), {"one": b"more"}), rig.soon))
    rig.checkpoint()
    until(lambda: list((rig.directory / "index").glob("*.sorted")))
    rig.log.close()
    rig.sick.bad = [(kind, 0, 1 << 40)]
    rig.open()
    assert len(check(rig, ref, 0)) == COUNT
    if "$" in kind:
        assert rig.log.damaged_ranges >= 1
    rig.sick.bad = []  # what is written anew goes elsewhere
    expected = body(3)

    def find_bodies() -> list[bytes]:
        return [bytes(one.delivery) for one in done(rig.log.find("orders", message_id=expected[:16]))]

    until(lambda: find_bodies() == [expected], "the index is made again")


def test_one_page_of_a_consume_queue(tmp_path: Path) -> None:
    rig = Sick(tmp_path / "log")
    ref = fill(rig)
    rig.reopen()
    rig.sick.bad = [("consumequeue", 0, PAGE_BYTES)]
    assert len(check(rig, ref, 0)) == COUNT
    assert rig.log.damaged_ranges >= 1


def test_an_unreadable_mapped_page_kills_no_process(tmp_path: Path) -> None:
    """The real thing: the file is cut off under the mapping of a running log."""
    rig = LogRig(tmp_path / "log", segment_bytes=1 << 20)
    ref = fill(rig)
    assert len(read_all(rig.log, ref)) == COUNT
    (path,) = segments(rig.directory)
    os.truncate(path, 20 * PAGE_BYTES)
    readable = read_all(rig.log, ref)
    assert 100 < len(readable) < 200
    assert readable == {offset: body(offset) for offset in range(len(readable))}
    assert rig.log.damaged_ranges >= COUNT - len(readable)
    os.truncate(path, 1 << 20)


def test_a_check_without_the_system_call_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.file_log.storage._POPULATE_READ", 12_345)
    rig = Sick(tmp_path / "log")
    ref = fill(rig)
    (_, second, *_) = segments(rig.directory)
    rig.sick.bad = [(second.name, 0, PAGE_BYTES)]
    assert len(check(rig, ref, IN_A_PAGE)) < COUNT


def test_salvage_returns_every_readable_record(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (3 * PAGE_BYTES + 10))
    storage = SickStorage()
    file = storage.open(str(tmp_path / "file"))
    assert file.salvage(1 << 20, 5) == b"x" * (3 * PAGE_BYTES + 5)
    storage.bad = [("file", PAGE_BYTES + 1, PAGE_BYTES + 2)]
    zeros = bytes(PAGE_BYTES)
    assert file.salvage(1 << 20, 5) == b"x" * (PAGE_BYTES - 5) + zeros + b"x" * (PAGE_BYTES + 10)
    assert file.salvage(100, PAGE_BYTES - 50) == b"x" * 50 + bytes(50)
    file.close()


@pytest.mark.slow
def test_without_the_check_the_process_is_killed(tmp_path: Path) -> None:
    """What the tests above show something about: touching such a page is fatal on this system."""
    text = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "os.ftruncate(fd, 8192)\n"
        "view = mmap.mmap(fd, 0)\n"
        "os.ftruncate(fd, 0)\n"
        "view[5000]\n"
    )
    process = subprocess.run([sys.executable, "-c", text, str(tmp_path / "file")], check=False, timeout=60)
    assert process.returncode == -7
