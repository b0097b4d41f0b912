"""Every changing file operation of a whole life of the index fails once: nothing wrong is ever served,
and after a restart with a healthy disk everything is found again.
"""

from pathlib import Path

import pytest

from backend.file_log.index.log_index import LogIndex
from backend.file_log.storage import File, Storage
from ddmq_common.errors import DamagedError
from tests.unit.index.logs import PretendLog, fill_gaps, run, some_rows, stored_between

FAR = 1 << 40


class Faults:
    """Counts changing operations; the one with number `fail_at` fails, a write after half its bytes."""

    def __init__(self, fail_at: int) -> None:
        self.count = 0
        self.fail_at = fail_at

    def hit(self) -> bool:
        self.count += 1
        return self.count == self.fail_at


class _FaultyFile(File):
    __slots__ = ("faults",)
    faults: Faults

    def pwrite(self, data: bytes, offset: int) -> None:
        if self.faults.hit():
            super().pwrite(data[: len(data) // 2], offset)
            raise OSError(28, "No space left on device")
        super().pwrite(data, offset)

    def truncate(self, size: int) -> None:
        if self.faults.hit():
            raise OSError(5, "Input/output error")
        super().truncate(size)

    def sync(self) -> None:
        if self.faults.hit():
            raise OSError(5, "Input/output error")


class FailingStorage(Storage):
    def __init__(self, fail_at: int) -> None:
        self.faults = Faults(fail_at)

    def open(self, path: str, *, write: bool = False) -> File:
        opened = super().open(path, write=write)
        file = _FaultyFile(path, opened.fd)
        file.faults = self.faults
        opened.fd = -1
        return file

    def rename(self, old: str, new: str) -> None:
        if self.faults.hit():
            raise OSError(5, "Input/output error")
        super().rename(old, new)

    def remove(self, path: str) -> None:
        if self.faults.hit():
            raise OSError(5, "Input/output error")
        super().remove(path)

    def sync_folder(self, folder: str) -> None:
        if self.faults.hit():
            raise OSError(5, "Input/output error")


def life(folder: Path, storage: Storage, log: PretendLog) -> None:
    """Open, three segments, seal two, drop the first. What fails is left, as its caller would."""
    index = LogIndex(storage, str(folder), lambda _: None)
    try:
        index.recover_files(log.segment_ranges())
    except OSError:
        index.recover_files(log.segment_ranges())
    for segment in range(3):
        if segment:
            log.roll(index)
        for commit in range(2):
            log.commit(index, some_rows(1_100, segment * 10 + commit, keys=5), segment * 100 + commit)
            index.write_blocks()
    for segment_range in log.segment_ranges()[:2]:
        try:
            run(index.seal_steps(segment_range))
        except (OSError, DamagedError):
            assert set(stored_between(folder, index, 0, FAR)) <= set(log.positions())
    try:
        index.drop_segment(0)
        log.starts.pop(0)
        log.rows = [row for row in log.rows if row.position >= log.starts[0]]
    except OSError:
        pass
    index.close()


def operations(folder: Path) -> int:
    storage = FailingStorage(fail_at=0)
    life(folder, storage, PretendLog())
    return storage.faults.count


@pytest.mark.slow
def test_every_write_point(tmp_path: Path) -> None:
    total = operations(tmp_path / "count")
    assert total > 20
    for fail_at in range(1, total + 1):
        folder, log = tmp_path / str(fail_at), PretendLog()
        life(folder, FailingStorage(fail_at), log)
        check_after_restart(folder, log)


def check_after_restart(folder: Path, log: PretendLog) -> None:
    index = LogIndex(Storage(), str(folder), lambda _: None)
    fill_gaps(index, log, index.recover_files(log.segment_ranges()))
    assert stored_between(folder, index, 0, FAR) == log.positions()
    assert list(index.find_key("topic-1", b"key-2", 1 << 20)) == log.by_key("topic-1", b"key-2")
    for row in log.rows[::500]:
        assert list(index.find_id(row.message_id, 9)) == log.by_id(row.message_id)
    index.close()


@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_repair_that_fails_can_be_repeated(tmp_path: Path, fail_at: int) -> None:
    log = PretendLog()
    life(tmp_path, Storage(), log)
    segment_range = log.segment_ranges()[0]
    (tmp_path / f"{segment_range[0]:020d}.entries").write_bytes(b"rubbish")
    index = LogIndex(FailingStorage(fail_at), str(tmp_path), lambda _: None)
    index.writer.segment_start = log.starts[-1]
    try:
        run(index.repair_steps(segment_range, lambda: log.rows_in(*segment_range)))
    except OSError:
        run(index.repair_steps(segment_range, lambda: log.rows_in(*segment_range)))
    assert index.damaged == set()
    check_after_restart(tmp_path, log)
