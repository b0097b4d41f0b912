from __future__ import annotations

from collections.abc import Iterator

import pytest
from consumer_rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()
