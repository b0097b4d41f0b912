"""What a test stands on is closed when the test ends, however it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_open: list[Rig] = []


class Rig:
    """Its `close` is called after the test that made it; a test may close it earlier, too."""

    def __init__(self) -> None:
        _open.append(self)

    def close(self) -> None:
        """Give back what it holds; nothing happens the second time."""


@pytest.fixture(autouse=True)
def rigs_are_closed() -> Iterator[None]:
    """The last one made is the first one closed. What a whole module uses is its own affair."""
    before = len(_open)
    yield
    while len(_open) > before:
        _open.pop().close()
