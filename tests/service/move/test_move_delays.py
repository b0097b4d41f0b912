"""Pending delays that are moved: each fires once, at its time; cancels by old ids are true; series go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.records import CommitBatch
from ddmq.move.context import MoveError
from ddmq.move.core.scope import AT_THE_END
from ddmq.move.progress import FINISHED
from ddmq_common.delays.command import ALREADY_FIRED, CANCELLED, LOOP, UNKNOWN
from ddmq_common.names import DELAY_TOPIC, OUTCOME_TOPIC
from delay_service.config import DelayConfig
from tests.played_memory import PlayedMemory
from tests.service.delay.delay_rig import DelayRig, Disks
from tests.service.move.move_kit import MoveSide, moved
from tests.support.waits import done

SHARDS = DelayConfig(shards=2)


class TwoRigs:
    """A source at work, and a target that begins to be when `switch` has moved it."""

    def __init__(self) -> None:
        self.source = DelayRig(SHARDS)
        self.source.make("orders")
        self.clock = self.source.clock
        self.memory = PlayedMemory(self.clock)
        self.target: DelayRig | None = None

    def sides(self) -> tuple[MoveSide, MoveSide]:
        return MoveSide(self.source.backend, self.clock), MoveSide(self.memory, self.clock)

    def move(self, opener: Disks) -> object:
        return moved(*self.sides(), opener=opener.open, config=SHARDS).finish_move()

    def switch(self, opener: Disks | None = None) -> DelayRig:
        """`opener`: the stores that the move looks into; the source's own unless others are given."""
        done(self.source.service.drain(self.clock.monotonic() + 60))
        self.source.service.close()
        report = self.move(opener or self.source.disks)
        assert (report.state, report.differences) == (FINISHED, [])  # type: ignore[attr-defined]
        self.target = DelayRig(SHARDS, self.memory, self.clock)
        return self.target

    def close(self) -> None:
        self.source.close()
        if self.target is not None:
            self.target.service.close()
        self.memory.close()


@pytest.fixture
def rigs() -> Iterator[TwoRigs]:
    both = TwoRigs()
    yield both
    both.close()


@pytest.mark.parametrize("fresh", [False, True])
def test_what_waits_fires_once_at_its_time(rigs: TwoRigs, fresh: bool) -> None:
    """`fresh`: the stores are made from the log, in an empty folder, as on Kafka."""
    now = rigs.clock.wall_ms()
    for number in range(1, 21):
        rigs.source.add(number, now + number * 10_000)
    rigs.source.cancel(7, now + 70_000)
    rigs.source.settle()
    rigs.source.advance(55)
    assert len(rigs.source.bodies()) == 5
    target = rigs.switch(Disks() if fresh else None)
    before = sorted(target.bodies(), key=int)
    assert before == [b"%d" % number for number in range(1, 6)]
    target.advance(30)
    assert sorted(target.bodies(), key=int) == [b"1", b"2", b"3", b"4", b"5", b"6", b"8"]
    target.advance(300)
    assert sorted(target.bodies(), key=int) == [b"%d" % n for n in range(1, 21) if n != 7]


def test_a_cancel_by_an_old_id_is_true(rigs: TwoRigs) -> None:
    now = rigs.clock.wall_ms()
    for number in (1, 2, 3):
        rigs.source.add(number, now + number * 10_000)
    rigs.source.settle()
    rigs.source.advance(15)
    rigs.source.cancel(2, now + 20_000)
    rigs.source.settle()
    target = rigs.switch()
    target.make(OUTCOME_TOPIC)
    for number in (1, 2, 3, 4):
        target.cancel(number, now + number * 10_000, reply_queue=0, reply_id=number)
        target.settle()
    codes = {one.reply_id: one.code for one in target.outcomes()}
    assert codes == {1: ALREADY_FIRED, 2: CANCELLED, 3: CANCELLED, 4: UNKNOWN}
    target.advance(100)
    assert target.bodies() == [b"1"]


def test_a_loop_resumes_where_it_was(rigs: TwoRigs) -> None:
    now = rigs.clock.wall_ms()
    rigs.source.add(1, now + 10_000, kind=LOOP, interval_s=10, times=4, expire_s=now // 1000 + 1_000)
    rigs.source.settle()
    rigs.source.advance(10)
    rigs.source.advance(10)
    assert len(rigs.source.bodies()) == 2
    target = rigs.switch()
    for _ in range(20):
        target.advance(10)
    alone = rigs_alone()
    assert len(target.bodies()) == alone


def rigs_alone() -> int:
    """How often the same loop fires where nothing is moved."""
    rig = DelayRig(SHARDS)
    try:
        rig.make("orders")
        now = rig.clock.wall_ms()
        rig.add(1, now + 10_000, kind=LOOP, interval_s=10, times=4, expire_s=now // 1000 + 1_000)
        rig.settle()
        for _ in range(22):
            rig.advance(10)
        return len(rig.bodies())
    finally:
        rig.close()


@pytest.mark.parametrize("times", range(1, 12))
def test_an_interrupted_move_sends_no_delay_twice(
    times: int, rigs: TwoRigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddmq.move.delays.PAGE", 3)
    now = rigs.clock.wall_ms()
    for number in range(1, 21):
        rigs.source.add(number, now + number * 10_000)
    rigs.source.settle()
    rigs.source.service.close()
    real, commits = rigs.memory.commit, [0]

    class Killed(BaseException):
        pass

    def commit(batch: CommitBatch, deadline: float, into: object = None) -> object:
        if any(record.topic in AT_THE_END for record in batch.records):
            commits[0] += 1
            if commits[0] == times:
                if times % 2:
                    done(real(batch, deadline))
                raise Killed
        return real(batch, deadline, into)  # type: ignore[arg-type]

    monkeypatch.setattr(rigs.memory, "commit", commit)
    stores = rigs.source.disks
    try:
        rigs.move(stores)
    except Killed:
        rigs.move(stores)
    target = rigs.target = DelayRig(SHARDS, rigs.memory, rigs.clock)
    target.settle()
    adds = [record for shard in (0, 1) for record in target.stored(DELAY_TOPIC, shard)]
    assert len({record.message_id for record in adds}) == len(adds) == 20
    target.advance(300)
    assert sorted(map(int, target.bodies())) == list(range(1, 21))


def test_delays_that_still_fire_at_the_source_are_rejected(rigs: TwoRigs) -> None:
    with pytest.raises(MoveError, match=r"the source is still at work: .*%DELAY"):
        rigs.move(Disks())
