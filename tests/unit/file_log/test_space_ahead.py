"""Space written ahead of small frames: zeros that are no log, inside what is allocated."""

from __future__ import annotations

from pathlib import Path

from backend.file_log.commit.committer import AHEAD_BYTES, AHEAD_FRAME_BYTES_MAX, AHEAD_FRAMES, LogEnd
from backend.file_log.segments import SegmentSet
from backend.file_log.storage import File, Storage
from tests.unit.file_log.log_rig import LogRig, done

SEGMENT_BYTES = 4 << 20


class Noted(File):
    """Notes how much is written through at a time."""

    __slots__ = ("sizes",)
    sizes: list[int]

    def write_through(self, data: bytes, offset: int) -> None:
        self.sizes.append(len(data))
        super().write_through(data, offset)


class NotedStorage(Storage):
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def open(self, path: str, *, write: bool = False) -> File:
        file = Noted(path, super().open(path, write=write).fd)
        file.sizes = self.sizes
        return file


def opened(folder: Path, allocate_bytes: int = SEGMENT_BYTES) -> tuple[LogEnd, list[int]]:
    storage = NotedStorage()
    segments = SegmentSet(storage, str(folder))
    storage.make_folder(segments.folder)
    segments.add(segments.create(0, SEGMENT_BYTES))
    return LogEnd(segments, SEGMENT_BYTES, allocate_bytes), storage.sizes


def test_small_frames_share_one_stretch_of_zeros(tmp_path: Path) -> None:
    log_end, sizes = opened(tmp_path)
    frame, ahead = b"f" * 1000, AHEAD_FRAMES
    for index in range(ahead + 2):
        log_end.write(frame, index * 1000, sync=True)
    assert sizes == [1000 + 1000 * ahead, *[1000] * ahead, 1000 + 1000 * ahead]
    assert log_end.segment.file.pread(1000 * (ahead + 2), 0) == frame * (ahead + 2)
    assert not any(log_end.segment.file.pread(1000 * ahead, 1000 * (ahead + 2)))


def test_they_have_a_bound(tmp_path: Path) -> None:
    log_end, sizes = opened(tmp_path)
    log_end.write(b"f" * AHEAD_FRAME_BYTES_MAX, 0, sync=True)
    assert sizes == [AHEAD_FRAME_BYTES_MAX + AHEAD_BYTES]


def test_large_frames_and_unsynced_ones_have_none(tmp_path: Path) -> None:
    log_end, sizes = opened(tmp_path)
    large = b"l" * (AHEAD_FRAME_BYTES_MAX + 1)
    log_end.write(large, 0, sync=True)
    log_end.write(b"later", len(large), sync=False)
    assert sizes == [len(large)]


def test_zeros_end_where_the_allocation_ends(tmp_path: Path) -> None:
    log_end, sizes = opened(tmp_path, allocate_bytes=8192)
    log_end.write(b"f" * 1000, 0, sync=True)
    assert sizes == [8192]


def test_zeros_ahead_are_no_damaged_tail(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    ref = rig.make()
    done(rig.append(b"one", b"two"))
    recovered = rig.reopen().recovered
    assert (recovered.tail_bytes, recovered.damaged_ranges) == (0, 0)
    assert rig.bodies(ref) == [b"one", b"two"]
