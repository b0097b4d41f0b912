"""Retention, its holds and the index on a real log: what goes, what stays, what readers see then."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import gevent
import pytest

from backend.file_log import FileLog, FileLogOptions, open_log
from backend.file_log.core.layout import ENTRY_BYTES
from backend.file_log.core.retention import GIB, RetentionOptions
from backend.file_log.holds import DeadLetterHolds
from backend.file_log.retention import Retention
from backend.file_log.storage import Space, Storage
from backend.records import AppendStatus, NewRecord, QueueRef, ReadStatus, StoredRecord, TopicInfo
from backend.traces import topic_info
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.errors import DiskFullError
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import TRACE_TOPIC
from tests.support.findings import INSTANCE, FindingsView
from tests.support.waits import done, until

DAY_S = 86_400
SEGMENT = 64 * 1024
DLQ = "%DLQ%g"


class StatedDisk(Storage):
    def __init__(self) -> None:
        self.free = 500 * GIB

    def space(self, folder: str) -> Space:
        return Space(self.free, 1000 * GIB)


class RetainedLog:
    def __init__(self, directory: Path, **retention: int | None) -> None:
        self.clock = ManualClock()
        self.storage = StatedDisk()
        self.sent = 0
        self.directory = directory
        self.options = FileLogOptions(
            segment_bytes=SEGMENT,
            allocate_bytes=SEGMENT,
            checkpoint_bytes=SEGMENT,
            retention=RetentionOptions(cleaning_hour=None, **retention),
        )
        self.log: FileLog = self.open()
        for name in ("t", DLQ):
            self.log.put_topic(TopicInfo(name, 0, 1), self.deadline()).wait(60)

    def open(self) -> FileLog:
        self.metrics = Registry()
        self.log = open_log(
            self.directory, self.options, clock=self.clock, metrics=self.metrics, storage=self.storage
        )
        self.retention.stop()  # its own rounds; `clean` is one
        return self.log

    def deadline(self) -> float:
        return self.clock.monotonic() + 60

    def send(self, topic: str = "t", key: bytes = b"k", size: int = 8_000) -> AppendStatus:
        self.sent += 1
        record = NewRecord(
            topic, 0, self.sent.to_bytes(16, "big"), 0, encode(key, b"x" * size, b"", None), key=key
        )
        return self.log.append([record], self.deadline()).wait(60)[0].status

    def send_many(self, count: int) -> None:
        for _ in range(count):
            self.send()

    def reopen(self) -> None:
        self.log.close()
        self.open()

    def ref(self, topic: str) -> QueueRef:
        info = self.log.topic(topic)
        assert info is not None
        return QueueRef(topic, info.incarnation, 0)

    def bounds(self, topic: str = "t") -> tuple[int, int]:
        bounds = self.log.bounds([self.ref(topic)]).wait(60)[0]
        assert bounds is not None
        return bounds

    def find_records(self, topic: str = "t", key: bytes = b"k") -> list[StoredRecord]:
        return self.log.find(topic, key=key, count_max=10_000).wait(60)

    def segments(self) -> list[int]:
        names = sorted(path.name for path in (self.directory / "commitlog").glob("[0-9]*"))
        return [int(name[:20]) for name in names]

    def letter_segments(self) -> list[int]:
        return [int(path.name[:20]) for path in sorted((self.directory / "commitlog").glob("*-0*"))]

    @property
    def retention(self) -> Retention:
        return self.log._retention

    def clean(self) -> int:
        return len(self.retention.run_once())

    def settle(self) -> None:
        """Let checkpoints catch up, so that they hold nothing: two are retained."""
        for _ in range(3):
            self.send(key=b"", size=10)
            written = Event()
            self.log._checkpoints.request_checkpoint(written.set)
            until(written.is_set)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[RetainedLog]:
    retained_log = RetainedLog(tmp_path)
    yield retained_log
    retained_log.log.close()


def test_expired_segments_go_and_readers_continue_at_the_oldest(house: RetainedLog) -> None:
    house.send_many(40)
    before = house.segments()
    house.clock.advance(4 * DAY_S)
    house.send_many(3)
    house.settle()
    assert house.clean() > 0
    after = house.segments()
    assert after == before[-len(after) :]
    low, high = house.bounds()
    assert 0 < low <= 40 < high
    batch = house.log.read(house.ref("t"), 0, 10, 1 << 20).wait(60)
    assert batch.status is ReadStatus.OUT_OF_RANGE
    assert batch.bounds == (low, high)
    assert house.log.read(house.ref("t"), low, 10, 1 << 20).wait(60).offsets[0] == low
    assert [record.offset for record in house.find_records()] == list(range(42, low - 1, -1))

    def indexed() -> set[int]:
        return {int(path.name[:20]) for path in (house.directory / "index").iterdir()}

    # what was being sorted when its segment went is removed behind that
    until(lambda: indexed() <= set(after))


def test_a_segment_left_behind_right_after_a_restart_keeps_its_age(house: RetainedLog) -> None:
    house.send_many(7)
    house.reopen()
    house.clock.advance(60)
    house.send(size=30_000)
    assert len(house.segments()) == 2, "the first send fits no more"
    house.settle()
    assert house.clean() == 0
    assert house.bounds()[0] == 0
    house.clock.advance(4 * DAY_S)
    house.settle()
    assert house.clean() == 1


def test_a_segment_before_one_that_begins_with_damage_keeps_its_age(house: RetainedLog) -> None:
    house.send_many(20)
    second = house.segments()[1]
    house.settle()
    house.log.close()
    path = house.directory / "commitlog" / f"{second:020d}"
    with path.open("r+b") as file:
        file.write(b"damage")
    house.open()
    house.settle()
    assert house.clean() == 0
    assert house.bounds()[0] == 0


@pytest.mark.parametrize("entry", range(38, 46))
def test_a_damaged_entry_hides_no_other_message(house: RetainedLog, entry: int) -> None:
    house.send_many(40)
    house.clock.advance(4 * DAY_S)
    house.send_many(3)
    house.settle()
    then_ms = house.clock.wall_ms()
    house.log.close()
    (path,) = (house.directory / "consumequeue" / "t" / "0").iterdir()
    with path.open("r+b") as file:
        file.seek(entry * ENTRY_BYTES)
        file.write(bytes(3))
    house.open()
    until(lambda: house.clean() or len(house.segments()) <= 2)
    assert len(house.segments()) <= 2
    house.retention.stop()
    oldest = min(record.offset for record in house.find_records())
    assert 0 < oldest <= 40
    assert house.bounds()[0] <= oldest
    assert house.log.offset_for_time(house.ref("t"), then_ms).wait(60) <= 40


def test_young_dead_letters_hold_their_segment(tmp_path: Path) -> None:
    house = RetainedLog(tmp_path, log_bytes_max=2 * SEGMENT)
    for number in range(40):
        house.send(DLQ if number == 20 else "t")
    house.settle()
    letter = house.find_records(DLQ)[0]
    assert house.clean() > 0
    assert house.segments()[0] <= letter.position < house.segments()[1]
    assert house.retention.blocked is not None
    assert house.retention.blocked.hold.reason == "dead letters under 3 days"
    assert house.clean() == 0
    house.clock.advance(3 * DAY_S + 1)
    assert house.clean() > 0
    assert house.find_records(DLQ) == []
    house.log.close()


LETTERS_AT = (3, 20, 21, 50)  # of 80 messages


@pytest.fixture
def retained(tmp_path: Path) -> Iterator[RetainedLog]:
    """Only two segments may stay; four dead letters lie in three others."""
    retained_log = RetainedLog(tmp_path, log_bytes_max=2 * SEGMENT)
    for number in range(80):
        retained_log.send(DLQ if number in LETTERS_AT else "t")
    retained_log.settle()
    yield retained_log
    retained_log.log.close()


def letters(house: RetainedLog) -> list[tuple[int, int]]:
    """Offset and number of all dead letters that are served, read as a group reads."""
    low, high = house.bounds(DLQ)
    records: list[tuple[int, int]] = []
    while low < high:
        batch = house.log.read(house.ref(DLQ), low, 10, 1 << 20).wait(60)
        assert batch.status is ReadStatus.DATA
        records += [
            (offset, int.from_bytes(batch.record(at).message_id, "big"))
            for at, offset in enumerate(batch.offsets)
        ]
        low = batch.next_offset
    return records


ALL_LETTERS = [(offset, number + 1) for offset, number in enumerate(LETTERS_AT)]


def assert_only_letters_remain_of_expired_segments(house: RetainedLog) -> None:
    assert letters(house) == ALL_LETTERS
    # What was not sealed when the log closed is repaired in the background.
    until(
        lambda: sorted(record.offset for record in house.find_records(DLQ)) == [0, 1, 2, 3], "all are found"
    )
    low, high = house.bounds()
    assert low > 65
    batch = house.log.read(house.ref("t"), low, 100, 1 << 20).wait(60)
    assert batch.offsets[0] == low
    assert house.log.read(house.ref("t"), 1, 10, 1).wait(60).status is ReadStatus.OUT_OF_RANGE
    assert high > low
    assert house.log.damaged_ranges == 0


def test_dead_letters_retain_their_segments_and_those_between_are_deleted(retained: RetainedLog) -> None:
    before = retained.segments()
    assert retained.clean() > 0
    deleted = [start for start in before if start not in retained.segments()]
    assert len(retained.letter_segments()) == 3
    assert len(retained.segments()) == 4, "and the one that is written"
    assert any(start > retained.letter_segments()[0] for start in deleted)
    assert_only_letters_remain_of_expired_segments(retained)
    retained.settle()
    retained.reopen()
    assert len(retained.letter_segments()) == 3
    assert_only_letters_remain_of_expired_segments(retained)
    assert retained.clean() == 0
    retained.clock.advance(3 * DAY_S + 1)
    assert retained.clean() == 3
    assert retained.letter_segments() == []
    assert letters(retained) == []


def test_a_deleted_queue_of_dead_letters_retains_nothing(retained: RetainedLog) -> None:
    retained.clean()
    retained.log.delete_topic(DLQ, retained.deadline()).wait(60)
    assert retained.clean() == 3
    assert retained.letter_segments() == []


def test_retained_dead_letters_survive_the_loss_of_every_view(retained: RetainedLog) -> None:
    retained.clean()
    retained.settle()
    low = retained.bounds()
    retained.log.close()
    for path in (retained.directory / "consumequeue").rglob("*-*"):
        path.unlink()
    retained.open()
    assert_only_letters_remain_of_expired_segments(retained)
    retained.log.close()
    (retained.directory / "format").unlink()
    retained.open()
    assert retained.log.damaged_ranges == 1, "the format file"
    assert letters(retained) == ALL_LETTERS
    retained.log.close()
    for name in ("checkpoint", "checkpoint.old"):
        (retained.directory / name).unlink()
    retained.open()
    assert retained.log.damaged_ranges == 1, "what the checkpoint alone had is lost, and this is said"
    assert letters(retained) == ALL_LETTERS
    assert retained.bounds() == low


def test_rebuilt_entries_do_not_bring_back_expired_records(retained: RetainedLog) -> None:
    for state in retained.log._state.queues():
        state.min, state.min_at = 0, 1 << 40  # as nobody had asked before the checkpoint
    retained.settle()
    retained.clean()
    retained.log.close()
    for path in (retained.directory / "consumequeue").rglob("*-*"):
        path.unlink()
    retained.open()
    assert_only_letters_remain_of_expired_segments(retained)


def test_a_crash_between_retaining_and_deleting_loses_nothing(
    retained: RetainedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError("no")

    with monkeypatch.context() as broken:
        broken.setattr(retained.storage, "remove", refuse)
        retained.clean()
    assert len(retained.letter_segments()) == 1
    retained.reopen()
    assert letters(retained) == ALL_LETTERS
    assert retained.log.damaged_ranges == 0
    retained.clean()
    assert_only_letters_remain_of_expired_segments(retained)


def test_a_lost_segment_differs_from_deleted_ones_between_retained_ones(retained: RetainedLog) -> None:
    retained.clean()
    retained.settle()
    retained.send_many(20)
    retained.settle()
    plain = [start for start in retained.segments() if start not in retained.letter_segments()]
    retained.log.close()
    (retained.directory / "commitlog" / f"{plain[1]:020d}").unlink()
    retained.open()
    assert retained.log.damaged_ranges == 1
    assert letters(retained) == ALL_LETTERS


def test_dead_letters_are_searched_only_when_needed(
    retained: RetainedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_holds = DeadLetterHolds(retained.log, retained.clock)

    def dead_letter_segments() -> list[int]:
        answer, full = find_holds(), retained.log._opened._old_segments()[:-1]
        return [at for at, segment in enumerate(full) if answer(segment) is not None]

    first = dead_letter_segments()
    assert len(first) == 3
    with monkeypatch.context() as blind:
        blind.setattr(retained.log, "read", None)
        assert dead_letter_segments() == first
    retained.clock.advance(2 * DAY_S)
    for topic in (DLQ, *(10 * "t")):
        retained.send(topic)
    second = dead_letter_segments()
    assert second[:-1] == first
    retained.clock.advance(DAY_S + 1)
    assert dead_letter_segments() == second[-1:]
    retained.clock.advance(3 * DAY_S)
    assert dead_letter_segments() == []


def test_a_full_disk_refuses_clients_and_keeps_the_reserve(house: RetainedLog) -> None:
    house.storage.free = GIB
    house.clean()
    record = NewRecord("t", 0, bytes(16), 0, encode(b"", b"x", b"", None))
    result = house.log.append([record], house.deadline()).wait(60)[0]
    assert result.status is AppendStatus.REFUSED
    assert isinstance(result.error, DiskFullError)
    assert "1.0 GiB free of 1000.0 GiB" in str(result.error)
    assert house.send(DLQ) is AppendStatus.STORED
    house.storage.free = 100
    house.clean()
    assert house.send(DLQ) is AppendStatus.REFUSED
    house.storage.free = 500 * GIB
    house.clean()
    assert house.send() is AppendStatus.STORED


def test_a_full_disk_takes_no_trace_events(house: RetainedLog) -> None:
    done(house.log.put_topic(topic_info(house.log), house.deadline()))
    record = NewRecord(TRACE_TOPIC, 0, bytes(16), 0, encode(b"", b"x", b"", None))
    assert done(house.log.append([record], house.deadline()))[0].status is AppendStatus.STORED
    house.storage.free = GIB
    house.clean()
    assert done(house.log.append([record], house.deadline()))[0].status is AppendStatus.REFUSED


def test_without_a_checkpoint_the_messages_that_are_left_are_still_there(house: RetainedLog) -> None:
    house.send_many(40)
    house.clock.advance(4 * DAY_S)
    house.send_many(3)
    house.settle()
    assert house.clean() > 0
    remaining = [(record.offset, record.message_id) for record in house.find_records()]
    low, high = house.bounds()
    assert low > 0
    house.log.close()
    for name in ("checkpoint", "checkpoint.old"):
        (house.directory / name).unlink()
    house.open()
    assert house.bounds() == (low, high)
    assert [(record.offset, record.message_id) for record in house.find_records()] == remaining
    assert house.log.damaged_ranges == 1, "what the checkpoint alone had is lost, and this is said"
    house.settle()
    assert house.bounds() == (low, high + 3)
    house.reopen()
    assert house.bounds() == (low, high + 3)
    assert house.log.damaged_ranges == 0


def test_the_index_survives_a_restart(tmp_path: Path) -> None:
    house = RetainedLog(tmp_path)
    for number in range(30):
        house.send(key=b"k%d" % (number % 3))
    house.log.close()
    reopened = RetainedLog(tmp_path)
    assert [record.offset for record in reopened.find_records(key=b"k1")] == list(range(28, 0, -3))
    ids = reopened.log.find("t", message_id=(5).to_bytes(16, "big")).wait(60)
    assert [record.offset for record in ids] == [4]
    reopened.log.close()


def test_unread_ranges_are_expired_after_a_restart_and_not_damaged(house: RetainedLog) -> None:
    house.send_many(40)
    house.clock.advance(4 * DAY_S)
    house.send()
    house.settle()
    assert house.clean() > 0
    house.settle()
    house.reopen()
    batch = house.log.read(house.ref("t"), 0, 10, 1 << 20).wait(60)
    assert batch.status is ReadStatus.OUT_OF_RANGE
    low, high = house.bounds()
    assert 0 < low < high
    assert house.log.read(house.ref("t"), low, 1, 1 << 20).wait(60).offsets[0] == low
    assert house.log.damaged_ranges == 0


@pytest.mark.slow
def test_entries_of_an_unread_topic_are_deleted_with_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.file_log.consume_queue.FILE_ENTRIES", 8)
    monkeypatch.setattr("backend.file_log.opened.FILE_ENTRIES", 8)
    house = RetainedLog(tmp_path)
    house.send_many(60)
    house.clock.advance(4 * DAY_S)
    house.send()
    house.settle()
    folder = tmp_path / "consumequeue" / "t" / "0"
    before = len(list(folder.iterdir()))
    assert house.clean() > 0
    until(lambda: len(list(folder.iterdir())) < before - 4)
    until(lambda: next(iter(house.log._state.queues())).min)
    house.log.close()


def test_a_writer_with_changed_limits_logs_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = RetainedLog(tmp_path, age_ms=10 * DAY_S * 1000)
    house.log.close()
    house.open().close()
    assert "other limits" not in caplog.text
    house.options = replace(
        house.options, retention=RetentionOptions(cleaning_hour=None, log_bytes_max=SEGMENT)
    )
    house.open().close()
    assert "age_ms 864000000 -> 259200000, log_bytes_max None -> 65536" in caplog.text
    caplog.clear()
    house.open().close()
    assert "other limits" not in caplog.text


@pytest.mark.interpreted
def test_records_deleted_during_a_read_are_expired_and_not_damaged(house: RetainedLog) -> None:
    house.send_many(40)
    house.settle()
    house.log.close()
    house.open()  # nothing of it has been read: it is fetched in a thread
    house.clock.advance(4 * DAY_S)
    house.send()
    house.settle()
    reader = house.log._queries._reader
    started, deleted = Event(), Event()

    def warm(_: object) -> None:
        started.set()
        assert deleted.wait(60)

    reader.load_ranges = warm  # type: ignore[method-assign, assignment]
    answer = house.log.read(house.ref("t"), 0, 10, 1 << 20)
    until(started.is_set)
    assert house.clean() > 0
    deleted.set()
    assert answer.wait(60).status is ReadStatus.OUT_OF_RANGE
    assert house.log.damaged_ranges == 0


def test_what_a_slow_round_measured_does_not_outlive_a_newer_one(house: RetainedLog) -> None:
    retention, storage = house.retention, house.storage
    retention.stop()
    started, measured = Event(), Event()

    def full_then_free(folder: str) -> Space:
        if started.is_set():
            return Space(500 * GIB, 1000 * GIB)
        started.set()
        assert measured.wait(60)
        return Space(0, 1000 * GIB)

    storage.space = full_then_free  # type: ignore[method-assign]
    slow = gevent.spawn(retention.run_once)
    until(started.is_set)
    newer = gevent.spawn(retention.run_once)
    newer.join(0.1)
    measured.set()
    gevent.joinall([slow, newer], timeout=60, raise_error=True)
    assert house.send() is AppendStatus.STORED


# --- findings


@pytest.fixture
def view(house: RetainedLog) -> FindingsView:
    return FindingsView(house.log, house.metrics, house.clock)


def pass_time(house: RetainedLog, view: FindingsView, seconds: float) -> None:
    def advance(step_s: float) -> None:
        house.clock.advance(step_s)
        house.clean()

    view.pass_time(seconds, advance)


def test_a_full_disk_is_a_critical_finding_that_says_what_is_rejected(
    house: RetainedLog, view: FindingsView
) -> None:
    house.storage.free = 1 * GIB
    pass_time(house, view, 30)
    assert view.ids() == [], "not for a minute"
    pass_time(house, view, 60)
    (item,) = view.items()
    assert (item["id"], item["severity"], item["command"]) == ("DdmqWritesRefused", "critical", "ddmq doctor")
    assert item["text"] == f"The log at {INSTANCE} rejects client sends: the disk is nearly full"
    house.storage.free = 100 * GIB
    pass_time(house, view, 15)
    assert view.ids() == []


def test_a_disk_that_will_be_full_is_a_warning_before(house: RetainedLog, view: FindingsView) -> None:
    pass_time(house, view, 900)
    assert view.ids() == []
    for _ in range(120):
        house.storage.free -= 2 * GIB
        pass_time(house, view, 15)
    (item,) = view.items()
    assert (item["id"], item["severity"]) == ("DdmqDiskFillsUp", "warning")
