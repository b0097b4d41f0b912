"""No byte that a client chooses is ever taken for structure of the log.

A client knows everything but the directory's salt: it can work out where its body will lie, and fill it
with frames and records that name the right positions, with batch ids that fit. Then the write is torn, or a
part of the log is damaged, so that recovery looks for the next sound piece inside such bodies.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from format_kit import last_batch_id, make_old, salting_of, segments
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.file_log.core.layout import (
    FLAG_DELETED,
    FRAME_BYTES,
    RECORD_BYTES,
    Frame,
    RecordKind,
    pack_frame,
    pack_record,
)
from backend.progress.codec import encode_delta
from backend.records import CommitBatch, ProgressDelta, QueueRef
from tests.examples import examples
from tests.support.waits import done
from tests.unit.file_log.log_rig import LogRig, forget_checkpoints

HEAD = FRAME_BYTES + RECORD_BYTES + len("orders")  # of a frame with one message, before its body
BODY_BYTES = 6_000


class Forger:
    """Makes bodies for a log whose next frame starts at `position`, of records that would change it."""

    def __init__(self, chance: random.Random, ref: QueueRef, batch_id: int, salt: int) -> None:
        self.chance = chance
        self.ref = ref
        self.batch_id = batch_id
        self.salt = salt

    def body(self, position: int) -> bytes:
        body = bytearray(self.chance.randbytes(BODY_BYTES))
        at = 16  # of message id
        while at < BODY_BYTES - 600:
            fragment = self.fragment(position + HEAD + at)
            body[at : at + len(fragment)] = fragment
            at += len(fragment) + self.chance.choice((0, 3, 200))
        return bytes(body)

    def fragment(self, at: int) -> bytes:
        record = self.record(at + FRAME_BYTES)
        frame = Frame(1, len(record), self.chance.choice((1, 9)), at, self.next_batch(), self.durable(at), 1)
        forms = (pack_frame(frame, self.salt) + record, self.record(at), self.empty_frame(at))
        return self.chance.choice(forms)

    def empty_frame(self, at: int) -> bytes:
        return pack_frame(Frame(0, 0, 9, at, self.next_batch(), self.durable(at), 1), self.salt)

    def durable(self, at: int) -> int:
        return self.chance.choice((at, at, 1 << 62, 1 << 36, at + 200_000))

    def next_batch(self) -> int:
        return self.batch_id + self.chance.choice((1, 1, 2, 3))

    def record(self, at: int) -> bytes:
        topic, ref = self.ref.topic.encode(), self.ref
        delta = encode_delta(ProgressDelta("billing", ref, 9, 0, ((0, 1 << 40),)))
        kinds: tuple[tuple[RecordKind, dict[str, object]], ...] = (
            (RecordKind.TOPIC, {"topic": topic, "incarnation": ref.incarnation, "flags": FLAG_DELETED}),
            (RecordKind.TOPIC, {"topic": b"forged", "incarnation": 77, "delivery": b'{"queues":1}'}),
            (RecordKind.SETTING, {"key": b"colour", "delivery": b"forged"}),
            (RecordKind.PROGRESS, {"topic": topic, "incarnation": ref.incarnation, "delivery": delta}),
            (RecordKind.MESSAGE, {"topic": topic, "incarnation": ref.incarnation, "delivery": b"forged",
                            "offset": self.chance.randrange(12)}),
        )  # fmt: skip
        kind, fields = self.chance.choice(kinds)
        return pack_record(kind, at, 1, **fields, salt=self.salt)  # type: ignore[arg-type]


def build(
    folder: Path, chance: random.Random, salt_of: Callable[[int], int]
) -> tuple[LogRig, QueueRef, list[bytes]]:
    """A closed log with some honest and some forged bodies, each in a frame of its own."""
    rig = LogRig(folder, segment_bytes=1 << 20)
    ref = rig.make()
    done(rig.log.commit(CommitBatch((), (), {"colour": b"blue"}), rig.soon))
    bodies: list[bytes] = []
    for number in range(chance.randrange(3, 9)):
        position = rig.log.durable_position
        forger = Forger(chance, ref, number + 1, salt_of(salting_of(rig.directory).salt))
        bodies.append(forger.body(position) if chance.random() < 0.7 else b"honest %03d" % number * 20)
        assert done(rig.append(bodies[-1]))[0].offset == number
        assert rig.stored(ref)[-1].position == position + FRAME_BYTES, "the forger knows where its body lies"
        if chance.random() < 0.2:
            rig.checkpoint()
    rig.log.close()
    return rig, ref, bodies


def tear(rig: LogRig, chance: random.Random) -> None:
    """The last write is cut short, and a part of what stands before it is overwritten."""
    (path,) = segments(rig.directory)
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    file_end = chance.randrange(max(end - BODY_BYTES, 1), end)
    del data[file_end:]
    for _ in range(chance.randrange(3)):
        at, size = chance.randrange(file_end), chance.choice((1, 60, 700))
        data[at : at + size] = chance.randbytes(size)
    path.write_bytes(data)


def check_nothing_forged(rig: LogRig, ref: QueueRef, bodies: list[bytes], end: int) -> None:
    """What is served was appended, at its offset; nothing else has changed."""
    log = rig.log
    assert set(log.topics()) <= {"orders"}
    assert log.setting("colour") in (b"blue", None)
    assert log.recovered.end <= end
    view = done(log.progress("billing", [ref]))[0]
    assert view.committed is None
    if log.topic("orders") is None:
        return
    for record in rig.stored(ref):
        assert record.delivery == bodies[record.offset]
    assert done(log.bounds([ref]))[0].next <= len(bodies)
    size = sum(path.stat().st_size for path in segments(rig.directory))
    assert size <= 2 << 20


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 32), st.sampled_from(["none", "guessed"]))
def test_bodies_of_frames_and_records_are_bodies(seed: int, salt: str) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        guess = chance.randrange(1, 1 << 32)
        rig, ref, bodies = build(
            Path(folder) / "log", chance, lambda own: 0 if salt == "none" else guess ^ (guess == own)
        )
        end = int(segments(rig.directory)[0].stat().st_size)
        for name in ("checkpoint", "checkpoint.old"):
            if chance.random() < 0.7:
                (rig.directory / name).unlink(missing_ok=True)
        tear(rig, chance)
        rig.open()
        check_nothing_forged(rig, ref, bodies, end)
        rig.close()


def test_the_forgeries_are_good_ones(tmp_path: Path) -> None:
    """With the salt they would be believed: else the test above would show nothing."""
    fooled = 0
    for seed in range(6):
        chance = random.Random(seed)
        rig, ref, bodies = build(tmp_path / str(seed), chance, lambda own: own)
        forget_checkpoints(rig)
        tear(rig, chance)
        rig.open()
        try:
            check_nothing_forged(rig, ref, bodies, 1 << 20)
        except AssertionError:
            fooled += 1
        rig.close()
    assert fooled >= 3


def recover_in_an_old_directory(rig: LogRig, body: bytes, end: int) -> int:
    """Store it, make the directory one of the release before, open it torn at `end`; its last batch id."""
    done(rig.append(body))
    rig.log.close()
    make_old(rig.directory)
    batch_id = last_batch_id(rig.directory)
    forget_checkpoints(rig)
    (path,) = segments(rig.directory)
    path.write_bytes(path.read_bytes()[:end])
    rig.open()
    return batch_id


@pytest.mark.parametrize("durable", ["far", "huge"])
def test_without_a_salt_an_impossible_frame_is_rejected_too(tmp_path: Path, durable: str) -> None:
    """A directory of the release before, whose last write was torn: what a forged header would prove."""
    rig = LogRig(tmp_path / "log", segment_bytes=1 << 20)
    ref = rig.make()
    done(rig.append(b"precious"))
    position = rig.log.durable_position
    body = bytearray(b"." * BODY_BYTES)
    for at in range(16, BODY_BYTES - 100, 64):
        frame_position = position + HEAD + at
        frame = Frame(0, 0, 9, frame_position, 99, 1 << 36 if durable == "far" else 1 << 62, 1)
        body[at : at + FRAME_BYTES] = pack_frame(frame)
    recover_in_an_old_directory(rig, bytes(body), position + 3_000)
    assert rig.log.recovered.end == position
    assert rig.bodies(ref) == [b"precious"]


def test_without_a_salt_a_frame_that_contradicts_its_neighbours_is_rejected(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "log", segment_bytes=1 << 20)
    ref = rig.make()
    done(rig.append(b"precious"))
    position = rig.log.durable_position
    body = bytearray(b"." * BODY_BYTES)
    for at in range(16, BODY_BYTES - 400, 256):
        frame_position = position + HEAD + at
        record = pack_record(
            RecordKind.TOPIC,
            frame_position + FRAME_BYTES,
            1,
            topic=b"orders",
            incarnation=ref.incarnation,
            flags=FLAG_DELETED,
        )
        fragment = pack_frame(Frame(1, len(record), 9, frame_position, 900 + at, frame_position, 1)) + record
        body[at : at + len(fragment)] = fragment
    assert recover_in_an_old_directory(rig, bytes(body), position + 3_000) < 900
    assert rig.log.topic("orders") is not None
    assert rig.bodies(ref) == [b"precious"]
