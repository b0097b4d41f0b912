"""A short life of a log, told the same way each time, and what must be true of it afterwards.

The story appends to several queues of two topics, commits records with progress and settings, writes
checkpoints and rolls segments. `Told` remembers each answer; `check` opens what is left and compares.
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
    chosen = build_options(FileLogOptions, **{**OPTIONS, **options})
    return open_log(directory, chosen, clock=CLOCK, metrics=Registry(), storage=storage)


class Told:
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

    def __init__(self, log: FileLog, told: Told) -> None:
        self.log = log
        self.told = told

    def tell(self, rounds: int = 4) -> None:
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
        made = self.ask(lambda: self.log.put_topic(info, soon()))
        if made is not None:
            self.told.topics[name] = made

    def append(self, wanted: Sequence[tuple[str, int, int]]) -> None:
        bodies = [self.told.body(size) for _, _, size in wanted]
        records = [
            (known_record if topic == "orders" else new_record)(topic, queue, body)
            for (topic, queue, _), body in zip(wanted, bodies, strict=True)
        ]
        results = self.ask(lambda: self.log.append(records, soon())) or []
        for record, result in zip(records, results, strict=False):
            self.note(record, result)

    def note(self, record: NewRecord, result: AppendResult) -> None:
        place = (record.topic, record.queue_id, result.offset)
        if result.status is AppendStatus.STORED:
            into = self.told.stored if record.topic == "orders" else self.told.written
            assert place not in self.told.stored
            assert place not in self.told.written
            into[place] = record.delivery
        elif result.status is AppendStatus.UNKNOWN:
            self.told.failures.append(result.error or AssertionError("unknown without a reason"))
        else:
            self.told.absent.add(record.delivery)
            assert isinstance(result.error, DdmqError), result
            self.told.failures.append(result.error)

    def move(self, number: int) -> None:
        """Acknowledge one offset and append its copy elsewhere, in one commit."""
        info = self.told.topics.get("orders")
        if info is None:
            return
        ref = QueueRef("orders", info.incarnation, 0)
        body = self.told.body(100)
        delta = ProgressDelta("group", ref, 0, 0, [(number, number + 1)])
        key, value = f"setting/{number}", b"%d" % number
        batch = CommitBatch([new_record("orders", 1, body)], [delta], {key: value})
        self.told.pairs.append((body, ref, number))
        results = self.ask(lambda: self.log.commit(batch, soon()))
        if results is not None:
            self.note(batch.records[0], results[0])
            self.told.finished[ref] = number + 1
            self.told.settings[key] = value

    def checkpoint(self) -> None:
        """It comes when the log is at rest; a log that refuses does not rest."""
        done: list[bool] = []
        self.log.write_checkpoint(lambda: done.append(True))
        until(lambda: done or not self.log.health().ready)

    def ask(self, call: Callable[[], Completion[T]]) -> T | None:
        try:
            return wait(call())
        except DdmqError as error:
            self.told.failures.append(error)
            return None


def new_record(topic: str, queue: int, body: bytes) -> NewRecord:
    return NewRecord(topic, queue, body[:16].ljust(16, b"."), 1_700_000_000_000, body, body[:6], b"tag")


def known_record(topic: str, queue: int, body: bytes) -> NewRecord:
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
    found: dict[tuple[int, int], StoredRecord] = {}
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
                found[queue_id, at] = record
            assert batch.next_offset > offset
            offset = batch.next_offset
    return found


def check(log: FileLog, told: Told, *, written_too: bool, lost: int = 0) -> None:
    """Everything promised is there, nothing refused is, and the log goes on. `lost`: damaged records."""
    found = {topic: read_all(log, topic) for topic in ("orders", "events")}
    promised = {**told.stored, **(told.written if written_too else {})}
    missing = []
    for (topic, queue, offset), body in promised.items():
        record = found[topic].get((queue, offset))
        if record is None:
            missing.append((topic, queue, offset))
        else:
            assert record.delivery == body
    assert len(missing) <= lost, f"acknowledged and gone: {missing}"
    served = [record.delivery for topic in found.values() for record in topic.values()]
    assert len(served) == len(set(served)), "a record is served twice"
    assert told.absent.isdisjoint(served)
    _check_progress(log, told, set(served), lost)
    _check_known(log, found["orders"].values(), told, lost)
    _check_goes_on(log)


def _check_progress(log: FileLog, told: Told, served: set[bytes], lost: int) -> None:
    for ref, committed in told.finished.items():
        view = wait(log.progress("group", [ref]))[0]
        if not lost:
            assert view.committed is not None
            assert view.committed >= committed
    if lost:
        return
    for key, value in told.settings.items():
        assert log.setting(key) == value
    for body, ref, offset in told.pairs:
        view = wait(log.progress("group", [ref]))[0]
        finished = (view.committed or 0) > offset or any(a <= offset < b for a, b in view.finished)
        assert finished == (body in served), "a commit came apart"


def _check_known(log: FileLog, found: Iterable[StoredRecord], told: Told, lost: int) -> None:
    """What is served is recognised when it is sent again."""
    for stored in found:
        identity = stored.system.get(IDENTITY)
        if identity is None:
            continue
        again = known_record(stored.topic, 1 - stored.queue_id, bytes(stored.delivery))
        result = wait(log.append([again], soon()))[0]
        assert result.status is AppendStatus.STORED, result.error
        if result.first is None:
            lost -= 1
            assert lost >= 0, f"{identity} is stored a second time"
        else:
            place = (stored.message_id, stored.queue_id, stored.offset, False)
            assert result.first == place


def check_absent(log: FileLog, told: Told) -> None:
    """What was not stored is taken when it is sent again; this log has then served its time."""
    for body in told.absent if log.topic("orders") is not None else ():
        result = wait(log.append([known_record("orders", 0, body)], soon()))[0]
        assert (result.status, result.first) == (AppendStatus.STORED, None)


def _check_goes_on(log: FileLog) -> None:
    if log.topic("orders") is None:
        wait(log.put_topic(TopicInfo("orders", 0, 2), soon()))
    before = read_all(log, "orders")
    results = wait(log.append([new_record("orders", 0, b"after the end" + b"." * 50)], soon()))
    assert results[0].status is AppendStatus.STORED, results[0].error
    assert (0, results[0].offset) not in before
    assert read_all(log, "orders")[0, results[0].offset].delivery.startswith(b"after the end")
