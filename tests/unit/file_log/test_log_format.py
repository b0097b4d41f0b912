"""The format of a directory: stated, made again when it is lost, brought up from the release before, and a
newer one refused, whole and untouched."""

from __future__ import annotations

import errno
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest
from format_kit import FRAME_VERSION_AT, RECORD_VERSION_AT, make_old, rewrite, salting_of, segments, tree

from backend.file_log import open_log
from backend.file_log.core.layout import Frame, Record, RecordKind
from backend.file_log.storage import File, Storage
from backend.records import CommitBatch, ProgressDelta, QueueRef
from ddmq_common.clock import ManualClock
from ddmq_common.errors import DdmqError, NewerFormatError, StorageError
from ddmq_common.metrics.registry import Registry
from tests.crash.faulty_storage import FaultyStorage
from tests.support.waits import done
from tests.unit.file_log.log_rig import LogRig

BODIES = [b"%03d" % number + b"." * 2_000 for number in range(90)]


def filled_rig(tmp_path: Path) -> tuple[LogRig, QueueRef]:
    """A log of several segments with a checkpoint, progress, a setting, and more behind the checkpoint."""
    rig = LogRig(tmp_path / "log")
    ref = rig.make()
    for body in BODIES[:60]:
        done(rig.append(body))
    delta = ProgressDelta("billing", ref, 1, 0, ((0, 3),))
    done(rig.log.commit(CommitBatch((), [delta], {"colour": b"blue"}), rig.soon))
    rig.checkpoint()
    for body in BODIES[60:]:
        done(rig.append(body))
    done(rig.log.commit(CommitBatch((), [ProgressDelta("billing", ref, 1, 0, ((3, 5),))]), rig.soon))
    rig.log.close()
    return rig, ref


def check(rig: LogRig, ref: QueueRef, damaged: int = 0) -> None:
    assert rig.log.recovered.tail_bytes == 0
    assert rig.bodies(ref)[: len(BODIES)] == BODIES
    assert done(rig.log.progress("billing", [ref]))[0].committed == 5
    assert rig.log.setting("colour") == b"blue"
    assert rig.log.damaged_ranges == damaged


def test_a_directory_states_its_format(tmp_path: Path) -> None:
    rig, ref = filled_rig(tmp_path)
    assert json.loads((rig.directory / "format").read_text().splitlines()[0])["format"] == 2
    before = (rig.directory / "format").read_bytes()
    rig.open()
    check(rig, ref)
    rig.close()
    assert (rig.directory / "format").read_bytes() == before
    other = LogRig(tmp_path / "other")
    assert salting_of(other.directory).salt != salting_of(rig.directory).salt
    other.close()


# --- the release before


def test_a_directory_of_the_previous_release_opens_and_is_written(tmp_path: Path) -> None:
    rig, ref = filled_rig(tmp_path)
    make_old(rig.directory)
    count = len(segments(rig.directory))
    for number in range(3):
        rig.open()
        check(rig, ref)
        done(rig.append(b"new %d" % number))
        assert len(segments(rig.directory)) == count + 1, "what is new has a segment of its own"
        rig.log.close()
    rig.open()
    assert rig.bodies(ref)[len(BODIES) :] == [b"new 0", b"new 1", b"new 2"]
    (record,) = done(rig.log.find("orders", message_id=BODIES[3][:16]))
    assert record.delivery == BODIES[3]
    assert salting_of(rig.directory).since == int(segments(rig.directory)[-1].name)


@pytest.mark.slow
def test_an_upgrade_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    rig, ref = filled_rig(tmp_path)
    make_old(rig.directory)
    for point in range(1, 12):
        for fault in ("crash", "fail"):
            folder = tmp_path / f"{fault}{point}"
            shutil.copytree(rig.directory, folder / "live")
            storage = FaultyStorage(folder / "live", {point: fault})
            try:
                log = open_log(
                    folder / "live", rig.options, clock=ManualClock(), metrics=Registry(), storage=storage
                )
                log.close()
            except DdmqError:
                pass
            rig.directory = storage.image(folder / "dark")
            rig.open()
            check(rig, ref)
            rig.log.close()


# --- the format file is lost


class UnreadableName(Storage):
    """One name cannot be read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, path: str, *, write: bool = False) -> File:
        plain = super().open(path, write=write)
        return _Unreadable(path, plain.fd) if path.endswith(f"/{self.name}") else plain


class _Unreadable(File):
    def pread(self, size: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("how", ["gone", "damaged", "empty"])
def test_a_lost_format_file_is_recreated(tmp_path: Path, how: str) -> None:
    rig, ref = filled_rig(tmp_path)
    path = rig.directory / "format"
    before = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(before.replace(b"2", b"3") if how == "damaged" else b"")
    rig.open()
    check(rig, ref, damaged=1)
    rig.log.close()
    assert path.read_bytes() == before
    rig.open()
    check(rig, ref)


def test_an_unreadable_format_file_is_recreated(tmp_path: Path) -> None:
    rig, ref = filled_rig(tmp_path)
    log = open_log(
        rig.directory, rig.options, clock=ManualClock(), metrics=Registry(), storage=UnreadableName("format")
    )
    assert log.damaged_ranges == 1
    log.close()
    rig.open()
    check(rig, ref)


def test_a_directory_without_format_file_and_first_frames_is_rejected_untouched(tmp_path: Path) -> None:
    rig, _ = filled_rig(tmp_path)
    (rig.directory / "format").unlink()
    for path in segments(rig.directory):
        data = bytearray(path.read_bytes())
        data[8:16] = bytes(8)
        path.write_bytes(data)
    before = tree(rig.directory)
    with pytest.raises(StorageError, match="format is missing or damaged"):
        rig.open()
    assert tree(rig.directory) == before


# --- a newer release wrote it


def newer_format(directory: Path) -> None:
    line = b'{"format":3,"something":"else"}\n'
    (directory / "format").write_bytes(line + b"%08x\n" % google_crc32c.value(line))


def newer_frame(directory: Path) -> None:
    def change(item: Frame | Record, section: bytearray) -> None:
        if isinstance(item, Frame) and item.batch_id > 70:
            section[FRAME_VERSION_AT] = 3

    rewrite(directory, change)


def newer_record(directory: Path) -> None:
    def change(item: Frame | Record, section: bytearray) -> None:
        if isinstance(item, Record) and item.kind == RecordKind.MESSAGE and item.offset == 70:
            section[RECORD_VERSION_AT] = 3

    rewrite(directory, change)


def newer_delta(directory: Path) -> None:
    def change(item: Frame | Record, section: bytearray) -> None:
        if isinstance(item, Record) and item.kind == RecordKind.PROGRESS:
            section[item.meta_bytes] = 2

    rewrite(directory, change)


def newer_frame_without_format_file(directory: Path) -> None:
    def change(item: Frame | Record, section: bytearray) -> None:
        if isinstance(item, Frame):
            section[FRAME_VERSION_AT] = 3

    rewrite(directory, change)
    (directory / "format").unlink()


def newer_checkpoint(directory: Path) -> None:
    path = directory / "checkpoint"
    data = bytearray(path.read_bytes())
    data[12:16] = struct.pack("<I", 2)
    data[8:12] = struct.pack("<I", google_crc32c.value(bytes(data[12:72])))
    path.write_bytes(data)


def newer_progress_in_checkpoint(directory: Path) -> None:
    path = directory / "checkpoint"
    data = bytearray(path.read_bytes())
    at = data.index(b"\x01\x07billing")
    data[at] = 2
    data[64:68] = struct.pack("<I", google_crc32c.value(bytes(data[72:])))
    data[8:12] = struct.pack("<I", google_crc32c.value(bytes(data[12:72])))
    path.write_bytes(data)


def newer_index(directory: Path) -> None:
    path = sorted((directory / "index").glob("*.entries"))[0]
    data = bytearray(path.read_bytes())
    data[7] = 2
    data[60:64] = struct.pack("<I", google_crc32c.value(bytes(data[:60])))
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "version", "newest"),
    [
        (newer_format, 3, 2),
        (newer_frame, 3, 2),
        (newer_record, 3, 2),
        (newer_delta, 2, 1),
        (newer_frame_without_format_file, 3, 2),
        (newer_checkpoint, 2, 1),
        (newer_progress_in_checkpoint, 2, 1),
        (newer_index, 2, 1),
    ],
)
def test_a_directory_of_a_newer_release_is_rejected_untouched(
    tmp_path: Path, change: Callable[[Path], None], version: int, newest: int
) -> None:
    rig, _ = filled_rig(tmp_path)
    change(rig.directory)
    before = tree(rig.directory)
    for _ in range(2):
        with pytest.raises(NewerFormatError) as caught:
            rig.open()
        assert f"has format version {version}, this program knows versions up to {newest}" in str(
            caught.value
        )
    assert tree(rig.directory) == before
