"""A short life of a log, told the same way each time, and what must be true of it afterwards.

The story appends to several queues of two topics, commits records with progress and settings, writes
checkpoints and rolls segments. `Promises` records each answer; `check` opens what is left and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from backend.completion import Completion
from backend.file_log import FileLog, FileLogOptions, open_log
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    Durability,
    NewRecord,
    ProgressDelta,
    QueueRef,
    StoredRecord,
    TopicInfo,
)
from ddmq_common.clock import SystemClock
from ddmq_common.errors import DdmqError
from ddmq_common.metrics.registry import Registry
from ddmq_common.send_identity import IDENTITY, key_identity, sequence_identity
from tests.crash.faulty_storage import FaultyStorage
from tests.support.constants import build_options
from tests.support.waits import done as wait
from tests.support.waits import soon, until

T = TypeVar("T")
OPTIONS: dict[str, Any] = {
    "segment_bytes": 16 << 10,
    "allocate_bytes": 8 << 10,
    "frame_bytes_max": 8 << 10,
    "checkpoint_ms": 3_600_000,
    "tail_ms": 3_600_000,
    "written_sync_ms": 3_600_000,
    "recover_retry_ms": 5,
}
CLOCK = SystemClock()


def open_story(directory: Path, storage: FaultyStorage | None = None, **options: Any) -> FileLog:
    log_options = build_options(FileLogOptions, **{**OPTIONS, **options})
    return open_log(directory, log_options, clock=CLOCK, metrics=Registry(), storage=storage)


class Promises:
    """What the log said."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int, int], bytes] = {}  # topic, queue, offset → body; durable
        self.written: dict[tuple[str, int, int], bytes] = {}  # the same of class "written"
        self.absent: set[bytes] = set()  # bodies that are certainly not there
        self.finished: dict[QueueRef, int] = {}  # acknowledged up to here
        self.settings: dict[str, bytes] = {}
        self.pairs: list[tuple[bytes, QueueRef, int]] = []  # body and acknowledgement of one commit
        self.topics: dict[str, TopicInfo] = {}
        self.count = 0
        self.failures: list[Exception] = []

    def body(self, size: int) -> bytes:
        self.count += 1
        return b"%06d:" % self.count + bytes(self.count * 7 + n & 255 for n in range(size))


class Story:
    """Tells it to one log."""

    def __init__(self, log: FileLog, promises: Promises) -> None:
        self.log = log
        self.promises = promises

    def play(self, rounds: int = 4) -> None:
        self.make("orders", 2)
        self.make("events", 1, Durability.WRITTEN)
        for number in range(rounds):
            self.append([("orders", n % 2, 300) for n in range(number % 3 + 1)])
            self.append([("events", 0, 200)])
            self.append([("orders", 0, 3000), ("events", 0, 1500)])
            self.move(number)
            if number % 2:
                self.checkpoint()

    def make(self, name: str, queues: int, durability: Durability = Durability.DURABLE) -> None:
        info = TopicInfo(name, 0, queues, durability)
        created = self.attempt(lambda: self.log.put_topic(info, soon()))
        if created is not None:
            self.promises.topics[name] = created

    def append(self, messages: Sequence[tuple[str, int, int]]) -> None:
        bodies = [self.promises.body(size) for _, _, size in messages]
        records = [
            (keyed_record if topic == "orders" else new_record)(topic, queue, body)
            for (topic, queue, _), body in zip(messages, bodies, strict=True)
        ]
        results = self.attempt(lambda: self.log.append(records, soon())) or []
        for record, result in zip(records, results, strict=False):
            self.record_result(record, result)

    def record_result(self, record: NewRecord, result: AppendResult) -> None:
        location = (record.topic, record.queue_id, result.offset)
        if result.status is AppendStatus.STORED:
            into = self.promises.stored if record.topic == "orders" else self.promises.written
            assert location not in self.promises.stored
            assert location not in self.promises.written
            into[location] = record.delivery
        elif result.status is AppendStatus.UNKNOWN:
            self.promises.failures.append(result.error or AssertionError("unknown without a reason"))
        else:
            self.promises.absent.add(record.delivery)
            assert isinstance(result.error, DdmqError), result
            self.promises.failures.append(result.error)

    def move(self, number: int) -> None:
        """Acknowledge one offset and append its copy elsewhere, in one commit."""
        info = self.promises.topics.get("orders")
        if info is None:
            return
        ref = QueueRef("orders", info.incarnation, 0)
        body = self.promises.body(100)
        delta = ProgressDelta("group", ref, 0, 0, [(number, number + 1)])
        key, value = f"setting/{number}", b"%d" % number
        batch = CommitBatch([new_record("orders", 1, body)], [delta], {key: value})
        self.promises.pairs.append((body, ref, number))
        results = self.attempt(lambda: self.log.commit(batch, soon()))
        if results is not None:
            self.record_result(batch.records[0], results[0])
            self.promises.finished[ref] = number + 1
            self.promises.settings[key] = value

    def checkpoint(self) -> None:
        """It comes when the log is at rest; a log that refuses does not rest."""
        done: list[bool] = []
        self.log.write_checkpoint(lambda: done.append(True))
        until(lambda: done or not self.log.health().ready)

    def attempt(self, call: Callable[[], Completion[T]]) -> T | None:
        try:
            return wait(call())
        except DdmqError as error:
            self.promises.failures.append(error)
            return None


def new_record(topic: str, queue: int, body: bytes) -> NewRecord:
    return NewRecord(topic, queue, body[:16].ljust(16, b"."), 1_700_000_000_000, body, body[:6], b"tag")


def keyed_record(topic: str, queue: int, body: bytes) -> NewRecord:
    """One that says who it is: odd ones by a producer's sequence, even ones by a key."""
    record, number = new_record(topic, queue, body), int(body[:6])
    identity = (
        sequence_identity(b"story", number, 0) if number % 2 else key_identity(topic.encode(), body[:6], body)
    )
    record.system = {IDENTITY: identity}
    return record


def read_all(log: FileLog, topic: str) -> dict[tuple[int, int], StoredRecord]:
    """Everything that a topic serves, by queue and offset."""
    info = log.topic(topic)
    records: dict[tuple[int, int], StoredRecord] = {}
    for queue_id in range(info.queues if info is not None else 0):
        assert info is not None
        ref = QueueRef(topic, info.incarnation, queue_id)
        bounds = wait(log.bounds([ref]))[0]
        assert bounds is not None
        offset = bounds.min
        while offset < bounds.next:
            batch = wait(log.read(ref, offset, 100, 1 << 20))
            for index, at in enumerate(batch.offsets):
                record = batch.record(index)
                assert record.offset == at
                assert record.delivery == batch.deliveries[index]
                records[queue_id, at] = record
            assert batch.next_offset > offset
            offset = batch.next_offset
    return records


def check(log: FileLog, promises: Promises, *, written_too: bool, lost: int = 0) -> None:
    """Everything promised is there, nothing refused is, and the log goes on. `lost`: damaged records."""
    records = {topic: read_all(log, topic) for topic in ("orders", "events")}
    promised = {**promises.stored, **(promises.written if written_too else {})}
    missing = []
    for (topic, queue, offset), body in promised.items():
        record = records[topic].get((queue, offset))
        if record is None:
            missing.append((topic, queue, offset))
        else:
            assert record.delivery == body
    assert len(missing) <= lost, f"acknowledged and gone: {missing}"
    served = [record.delivery for topic in records.values() for record in topic.values()]
    assert len(served) == len(set(served)), "a record is served twice"
    assert promises.absent.isdisjoint(served)
    _check_progress(log, promises, set(served), lost)
    _check_resends(log, records["orders"].values(), promises, lost)
    _check_goes_on(log)


def _check_progress(log: FileLog, promises: Promises, served: set[bytes], lost: int) -> None:
    for ref, committed in promises.finished.items():
        view = wait(log.progress("group", [ref]))[0]
        if not lost:
            assert view.committed is not None
            assert view.committed >= committed
    if lost:
        return
    for key, value in promises.settings.items():
        assert log.setting(key) == value
    for body, ref, offset in promises.pairs:
        view = wait(log.progress("group", [ref]))[0]
        finished = (view.committed or 0) > offset or any(a <= offset < b for a, b in view.finished)
        assert finished == (body in served), "a commit came apart"


def _check_resends(log: FileLog, records: Iterable[StoredRecord], promises: Promises, lost: int) -> None:
    """What is served is recognised when it is sent again."""
    for stored in records:
        identity = stored.system.get(IDENTITY)
        if identity is None:
            continue
        resend = keyed_record(stored.topic, 1 - stored.queue_id, bytes(stored.delivery))
        result = wait(log.append([resend], soon()))[0]
        assert result.status is AppendStatus.STORED, result.error
        if result.first is None:
            lost -= 1
            assert lost >= 0, f"{identity} is stored a second time"
        else:
            location = (stored.message_id, stored.queue_id, stored.offset, False)
            assert result.first == location


def check_absent(log: FileLog, promises: Promises) -> None:
    """What was not stored is taken when it is sent again; this log has then served its time."""
    for body in promises.absent if log.topic("orders") is not None else ():
        result = wait(log.append([keyed_record("orders", 0, body)], soon()))[0]
        assert (result.status, result.first) == (AppendStatus.STORED, None)


def _check_goes_on(log: FileLog) -> None:
    if log.topic("orders") is None:
        wait(log.put_topic(TopicInfo("orders", 0, 2), soon()))
    before = read_all(log, "orders")
    results = wait(log.append([new_record("orders", 0, b"after the end" + b"." * 50)], soon()))
    assert results[0].status is AppendStatus.STORED, results[0].error
    assert (0, results[0].offset) not in before
    assert read_all(log, "orders")[0, results[0].offset].delivery.startswith(b"after the end")
