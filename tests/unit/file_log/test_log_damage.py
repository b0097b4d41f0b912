"""A region of the log with many records in it is damaged: it costs those records, and nobody's time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backend.file_log.damage as damage
import backend.file_log.index.attached as log_rows
from backend.file_log.core.layout import ENTRY_BYTES
from backend.records import QueueRef, ReadStatus
from tests.support.waits import done
from tests.unit.file_log.log_rig import LogRig

COUNT = 400
LOST = range(100, 300)


class Walks:
    """Counts what is walked through when a lost record is looked for in the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.items = 0
        self._walk = log_rows.scan_items
        monkeypatch.setattr(log_rows, "scan_items", self)

    def __call__(self, *args: Any) -> Iterator[Any]:
        for item in self._walk(*args):
            self.items += 1
            yield item


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Walks:
    return Walks(monkeypatch)


def body(offset: int) -> bytes:
    return b"%06d" % offset * 20


def damaged(tmp_path: Path) -> tuple[LogRig, QueueRef]:
    """A log whose records of the offsets in LOST are overwritten, below its checkpoint."""
    rig = LogRig(tmp_path / "log", segment_bytes=1 << 20)
    ref = rig.make()
    done(rig.append(*map(body, range(COUNT))))
    positions = [record.position for record in rig.stored(ref)]
    rig.checkpoint()
    rig.log.close()
    start, end = positions[LOST.start], positions[LOST.stop]
    with (rig.directory / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(start)
        file.write(b"\xaa" * (end - start))
    rig.open()
    return rig, ref


def read_all(rig: LogRig, ref: QueueRef, count: int, offset: int = 0) -> list[int]:
    offsets: list[int] = []
    while True:
        batch = done(rig.log.read(ref, offset, count, 1 << 20))
        if batch.status is not ReadStatus.DATA:
            return offsets
        assert 1 <= len(batch.offsets) <= count
        assert [bytes(one) for one in batch.deliveries] == [body(at) for at in batch.offsets]
        offsets += batch.offsets
        offset = batch.next_offset


@pytest.mark.parametrize("count", [1, 7, 1_000])
def test_lost_ranges_are_skipped_without_scanning_the_log(tmp_path: Path, walks: Walks, count: int) -> None:
    rig, ref = damaged(tmp_path)
    assert read_all(rig, ref, count) == [at for at in range(COUNT) if at not in LOST]
    assert read_all(rig, ref, count, LOST.start + 90) == list(range(LOST.stop, COUNT))
    assert rig.log.damaged_ranges == len(LOST)
    assert walks.items == 0, "sound entries say where the records were"


def test_without_its_entries_too_the_log_is_walked_up_to_the_next_record(
    tmp_path: Path, walks: Walks
) -> None:
    rig, ref = damaged(tmp_path)
    rig.log.close()
    (path,) = (rig.directory / "consumequeue" / "orders" / "0").iterdir()
    with path.open("r+b") as file:
        file.seek(LOST.start * ENTRY_BYTES)
        file.write(bytes(len(LOST) * ENTRY_BYTES))
    rig.open()
    assert read_all(rig, ref, 50) == [at for at in range(COUNT) if at not in LOST]
    assert walks.items <= 3 * len(LOST), "the record before, what is damaged, the record after"


def test_damage_past_the_bound_is_only_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(damage, "RANGES_MAX", 20)
    rig, ref = damaged(tmp_path)
    caplog.clear()
    assert len(read_all(rig, ref, 50)) == COUNT - len(LOST)
    assert rig.log.damaged_ranges == len(LOST)
    assert len(list((rig.directory / "damaged").iterdir())) == 20
    lines = [line for line in caplog.messages if line.startswith("damaged: ")]
    assert len(lines) == 21
    assert lines[-1] == "damaged: more than 20 ranges; from here on they are only counted"
