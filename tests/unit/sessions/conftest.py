from pathlib import Path

import pytest

from tests.unit.sessions.pair import Pair
from tests.unit.sessions.session_kit import SessionsRig, house


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> SessionsRig:
    """With the limits of every day; nothing runs yet."""
    return house(tmp_path)
