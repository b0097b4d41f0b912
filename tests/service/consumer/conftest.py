from __future__ import annotations

import pytest

from tests.service.consumer.consumer_rig import ConsumerRig


@pytest.fixture
def rig() -> ConsumerRig:
    return ConsumerRig()
