from pathlib import Path

import pytest

from tests.unit.sessions.pair import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)
