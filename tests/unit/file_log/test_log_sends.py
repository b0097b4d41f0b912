"""The file log and sends that are stored once: its files beside two checkpoints, and what it waits for."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.completion import Completion
from backend.file_log.core.layout import Frame, Record
from backend.file_log.core.scan import Bad, scan_items
from backend.file_log.sends import apply_identity
from backend.file_log.storage import File
from backend.idempotency import ROW_BYTES, StoredSends
from backend.records import AppendResult, AppendStatus, Durability
from ddmq_common.errors import BoundReachedError, CallerError
from ddmq_common.metrics import catalogue
from ddmq_common.send_identity import IDENTITY, key_identity, sequence_identity
from tests.support.waits import done, until
from tests.unit.file_log.log_rig import LogRig, forget_checkpoints, record

WINDOW_MS = 8_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    log_rig = LogRig(tmp_path / "log", idempotency_window_ms=WINDOW_MS)
    yield log_rig
    log_rig.close()


def send_key(rig: LogRig, number: int) -> AppendResult:
    body = b"key %d" % number
    identity = {IDENTITY: key_identity(b"orders", body, body)}
    return done(rig.log.append([record(body, system=identity)], rig.soon))[0]


def send_number(rig: LogRig, number: int, topic: str = "orders") -> Completion[list[AppendResult]]:
    identity = {IDENTITY: sequence_identity(b"producer", number, 0)}
    return rig.log.append([record(b"number %d" % number, topic, system=identity)], rig.soon)


def files(rig: LogRig) -> set[str]:
    return {path.name for path in (rig.directory / "sends").iterdir()}


def damaged(rig: LogRig) -> float:
    return rig.metrics.cell(catalogue.LOG_DAMAGED, "sends").value


def over(rig: LogRig) -> None:
    rig.clock.advance(2 * WINDOW_MS / 1_000)


def test_files_stay_as_long_as_a_checkpoint_names_them(rig: LogRig) -> None:
    """The older of two may be the one that is read."""
    rig.make()
    send_key(rig, 1)
    rig.checkpoint()
    rig.checkpoint()
    first = files(rig)
    over(rig)
    send_key(rig, 2)
    rig.checkpoint()
    assert first < files(rig)
    (rig.directory / "checkpoint").write_bytes(b"of no use")
    rig.reopen()
    assert damaged(rig) == 0, "nothing of it was lost"
    assert send_key(rig, 2).first is not None
    assert send_key(rig, 1).first is None
    for _ in range(3):
        done(rig.append(b"more"))
        rig.checkpoint()
    assert first.isdisjoint(files(rig))


def test_a_start_after_the_window_restarts_the_numbers_of_its_files(rig: LogRig) -> None:
    rig.make()
    send_key(rig, 1)
    rig.checkpoint()
    first = files(rig)
    over(rig)
    done(rig.append(b"later"))
    rig.checkpoint()
    rig.reopen()
    send_key(rig, 2)
    rig.checkpoint()
    assert files(rig) > first, "the older checkpoint may name the file of before"


def test_a_number_waits_for_no_sync_that_its_topic_does_not(rig: LogRig) -> None:
    """The client library numbers all it sends; a topic of class "written" is fast all the same."""
    rig.make("events", durability=Durability.WRITTEN)
    rig.storage.block()
    (result,) = done(send_number(rig, 1, "events"))
    assert (result.status, result.durability, result.first) == (AppendStatus.STORED, Durability.WRITTEN, None)
    (resent,) = done(send_number(rig, 1, "events"))
    assert (resent.offset, resent.first is not None) == (result.offset, True)


def test_resends_of_a_durable_record_are_answered_once_it_is_durable(rig: LogRig) -> None:
    ref = rig.make()
    rig.storage.block()
    first = send_number(rig, 1)
    rig.wait_for_pending_commit()
    resent = send_number(rig, 1)
    assert not first.done
    assert not resent.done
    rig.storage.unblock()
    assert done(first)[0].first is None
    assert done(resent)[0].first is not None
    assert len(rig.stored(ref)) == 1


def test_keys_whose_files_are_lost_come_from_all_segments_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record after the other: the log of a window is larger than the memory."""
    rig = LogRig(tmp_path / "log", idempotency_window_ms=WINDOW_MS, segment_bytes=16 << 10)
    rig.make()
    send_key(rig, 0)
    over(rig)
    for number in range(1, 61):
        send_key(rig, number)
        done(rig.append(bytes(1_000)))
    segments = len(list((rig.directory / "commitlog").glob("0*")))
    assert segments > 3
    rig.checkpoint()
    for path in (rig.directory / "sends").iterdir():
        path.unlink()
    read: list[Frame | Record | Bad] = []
    read_before: list[int] = []

    def counted(*where: Any) -> Iterator[Frame | Record | Bad]:
        for item in scan_items(*where):
            read.append(item)
            yield item

    def applied(record: Record, sends: StoredSends) -> None:
        read_before.append(len(read))
        apply_identity(record, sends)

    monkeypatch.setattr("backend.file_log.start.recovery.scan_items", counted)
    monkeypatch.setattr("backend.file_log.sends.apply_identity", applied)
    rig.reopen()
    assert damaged(rig) >= 1
    assert [number for number in range(61) if send_key(rig, number).first is None] == [0]
    assert read_before[0] < 2 * segments + 4 < read_before[-1]
    rig.close()


def test_a_clock_that_steps_forward_forgets_nothing(rig: LogRig) -> None:
    rig.make()
    send_key(rig, 1)
    rig.clock.step_wall(10 * WINDOW_MS / 1_000)
    assert send_key(rig, 1).first is not None
    rig.clock.advance(0.7 * WINDOW_MS / 1_000)
    send_key(rig, 2)
    assert send_key(rig, 1).first is not None
    rig.clock.advance(0.7 * WINDOW_MS / 1_000)
    assert [send_key(rig, number).first is None for number in (1, 2)] == [True, False]


@pytest.mark.parametrize("back", [False, True])
def test_nor_does_a_restart_behind_it(rig: LogRig, back: bool) -> None:
    """Time goes on as it was written, at first by the store times, which are ahead of a clock set back."""
    rig.make()
    send_key(rig, 1)
    rig.clock.step_wall(10 * WINDOW_MS / 1_000)
    send_key(rig, 2)
    rig.checkpoint()
    send_key(rig, 3)
    if back:
        rig.clock.step_wall(-10 * WINDOW_MS / 1_000)
    for _ in range(2):
        rig.clock.advance(0.3 * WINDOW_MS / 1_000)
        rig.reopen()
        assert [send_key(rig, number).first is None for number in (1, 2, 3)] == [False] * 3
        rig.checkpoint()
    rig.clock.advance(1.1 * WINDOW_MS / 1_000)
    assert [send_key(rig, number).first is None for number in (1, 2, 3)] == [True] * 3


def test_nor_does_a_kill_soon_after_it(rig: LogRig, tmp_path: Path) -> None:
    """Only a checkpoint says how far the clock was set forward, so there is one at once."""
    rig.make()
    send_key(rig, 1)
    rig.clock.step_wall(10 * WINDOW_MS / 1_000)
    send_key(rig, 2)
    until(lambda: rig.metrics.cell(catalogue.LOG_CHECKPOINTS, "saved").value == 1, "a checkpoint")
    send_key(rig, 3)
    shutil.copytree(rig.directory, tmp_path / "left by a kill")
    rig.close()
    killed_rig = LogRig(tmp_path / "left by a kill", idempotency_window_ms=WINDOW_MS)
    assert [send_key(killed_rig, number).first is None for number in (1, 2, 3)] == [False] * 3
    killed_rig.close()


def test_the_time_without_a_server_counts(rig: LogRig) -> None:
    rig.make()
    send_key(rig, 1)
    rig.checkpoint()
    rig.log.close()
    over(rig)
    rig.open()
    assert send_key(rig, 1).first is None


def test_a_topic_without_capacity_is_named(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "log", idempotency_keys_max=4)
    rig.make()
    rig.make("bills")
    assert [send_key(rig, number).status for number in (1, 2)] == [AppendStatus.STORED] * 2
    refused = send_key(rig, 3)
    assert (refused.status, type(refused.error)) == (AppendStatus.REFUSED, BoundReachedError)
    assert str(refused.error).startswith(
        "topic orders: 2 of its idempotency keys are remembered, and 2 of all"
    )
    identity = {IDENTITY: key_identity(b"bills", b"1", b"1")}
    assert done(rig.log.append([record(b"1", "bills", system=identity)], rig.soon))[0].error is None
    rig.close()


def resend(rig: LogRig, producer: bytes) -> AppendResult:
    identity = {IDENTITY: sequence_identity(producer, 1, 0, 1_000)}
    return done(rig.log.append([record(b"again", system=identity)], rig.soon))[0]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_forgotten_producers_stay_forgotten_after_a_restart(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, checkpoint: bool
) -> None:
    monkeypatch.setattr("backend.idempotency.PRODUCERS_MAX", 1)
    rig.make()
    for producer in (b"one", b"two"):
        identity = {IDENTITY: sequence_identity(producer, 1, 0)}
        done(rig.log.append([record(b"first", system=identity)], rig.soon))
    if checkpoint:
        rig.checkpoint()
    rig.reopen()
    refused = resend(rig, b"one")
    assert (refused.status, type(refused.error)) == (AppendStatus.REFUSED, CallerError)
    assert "not known any more" in str(refused.error)
    assert resend(rig, b"two").first is not None


def test_identities_lost_with_the_log_are_not_accepted_as_new(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "log", segment_bytes=4 << 10)
    rig.make()
    done(send_number(rig, 1))
    for _ in range(10):
        done(rig.append(bytes(1_000)))
    rig.log.close()
    first, *_ = sorted((rig.directory / "commitlog").glob("0*"))
    first.unlink()
    forget_checkpoints(rig)
    rig.open()
    rig.make()
    refused = resend(rig, b"producer")
    assert (refused.status, type(refused.error)) == (AppendStatus.REFUSED, CallerError)
    rig.close()


def spoil(path: Path, row: int) -> None:
    data = bytearray(path.read_bytes())
    data[row * ROW_BYTES + 3] ^= 1
    path.write_bytes(data)


def test_a_bad_row_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the log of the window is gone, from which the others could be had again."""
    rig = LogRig(tmp_path / "log", idempotency_window_ms=WINDOW_MS, segment_bytes=8 << 10)
    rig.make()
    for number in range(5):
        send_key(rig, number)
    for _ in range(20):
        done(rig.append(bytes(1_000)))
    rig.checkpoint()
    rig.log.close()
    (path,) = (rig.directory / "sends").iterdir()
    spoil(path, 2)
    min((rig.directory / "commitlog").glob("0*")).unlink()
    for _ in range(3):
        rig.open()
        rig.make()
        sends = {number for number in range(5) if resend_with_key(rig, number)}
        assert sends >= {0, 1, 3, 4}
        assert damaged(rig) == 1, "told once, and whole from the next checkpoint on"
        rig.checkpoint()
        done(rig.append(b"more"))
        rig.checkpoint()
        rig.log.close()
    assert f"64 bytes at {int(path.name)}: 1 of 5 idempotency keys in {path.name}: " in caplog.text
    assert "their checksums are wrong" in caplog.text


def resend_with_key(rig: LogRig, number: int) -> bool:
    return send_key(rig, number).first is not None


def test_a_lost_row_of_a_deleted_topic_hides_none_of_the_new_one(rig: LogRig) -> None:
    rig.make()
    send_key(rig, 1)
    done(rig.log.delete_topic("orders", rig.soon))
    rig.make()
    send_key(rig, 1)
    rig.checkpoint()
    rig.log.close()
    (path,) = (rig.directory / "sends").iterdir()
    spoil(path, 0)
    rig.open()
    assert damaged(rig) == 1
    assert send_key(rig, 1).first is not None


@pytest.mark.parametrize("space_returns", [False, True])
def test_a_full_disk_holds_up_no_checkpoint(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, space_returns: bool
) -> None:
    """Only behind a checkpoint may segments go: on a disk that keys have filled nothing else makes room."""
    rig.make()
    send_key(rig, 1)
    plain, full = rig.storage.open, [True]

    def opened(path: str, *, write: bool = False) -> File:
        if write and full[0] and "/sends/" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(path, write=write)

    monkeypatch.setattr(rig.storage, "open", opened)
    rig.checkpoint()
    assert rig.metrics.cell(catalogue.LOG_CHECKPOINTS, "saved").value == 1
    assert send_key(rig, 1).first is not None
    full[0] = not space_returns
    send_key(rig, 2)
    rig.checkpoint()
    rig.reopen()
    assert bool(damaged(rig)) is not space_returns
    assert [send_key(rig, number).first is None for number in (1, 2, 3)] == [False, False, True]
