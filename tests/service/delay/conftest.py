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
    made = LevelsRig()
    made.make("orders", 2)
    return made


@pytest.fixture(params=["log", "rows"])
def delay(request: pytest.FixtureRequest) -> DelayRig:
    """Over an engine that keeps commands for a time, and over one that keeps what waits."""
    clock = ManualClock()
    made = DelayRig(backend=CompactingMemory(clock) if request.param == "rows" else None, clock=clock)
    made.make("orders")
    made.make(OUTCOME_TOPIC)
    return made
