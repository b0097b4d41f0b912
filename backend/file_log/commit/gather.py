"""When a group commit begins: once the event loop has nothing else that is ready.

Every request that has already arrived at a socket then shares the commit and its sync, which costs the
same for one record and for a hundred. On a loop that is never idle it begins after ROUNDS_MAX rounds of
polling, so that other traffic cannot hold it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROUNDS_MAX = 4


class Gathering:
    """One at a time: `begin`, then `then` runs once, from the hub, unless `stop` comes first."""

    __slots__ = ("_idle", "_prepare", "_rounds", "_then", "active")

    def __init__(self, loop: Any, then: Callable[[], None]) -> None:
        self._idle = loop.idle()
        self._prepare = loop.prepare()
        self._then = then
        self._rounds = 0
        self.active = False

    def begin(self) -> None:
        """Harmless when it has begun."""
        if not self.active:
            self.active = True
            self._rounds = 0
            self._idle.start(self._over)
            self._prepare.start(self._round)

    def _round(self) -> None:
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            self._over()

    def _over(self) -> None:
        self.stop()
        self._then()

    def stop(self) -> None:
        """Harmless when it has not begun."""
        if self.active:
            self.active = False
            self._idle.stop()
            self._prepare.stop()

    def close(self) -> None:
        """Give the watchers back."""
        self.stop()
        self._idle.close()
        self._prepare.close()
