"""A timer in the test's hand."""

from __future__ import annotations

from collections.abc import Callable


class RungByHand:
    """A timer that rings when the test says so."""

    def __init__(self) -> None:
        self.seconds = -1.0
        self._ring: Callable[[], object] | None = None

    def once(self, seconds: float, ring: Callable[[], object]) -> None:
        self.seconds, self._ring = seconds, ring

    def stop(self) -> None:
        self._ring = None

    def ring(self) -> None:
        ring, self._ring = self._ring, None
        assert ring is not None
        ring()
