"""The folder of sample files: whole or no files, merged hours, deletion by age and size, faults anywhere."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ddmq.server.process.sample_folder import MERGE_AFTER_MS, FolderCalls, SampleFolder, failure_reason
from ddmq_common.metrics import samples
from ddmq_common.metrics.samples import HOUR_MS, SampleName

MINE, OTHER = "a" * 16, "b" * 16
HOUR = 1_795_316_400_000  # 2026-11-22T03:00Z
LATER = HOUR + HOUR_MS + MERGE_AFTER_MS
GIB = 1 << 30


class Crash(Exception):
    """The process ends here."""


class FaultyDisk(FolderCalls):
    """Does `fault` before the call that `at` names, or in the middle of a write."""

    def __init__(self, at: str, fault: Exception) -> None:
        self.at = at
        self.fault: Exception | None = fault

    def _at(self, what: str) -> None:
        if what == self.at and self.fault is not None:
            raise self.fault

    def write(self, path: Path, payload: bytes) -> None:
        self._at("write")
        super().write(path, payload[: len(payload) // 2])
        self._at("half")
        super().write(path, payload)

    def join(self, path: Path, sources: Iterable[Path]) -> None:
        self._at("join")
        super().join(path, self._half(sources))

    def _half(self, sources: Iterable[Path]) -> Iterator[Path]:
        for source in sources:
            yield source
            self._at("half joined")

    def rename(self, path: Path, name: str) -> None:
        self._at("rename")
        super().rename(path, name)
        self._at("renamed")

    def delete(self, path: Path) -> bool:
        self._at("delete")
        done = super().delete(path)
        self._at("deleted one")
        return done


def fill(root: Path, instance: str, sequence: Iterable[int], at_ms: int = HOUR) -> None:
    folder = SampleFolder(root, instance)
    for seq in sequence:
        folder.write(
            samples.folder(at_ms), samples.interval_name(instance, seq), f"{instance[0]}{seq}\n".encode()
        )


def sweep(root: Path, now_ms: int = LATER, keep_days: int = 90, bytes_max: int = GIB) -> dict[str, int]:
    swept = SampleFolder(root, MINE).sweep(now_ms, keep_days, bytes_max)
    assert swept.failed == []
    assert swept.remaining_bytes == sum(path.stat().st_size for path in root.rglob("*.jsonl"))
    return swept.deleted


def read_files(root: Path) -> dict[str, str]:
    """Every file, hidden ones too, and what is in it."""
    return {path.name: path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def lines(root: Path) -> list[str]:
    """What a reader that drops duplicates finds: files that do not start with a dot."""
    visible = {name: text for name, text in read_files(root).items() if not name.startswith(".")}
    return sorted({line for text in visible.values() for line in text.splitlines()})


# --- writing


def test_a_file_lies_in_the_folder_of_its_hour(tmp_path: Path) -> None:
    SampleFolder(tmp_path / "made", MINE).write(samples.folder(HOUR), samples.interval_name(MINE, 3), b"x\n")
    path = tmp_path / "made" / "date=2026-11-22" / "hour=03" / f"samples-{MINE}-00000003.jsonl"
    assert path.read_bytes() == b"x\n"


@pytest.mark.parametrize("at", ["write", "half", "rename"])
def test_a_file_is_whole_or_not_there(tmp_path: Path, at: str) -> None:
    folder = SampleFolder(tmp_path, MINE, FaultyDisk(at, OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full") as caught:
        folder.write(samples.folder(HOUR), samples.interval_name(MINE, 0), b"x\n" * 100)
    assert failure_reason(caught.value) == "full"
    assert read_files(tmp_path) == {}, "nor what was begun"


@pytest.mark.parametrize("at", ["half", "rename"])
def test_what_a_killed_process_was_writing_is_hidden_and_deleted_later(tmp_path: Path, at: str) -> None:
    folder = SampleFolder(tmp_path, OTHER, FaultyDisk(at, Crash()))
    with pytest.raises(Crash):
        folder.write(samples.folder(HOUR), samples.interval_name(OTHER, 0), b"x\n" * 100)
    assert list(read_files(tmp_path)) == [samples.interval_name(OTHER, 0).hidden]
    assert lines(tmp_path) == []
    assert sweep(tmp_path, LATER - 1) == {}, "somebody may be writing it"
    assert sweep(tmp_path) == {"left": 1}
    assert read_files(tmp_path) == {}


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "full"),
        (errno.EROFS, "read-only"),
        (errno.ENOENT, "missing"),
        (errno.ENOTDIR, "missing"),
        (errno.EACCES, "denied"),
        (errno.EIO, "other"),
    ],
)
def test_every_error_has_a_bounded_word(number: int, word: str) -> None:
    assert failure_reason(OSError(number, os.strerror(number))) == word


def test_a_file_where_the_folder_should_be_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        SampleFolder(tmp_path / "file" / "metrics", MINE).write(
            "date=2026-01-01/hour=00", samples.interval_name(MINE, 0), b""
        )
    assert failure_reason(caught.value) == "missing"


# --- merging


def merged(first: int, last: int) -> str:
    return str(SampleName(MINE, first, last, True))


def test_an_hour_that_ended_long_ago_becomes_one_file_and_its_parts_go_at_the_next_sweep(
    tmp_path: Path,
) -> None:
    fill(tmp_path, MINE, [9, 10, 8])
    fill(tmp_path, OTHER, [1, 2])
    assert sweep(tmp_path, LATER - 1) == {}
    before = lines(tmp_path)
    assert sweep(tmp_path) == {}
    assert read_files(tmp_path)[merged(8, 10)] == "a8\na9\na10\n"
    assert len(read_files(tmp_path)) == 6, "who listed the parts can still read them"
    assert lines(tmp_path) == before
    assert sweep(tmp_path) == {"merged": 3}
    assert list(read_files(tmp_path)) == [
        merged(8, 10),
        str(samples.interval_name(OTHER, 1)),
        str(samples.interval_name(OTHER, 2)),
    ]
    assert lines(tmp_path) == before
    assert sweep(tmp_path) == {}


def test_merged_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddmq.server.process.sample_folder.MERGED_BYTES_MAX", 7)
    fill(tmp_path, MINE, range(1, 6))  # 3 bytes each
    before = lines(tmp_path)
    sweep(tmp_path)
    sweep(tmp_path)
    assert list(read_files(tmp_path)) == [merged(1, 2), merged(3, 4), str(samples.interval_name(MINE, 5))]
    assert lines(tmp_path) == before


def test_a_single_file_stays_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path, MINE, [4])
    sweep(tmp_path)
    assert list(read_files(tmp_path)) == [str(samples.interval_name(MINE, 4))]


def test_what_comes_into_a_merged_hour_is_merged_by_itself(tmp_path: Path) -> None:
    """The clock was set back."""
    fill(tmp_path, MINE, [1, 2])
    sweep(tmp_path)
    sweep(tmp_path)
    fill(tmp_path, MINE, [900])
    sweep(tmp_path)
    fill(tmp_path, MINE, [901])
    sweep(tmp_path)
    sweep(tmp_path)
    assert list(read_files(tmp_path)) == [merged(1, 2), merged(900, 901)]
    assert lines(tmp_path) == ["a1", "a2", "a900", "a901"]


def sweep_twice(folder: SampleFolder) -> None:
    for _ in range(2):
        assert folder.sweep(LATER, 90, GIB).failed == []


@pytest.mark.parametrize("at", ["join", "half joined", "rename", "renamed", "delete", "deleted one"])
def test_a_crash_anywhere_in_a_merge_loses_nothing(tmp_path: Path, at: str) -> None:
    fill(tmp_path, MINE, range(5))
    before = lines(tmp_path)
    crashing = SampleFolder(tmp_path, MINE, FaultyDisk(at, Crash()))
    with pytest.raises(Crash):
        sweep_twice(crashing)
    assert lines(tmp_path) == before
    sweep_twice(SampleFolder(tmp_path, MINE))
    assert read_files(tmp_path) == {merged(0, 4): "a0\na1\na2\na3\na4\n"}


def test_covered_parts_of_a_process_that_is_gone_are_deleted_by_others(tmp_path: Path) -> None:
    fill(tmp_path, OTHER, range(3))
    SampleFolder(tmp_path, OTHER).sweep(LATER, 90, GIB)
    assert sweep(tmp_path) == {"merged": 3}
    assert lines(tmp_path) == ["b0", "b1", "b2"]


@pytest.mark.parametrize("at", ["join", "half joined", "rename"])
def test_a_full_disk_leaves_the_parts(tmp_path: Path, at: str) -> None:
    fill(tmp_path, MINE, range(3))
    before = read_files(tmp_path)
    disk = FaultyDisk(at, OSError(errno.ENOSPC, "full"))
    folder = SampleFolder(tmp_path, MINE, disk)
    assert [failure_reason(error) for error in folder.sweep(LATER, 90, GIB).failed] == ["full"]
    assert read_files(tmp_path) == before
    disk.fault = None
    assert folder.sweep(LATER, 90, GIB).failed == []
    assert merged(0, 2) in read_files(tmp_path)


# --- deleting


def test_hours_older_than_the_days_to_keep_go_with_their_folders(tmp_path: Path) -> None:
    day = 24 * HOUR_MS
    fill(tmp_path, OTHER, [1, 2], HOUR - 2 * day)
    fill(tmp_path, OTHER, [3], HOUR - day)
    assert sweep(tmp_path, HOUR, keep_days=1) == {"age": 2}
    assert lines(tmp_path) == ["b3"]
    assert [path.name for path in tmp_path.iterdir()] == ["date=2026-11-21"]
    assert sweep(tmp_path, HOUR + HOUR_MS, keep_days=1) == {"age": 1}
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_files_go_until_the_rest_fits(tmp_path: Path) -> None:
    fill(tmp_path, OTHER, [5], HOUR - 30 * HOUR_MS)
    fill(tmp_path, OTHER, [1, 2, 3], HOUR)
    for age, seq in enumerate([3, 1, 2]):  # 3 is the newest
        path = tmp_path / samples.folder(HOUR) / str(samples.interval_name(OTHER, seq))
        os.utime(path, ns=(0, (10 - age) * 10**9))
    assert sweep(tmp_path, HOUR, bytes_max=6) == {"bytes": 2}
    assert lines(tmp_path) == ["b1", "b3"]
    assert [path.name for path in tmp_path.iterdir()] == ["date=2026-11-22"]


def test_files_of_others_stay(tmp_path: Path) -> None:
    fill(tmp_path, OTHER, [1], HOUR)
    hour = tmp_path / samples.folder(HOUR)
    for path in (tmp_path / "README", hour / "notes.txt", hour / ".nfs0001", hour / "_SUCCESS"):
        path.write_text("kept")
    (tmp_path / "date=soon").mkdir()
    (tmp_path / "date=2026-01-01").write_text("a file")
    assert sweep(tmp_path, HOUR + 1_000 * 24 * HOUR_MS, keep_days=1) == {"age": 1}
    assert sorted(read_files(tmp_path)) == [".nfs0001", "README", "_SUCCESS", "date=2026-01-01", "notes.txt"]


def test_deletions_that_fail_are_told_and_the_rest_is_done(tmp_path: Path) -> None:
    fill(tmp_path, OTHER, [1], HOUR)
    disk = FaultyDisk("delete", OSError(errno.EROFS, "read-only"))
    swept = SampleFolder(tmp_path, MINE, disk).sweep(HOUR + 100 * 24 * HOUR_MS, 90, GIB)
    assert [failure_reason(error) for error in swept.failed] == ["read-only"]
    assert lines(tmp_path) == ["b1"]


def test_a_folder_that_is_not_there_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == {}
