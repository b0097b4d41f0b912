"""A wall clock that was wrong for a moment holds nothing up for longer, and nothing comes early."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from backend.file_log import FileLog, FileLogOptions, open_log
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from tests.service.delay.levels_rig import LevelsRig
from tests.support.waits import until

DAY_S = 86_400
JUMPS = (600.0, 2.0, 30.0 * DAY_S, 3_000.0 * DAY_S)


class LevelsOnLog:
    """The levels over a file log; wall and monotonic clock are moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.log = self.open()
        self.rig = LevelsRig(backend=self.log, clock=self.clock)

    def open(self) -> FileLog:
        self.metrics = Registry()
        options = FileLogOptions(segment_bytes=1 << 20, allocate_bytes=1 << 16)
        return open_log(self.folder, options, clock=self.clock, metrics=self.metrics)

    def restart(self) -> None:
        self.rig.close()
        self.log = self.rig.backend = self.open()
        self.rig.start()

    def glitch(self, seconds: float) -> None:
        """One message is stored while the wall clock is ahead; then it is right again."""
        self.clock.step_wall(seconds)
        self.rig.send(1, [b"meanwhile"])
        self.clock.step_wall(-seconds)

    def arrives_after(self, level: int, wait_s: float) -> None:
        """Not before its wait is over, and right then."""
        before = len(self.rig.stored())
        self.rig.send(level, [b"%d" % level])
        self.rig.advance(wait_s - 0.01)
        self.fired(before)
        self.rig.advance(0.02)
        until(lambda: len(self.rig.stored()) > before, f"a message of level {level}")

    def fired(self, count: int) -> None:
        self.rig.settle()
        assert len(self.rig.stored()) == count, "too early"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[LevelsOnLog]:
    levels_on_log = LevelsOnLog(tmp_path)
    yield levels_on_log
    levels_on_log.rig.close()


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_clock_that_was_ahead_holds_no_level_up(kit: LevelsOnLog, jump_s: float) -> None:
    kit.rig.make("orders")
    kit.glitch(jump_s)
    kit.rig.advance(1.1)
    until(lambda: len(kit.rig.stored()) == 1, "what was stored meanwhile")
    kit.arrives_after(1, 1.0)
    kit.arrives_after(3, 10.0)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_a_clock_that_was_ahead_delays_no_level_after_a_restart(kit: LevelsOnLog, jump_s: float) -> None:
    kit.rig.make("orders")
    kit.glitch(jump_s)
    kit.rig.send(3, [b"waits"])
    kit.restart()
    kit.rig.advance(1.1)
    until(lambda: len(kit.rig.stored()) == 1, "what was stored meanwhile")
    kit.rig.advance(10)
    until(lambda: len(kit.rig.stored()) == 2, "what waited over the restart")
    kit.arrives_after(1, 1.0)


def test_store_times_never_go_back_and_never_stand(kit: LevelsOnLog) -> None:
    kit.rig.make("orders")
    kit.glitch(600)
    kit.rig.advance(1.1)
    times = [kit.log.clock_ms()]
    for _ in range(5):
        kit.clock.advance(0.5)
        kit.rig.send(1, [b"x"])
        times.append(kit.log.clock_ms())
    assert [b - a for a, b in pairwise(times)] == [500] * 5
    kit.clock.step_wall(3_600)
    assert kit.log.clock_ms() == kit.clock.wall_ms(), "the wall has caught up"


def test_a_clock_ahead_gives_one_warning_and_a_metric(
    kit: LevelsOnLog, caplog: pytest.LogCaptureFixture
) -> None:
    kit.rig.make("orders")
    with caplog.at_level(logging.WARNING, logger="backend.engine"):
        kit.glitch(600)
        for _ in range(3):
            kit.log._retention.run_once()
        assert len(caplog.messages) == 1
        assert "600.0 s ahead" in caplog.messages[0]
        [row] = kit.metrics.snapshot()["ddmq_log_clock_ahead_ms"]
        assert row["value"] == 600_000
        kit.clock.step_wall(601)
        kit.log._retention.run_once()
    assert len(caplog.messages) == 2


def test_what_was_stored_ahead_of_the_wall_expires_at_its_age(kit: LevelsOnLog) -> None:
    kit.rig.make("orders")
    kit.glitch(30 * DAY_S)
    kit.rig.advance(1.1)
    moment = kit.log._retention._measure_moment
    kit.clock.advance(73 * 3_600)
    marker = moment(kit.log._opened.storage.space(str(kit.folder)))  # type: ignore[arg-type]
    assert marker.store_ms - kit.log._state.last_ms >= 72 * 3_600_000
