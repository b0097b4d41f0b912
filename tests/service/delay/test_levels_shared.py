"""Several delay services over one backend share the levels; one that dies leaves its levels to the others."""

from __future__ import annotations

from pathlib import Path

from backend.file_log import FileLogOptions, open_log
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import decode
from ddmq_common.metrics.registry import Registry
from delay_service.levels.service import LevelService
from tests.service.delay.hand_alarm import HandAlarms
from tests.service.delay.levels_rig import LevelsRig
from tests.support.waits import until


def bodies(rig: LevelsRig) -> list[bytes]:
    return [decode(record.delivery).value for record in rig.stored()]


def beside(rig: LevelsRig) -> tuple[LevelService, HandAlarms]:
    """One more service over the rig's backend."""
    alarm = HandAlarms()
    service = LevelService(rig.backend, rig.config, Registry(), rig.clock, alarm)
    service.start()
    return service, alarm


def test_two_share_the_levels_and_one_takes_over(rig: LevelsRig) -> None:
    for level in range(1, 19):
        rig.send(level, [b"%d" % level])
    other, alarm = beside(rig)
    until(lambda: (rig.service.owned_count, other.owned_count) == (9, 9), "half of them each")
    waits = rig.config.table.waits
    for wait in waits[:12]:
        rig.advance((wait + 1_700_000_000_000 - rig.clock.wall_ms()) / 1_000)
        alarm.ring()
        rig.settle()
    assert bodies(rig) == [b"%d" % level for level in range(1, 13)]
    other.close()
    until(lambda: rig.service.owned_count == 18, "all are here again")
    rig.advance(7_200)
    rig.settle()
    assert sorted(map(int, bodies(rig))) == list(range(1, 19))


def test_handing_over_while_firing_makes_no_second_copy(rig: LevelsRig) -> None:
    rig.send(1, [b"%d" % number for number in range(300)])
    rig.send(12, [b"%d" % number for number in range(300, 600)])
    rig.clock.advance(480)
    rig.alarm.ring()  # fires are under way
    others = [beside(rig) for _ in range(3)]
    until(lambda: rig.service.owned_count + sum(one.owned_count for one, _ in others) == 18, "all are held")
    for _ in range(5):
        rig.advance(1)
        for _, alarm in others:
            alarm.ring()
        rig.settle()
    assert sorted(map(int, bodies(rig))) == list(range(600))
    for one, _ in others:
        one.close()


def test_on_the_file_log_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()

    def opened() -> LevelsRig:
        log = open_log(tmp_path, FileLogOptions(), clock=clock, metrics=Registry())
        return LevelsRig(backend=log, clock=clock)

    rig = opened()
    rig.make("orders")
    rig.send(1, [b"one"])
    rig.send(3, [b"three"])
    rig.advance(1)
    until(lambda: bodies(rig) == [b"one"], "the first is fired")
    rig.close()
    rig = opened()
    assert rig.position(1) == 1
    rig.advance(8.9)
    assert bodies(rig) == [b"one"]
    rig.advance(0.1)
    until(lambda: len(bodies(rig)) == 2, "the other is fired")
    first, second = rig.stored()
    assert second.stored_ms - first.stored_ms == 9_000
    assert second.born_ms == first.born_ms
