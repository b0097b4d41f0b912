"""Parts of the log that are missing or unreadable at opening: told as damage, and no offset is used twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.file_log.core.layout import FRAME_BYTES
from backend.file_log.core.names import parse_segment
from backend.records import CommitBatch, ProgressDelta, QueueRef
from tests.support.waits import done
from tests.unit.file_log.log_rig import LogRig, forget_checkpoints


def commitlog(rig: LogRig) -> list[Path]:
    return [
        path
        for path in sorted((rig.directory / "commitlog").iterdir())
        if parse_segment(path.name) is not None
    ]


def finish(rig: LogRig, ref: QueueRef, end: int, **rest: object) -> None:
    delta = ProgressDelta("billing", ref, 0, 0, ((0, end),), **rest)  # type: ignore[arg-type]
    done(rig.log.commit(CommitBatch((), [delta]), rig.soon))


def stored_over_segments(rig: LogRig) -> QueueRef:
    """120 messages of 1 KB, so that the log has several segments; the topic is made in the second one."""
    rig.make("first")
    for number in range(80):
        done(rig.append(b"%03d" % number + b"." * 1_000, topic="first"))
    ref = rig.make("late")
    for number in range(120):
        done(rig.append(b"%03d" % number + b"." * 1_000, topic="late"))
    return ref


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "log")


def test_message_ids_are_read_over_several_segments(rig: LogRig) -> None:
    ref = stored_over_segments(rig)
    assert len(commitlog(rig)) > 2
    stored = [record.message_id for record in rig.stored(ref)]
    for ids in (False, True):
        batch = done(rig.log.read(ref, 0, 10_000, 1 << 24, ids=ids))
        assert len(batch.offsets) == 120
        assert batch.message_ids() == stored


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_hole_in_the_middle_is_damage_and_later_records_are_served(rig: LogRig, damage: str) -> None:
    ref = stored_over_segments(rig)
    rig.log.close()
    forget_checkpoints(rig)
    victim = commitlog(rig)[1]
    if damage == "missing":
        victim.unlink()
    else:
        os.truncate(victim, 10_000)
    log = rig.open()
    assert log.recovered.damaged_ranges >= 1
    assert "damaged" in log.health().reason
    assert log.topic("late") is not None, "messages of it are left"
    assert len(rig.bodies(ref)) >= 60


def test_a_hole_below_the_checkpoint_is_reported_at_each_opening(rig: LogRig) -> None:
    ref = stored_over_segments(rig)
    rig.checkpoint()
    rig.log.close()
    commitlog(rig)[1].unlink()
    for _ in range(2):
        assert rig.open().damaged_ranges == 1
        rig.log.close()
    rig.open()
    assert rig.log.bounds([ref]).wait(5)[0] is not None


@pytest.mark.parametrize("remaining_bytes", [30_000, 0])
def test_a_last_segment_that_is_shorter_than_its_checkpoint_says(
    tmp_path: Path, remaining_bytes: int
) -> None:
    rig = LogRig(tmp_path / "log", segment_bytes=1 << 20)
    ref = rig.make()
    for number in range(100):
        done(rig.append(b"%03d" % number * 150))
    rig.checkpoint()
    rig.log.close()
    (last,) = commitlog(rig)
    os.truncate(last, remaining_bytes)
    log = rig.open()
    assert log.damaged_ranges == 1, "known before anybody reads"
    assert "damaged" in log.health().reason
    assert done(rig.append(b"new"))[0].offset == 100, "what is lost keeps its offset"
    rig.reopen()
    assert rig.bodies(ref)[-1] == b"new"
    assert done(rig.append(b"newer"))[0].offset == 101


def test_an_acknowledgement_never_outlives_its_message(rig: LogRig) -> None:
    """The last record of a queue is damaged, and the entry that knew of it was never synced."""
    ref = rig.make()
    done(rig.append(*(b"message %d" % number for number in range(5))))
    done(rig.append(b"the victim"))
    finish(rig, ref, 6)
    rig.make("other")
    done(rig.append(b"proves what stands before", topic="other"))
    at = rig.stored(ref)[-1].position
    rig.log.close()
    forget_checkpoints(rig)
    with commitlog(rig)[0].open("r+b") as file:
        file.seek(at + 20)
        file.write(bytes(60))
    for path in (rig.directory / "consumequeue").rglob("*-*"):
        os.truncate(path, 5 * 32 if "orders" in str(path) else path.stat().st_size)
    rig.open()
    stored = done(rig.append(b"new"))[0]
    view = done(rig.log.progress("billing", [ref]))[0]
    assert (view.committed, stored.offset) == (6, 6), "the new message is behind what is finished"
    rig.reopen()
    assert done(rig.append(b"newer"))[0].offset == 7


def test_an_attempt_keeps_its_offset_too(rig: LogRig) -> None:
    ref = rig.make()
    done(rig.append(b"message 0"))
    done(rig.append(b"the victim"))
    delta = ProgressDelta("billing", ref, 0, 0, (), ((1, 3),))
    done(rig.log.commit(CommitBatch((), [delta]), rig.soon))
    done(rig.log.commit(CommitBatch((), (), {"proves": b"what stands before"}), rig.soon))
    at = rig.stored(ref)[-1].position
    rig.log.close()
    forget_checkpoints(rig)
    with commitlog(rig)[0].open("r+b") as file:
        file.seek(at - FRAME_BYTES)
        file.write(bytes(FRAME_BYTES + 60))
    for path in (rig.directory / "consumequeue").rglob("*-*"):
        path.unlink()
    rig.open()
    assert done(rig.append(b"new"))[0].offset == 2


def test_an_acknowledgement_ahead_of_a_sound_log_moves_nothing(rig: LogRig) -> None:
    ref = rig.make()
    finish(rig, ref, 9)
    rig.reopen()
    assert done(rig.append(b"first"))[0].offset == 0
