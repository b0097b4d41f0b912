"""A level service over the memory engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from levels_rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    made.make("orders", 2)
    yield made
    made.close()
