"""A level service, and a delay service, over the memory engine."""

from __future__ import annotations

import pytest

from ddmq_common.names import OUTCOME_TOPIC
from tests.service.delay.delay_rig import DelayRig
from tests.service.delay.levels_rig import LevelsRig


@pytest.fixture
def rig() -> LevelsRig:
    made = LevelsRig()
    made.make("orders", 2)
    return made


@pytest.fixture
def delay() -> DelayRig:
    made = DelayRig()
    made.make("orders")
    made.make(OUTCOME_TOPIC)
    return made
