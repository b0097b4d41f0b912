"""What shares a group commit: a request that cannot be packed is refused alone; a sync is never forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.records import AppendStatus, CommitBatch, Durability, NewRecord, ProgressDelta, TopicInfo
from ddmq_common.errors import CallerError, StorageError
from tests.support.waits import done, until
from tests.unit.file_log.log_rig import LogRig, record


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "log")


class Faulty(NewRecord):
    """A record that no code expects."""

    @property
    def tags(self) -> bytes:  # type: ignore[override]
        raise LookupError("nothing here")

    @tags.setter
    def tags(self, value: bytes) -> None:
        pass


def faulty() -> NewRecord:
    plain = record(b"bad", queue=1)
    return Faulty(plain.topic, plain.queue_id, plain.message_id, plain.born_ms, plain.delivery)


def refused() -> NewRecord:
    plain = record(b"bad", queue=1)
    plain.message_id = b"short"
    return plain


@pytest.mark.parametrize(
    ("bad", "error", "text", "logged"),
    [
        (faulty, StorageError, r"could not be packed .*nothing of it was stored", True),
        (refused, CallerError, r"message id of 5 bytes; allowed: 16", False),
    ],
)
def test_an_unpackable_commit_is_rejected_alone(
    rig: LogRig,
    caplog: pytest.LogCaptureFixture,
    bad: Callable[[], NewRecord],
    error: type[Exception],
    text: str,
    logged: bool,
) -> None:
    ref = rig.make(queues=2)
    rig.append_blocked(b"first")
    before = rig.append(b"before")
    progress = [ProgressDelta("g", ref, 7, 0, [(0, 1)])]
    batch = CommitBatch([record(b"x"), record(b"y", queue=1), bad()], progress, {"a": b"1"})
    failing = rig.log.commit(batch, rig.soon)
    topic = rig.log.put_topic(TopicInfo("more", 0, 1), rig.soon)
    after = [rig.append(b"after"), rig.append(b"other", queue=1)]
    rig.storage.unblock()
    with pytest.raises(error, match=text):
        done(failing)
    assert [done(call)[0].offset for call in (before, *after)] == [1, 2, 0]
    assert done(topic).name == "more"
    assert ("could not be packed" in caplog.text) is logged
    for _ in range(2):
        assert rig.bodies(ref) == [b"first", b"before", b"after"]
        assert rig.bodies(ref._replace(queue_id=1)) == [b"other"]
        assert rig.log.setting("a") is None
        assert done(rig.log.progress("g", [ref]))[0].committed is None
        rig.reopen()
    assert rig.log.recovered.damaged_ranges == 0


@pytest.mark.interpreted
def test_an_unpackable_commit_is_removed_completely(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records and a delta are packed when its setting fails: neither they nor its fence stay."""
    ref = rig.make()
    packer: Any = rig.log._writer._packer
    add, failures = packer.add_internal, ["planned"]

    def faulty(kind: Any, apply: Any, **fields: Any) -> None:
        if fields.get("key") == b"a" and failures:
            raise OverflowError(failures.pop())
        add(kind, apply, **fields)

    monkeypatch.setattr(packer, "add_internal", faulty)
    rig.append_blocked(b"first")
    high = [ProgressDelta("g", ref, 9, 0, [(0, 1)])]
    failing = rig.log.commit(CommitBatch([record(b"x")], high, {"a": b"1"}, absent=["a"]), rig.soon)
    low = [ProgressDelta("g", ref, 1, 0, [(0, 1)])]
    other = rig.log.commit(CommitBatch([record(b"second")], low, {"a": b"2"}, absent=["a"]), rig.soon)
    rig.storage.unblock()
    with pytest.raises(StorageError, match="OverflowError: planned"):
        done(failing)
    assert done(other)[0].offset == 1
    assert rig.bodies(ref) == [b"first", b"second"]
    assert rig.log.setting("a") == b"2"


def test_an_unpackable_append_is_rejected_alone(rig: LogRig) -> None:
    ref = rig.make()
    first = rig.append_blocked(b"first")
    before = rig.append(b"before", b"and more")
    plain = record(b"bad")
    bad = Faulty(plain.topic, plain.queue_id, plain.message_id, plain.born_ms, plain.delivery)
    failing = rig.log.append([record(b"good"), bad], rig.soon)
    after = rig.append(b"after")
    rig.storage.unblock()
    results = done(failing)
    assert [result.status for result in results] == [AppendStatus.REFUSED] * 2
    assert isinstance(results[0].error, StorageError)
    assert [done(call)[0].offset for call in (first, before, after)] == [0, 1, 3]
    assert rig.bodies(ref) == [b"first", b"before", b"and more", b"after"]


def test_a_sync_is_not_forgotten_over_a_late_request(tmp_path: Path) -> None:
    """What is only written becomes durable though nothing but a late request came with the sync's time."""
    rig = LogRig(tmp_path, written_sync_ms=3_600_000)
    rig.make("events", durability=Durability.WRITTEN)
    done(rig.append(b"a", topic="events"))
    writer = rig.log._writer
    assert writer.durable < writer.written
    late = rig.append(b"late", topic="events", deadline=rig.clock.monotonic() - 1)
    writer._request_sync()
    assert done(late)[0].status is AppendStatus.NOT_STORED
    until(lambda: writer.durable == writer.written, "sync of what was only written")
