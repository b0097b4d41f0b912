"""The index fed by frames of a real commit log: found, verified, filled up after a loss, rebuilt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.file_log.commit.packing import PackedFrame
from backend.file_log.core.layout import Frame, RecordKind, pack_frame, pack_record
from backend.file_log.index import attached
from backend.file_log.index.attached import AttachedIndex
from backend.file_log.segments import SegmentSet
from backend.file_log.storage import Storage
from tests.support.waits import until
from tests.unit.index.files_for_index import OsStorage

Message = tuple[str, bytes, bytes, bytes]  # topic, key, id, delivery


class IndexRig:
    """A commit log of hand-made frames, and its index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.damages: list[str] = []
        self.position = 0
        self.segments = SegmentSet(Storage(), str(directory))
        Storage().make_folder(self.segments.folder)
        self.roll()
        self.attach()

    def attach(self, fill_bytes_max: int = 1 << 30, storage: Storage | None = None) -> None:
        self.attached = AttachedIndex(
            storage or Storage(),
            str(self.directory),
            self.segments,
            lambda *what: self.damages.append(str(what)),
            fill_bytes_max,
        )
        self.attached.recover()

    def roll(self) -> None:
        self.segments.add(self.segments.create(self.position, 0))

    def commit(self, messages: list[Message], stored_ms: int, incarnation: int = 1) -> None:
        frame: Any = PackedFrame(self.position, 0, 0, stored_ms)
        packed = [pack_record(RecordKind.SETTING, frame.end, stored_ms, key=b"not me", delivery=b"x")]
        frame.end += len(packed[0])
        for topic, key, message_id, delivery in messages:
            for column, value in zip(frame.columns, (frame.end, topic, key, message_id), strict=True):
                column.append(value)
            packed.append(
                pack_record(
                    RecordKind.MESSAGE, frame.end, stored_ms, topic=topic.encode(), incarnation=incarnation,
                    key=key, message_id=message_id, delivery=delivery,
                )
            )  # fmt: skip
            frame.end += len(packed[-1])
        payload = b"".join(packed)
        head = pack_frame(Frame(len(packed), len(payload), 1, self.position, 0, 0, stored_ms))
        last = self.segments.last
        last.file.pwrite(head + payload, self.position - last.start)
        self.position = last.end = frame.end
        self.attached.published(frame, self.segments.last.start)

    def keyed(self, topic: str, key: bytes, incarnation: int = 1) -> list[bytes]:
        return [match[1] for match in self.attached.find_key(topic, incarnation, key, 100)()]

    def with_id(self, topic: str, message_id: bytes) -> list[bytes]:
        return [match[1] for match in self.attached.find_id(topic, 1, message_id, 100)()]


@pytest.fixture
def house(tmp_path: Path) -> IndexRig:
    return IndexRig(tmp_path)


def numbered(number: int) -> bytes:
    return number.to_bytes(16, "big")


def fill(house: IndexRig) -> None:
    """Three segments, two commits each, one of them with a record larger than a reading window."""
    for number in range(6):
        if number in (2, 4):
            house.roll()
        big = b"b" * (3 * attached.WINDOW_BYTES) if number == 1 else b"small"
        house.commit(
            [("t", b"k", numbered(number), b"%d" % number), ("t", b"big", numbered(99), big)], number
        )
        house.commit([], number)


def expect(house: IndexRig) -> None:
    assert house.keyed("t", b"k") == [b"5", b"4", b"3", b"2", b"1", b"0"]
    assert [len(match) for match in house.keyed("t", b"big")] == [5, 5, 5, 5, 3 * attached.WINDOW_BYTES, 5]
    assert house.with_id("t", numbered(3)) == [b"3"]
    assert (
        house.keyed("t", b"not me")
        == house.keyed("other", b"k")
        == house.keyed("t", b"k", incarnation=2)
        == []
    )


def test_committed_records_are_found(house: IndexRig) -> None:
    fill(house)
    expect(house)
    assert house.attached.index.writer.covered_to == house.position


def test_count_max_gives_the_newest(house: IndexRig) -> None:
    fill(house)
    assert [match[1] for match in house.attached.find_key("t", 1, b"k", 2)()] == [b"5", b"4"]


def test_records_of_an_earlier_topic_of_that_name_are_left_out(house: IndexRig) -> None:
    house.commit([("t", b"k", numbered(1), b"old")], 1, incarnation=1)
    house.commit([("t", b"k", numbered(2), b"new")], 2, incarnation=2)
    assert house.keyed("t", b"k", incarnation=2) == [b"new"]


def test_a_damaged_record_is_not_served(house: IndexRig) -> None:
    house.commit([("t", b"k", numbered(1), b"first"), ("t", b"k", numbered(2), b"second")], 1)
    last = house.segments.last
    last.file.pwrite(b"X", last.end - last.start - 1)
    assert house.keyed("t", b"k") == [b"first"]


@pytest.mark.parametrize("lost", ["all", "live"])
def test_lost_files_are_rebuilt_from_the_log(house: IndexRig, lost: str) -> None:
    fill(house)
    house.attached.close()
    for path in (house.directory / "index").iterdir():
        if lost == "all" or str(house.segments.last.start) in path.name:
            path.unlink()
    house.attach()
    house.attached._keeper.work_once()
    expect(house)
    assert house.attached.index.damaged == set()
    assert house.attached.index.list_unsealed() == []


def test_a_gap_too_large_for_the_start_is_filled_when_the_segment_is_full(house: IndexRig) -> None:
    fill(house)
    house.attached.close()
    (house.directory / "index" / f"{house.segments.last.start:020d}.entries").unlink()
    house.attach(fill_bytes_max=10)
    assert house.keyed("t", b"k") == [b"3", b"2", b"1", b"0"]
    house.roll()
    house.commit([], 9)
    house.attached._keeper.work_once()
    expect(house)


def test_after_a_rescue_old_and_new_records_match(house: IndexRig) -> None:
    """The unsynced end of a segment goes on, with its positions, in a new one."""
    fill(house)
    middle = house.position
    house.commit([("t", b"r", numbered(7), b"before")], 7)
    old = house.segments.last
    data = old.pread(middle, house.position - middle)
    segment = house.segments.create_with(middle, data, 0)
    house.segments.add(segment)
    house.commit([("t", b"r", numbered(8), b"after")], 8)
    assert house.keyed("t", b"r") == [b"after", b"before"]
    house.roll()
    house.commit([], 9)
    house.attached._keeper.work_once()
    assert house.keyed("t", b"r") == [b"after", b"before"]
    expect(house)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_sorted_while_its_segment_goes_leaves_no_file(house: IndexRig, fails: bool) -> None:
    """Retention has removed the files by then; those that the keeper makes behind it go, too."""
    fill(house)
    keeper = house.attached._keeper
    deleted_start = house.segments.segments[0].start
    index, repair = house.attached.index, house.attached.index.repair_steps

    def interrupted(segment_range: tuple[int, int], rows: Any) -> Iterator[None]:
        steps = repair(segment_range, rows)
        yield next(steps)
        if segment_range[0] == deleted_start:
            index.drop_segment(deleted_start)
            house.segments.remove(deleted_start)
        yield from steps
        if fails:
            raise OSError(5, "deleted meanwhile")

    index.repair_steps = interrupted  # type: ignore[method-assign]
    keeper.work_once()
    assert not [
        path.name for path in (house.directory / "index").iterdir() if f"{deleted_start:020d}" in path.name
    ]
    assert keeper.failures == 0


def test_reading_past_damage(house: IndexRig) -> None:
    for number in range(20):
        house.commit([("t", b"k", numbered(number), b"%d" % number)], number)
    rows = list(attached.rows_of(house.segments.segments, (0, house.position)))
    last = house.segments.last
    last.file.pwrite(b"\0" * 30, rows[7].position)
    remaining = list(attached.rows_of(house.segments.segments, (0, house.position)))
    assert remaining == rows[:7] + rows[8:]


def test_positions_that_hold_nothing(house: IndexRig) -> None:
    fill(house)
    for position in (1, house.position, house.position + 1_000_000, house.position - 1):
        assert attached.read_record(house.segments.segments, position) is None
    house.segments.last.close()
    assert attached.read_record(house.segments.segments, house.segments.last.start + 56) is None


def test_unwritable_blocks_are_reported_with_the_reason(
    house: IndexRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attached, "FLUSH_S", 0.001)
    storage = OsStorage()
    house.attach(storage=storage)
    house.attached.start()
    storage.fail_writes = True
    house.commit([("t", b"k", numbered(1), b"1")], 1)
    until(lambda: "Input/output error" in caplog.text)
    storage.fail_writes = False
    house.commit([("t", b"k", numbered(2), b"2")], 2)
    until(lambda: not house.attached.index.writer.list_unsaved())
    house.attached.close()
    assert caplog.text.count("dropped") == 1
