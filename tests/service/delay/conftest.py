"""A level service, and a delay service, over the memory engine."""

from __future__ import annotations

import pytest

from ddmq_common.clock import ManualClock
from ddmq_common.names import OUTCOME_TOPIC
from tests.service.delay.delay_rig import DelayRig
from tests.service.delay.levels_rig import LevelsRig
from tests.support.compacting_memory import CompactingMemory


@pytest.fixture
def rig() -> LevelsRig:
    rig = LevelsRig()
    rig.make("orders", 2)
    return rig


@pytest.fixture(params=["log", "rows"])
def delay(request: pytest.FixtureRequest) -> DelayRig:
    """Over an engine that keeps commands for a time, and over one that keeps what waits."""
    clock = ManualClock()
    rig = DelayRig(backend=CompactingMemory(clock) if request.param == "rows" else None, clock=clock)
    rig.make("orders")
    rig.make(OUTCOME_TOPIC)
    return rig
