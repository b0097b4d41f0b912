"""Connections of a TLS port that have not made their first call yet. Pure.

They cost memory and handshakes before anybody is known, so they are bounded in time, in total and for each
address. At a bound the one gives way that has been silent for longest: at the bound of all connections one
of the address with most of them, so that a flood displaces itself. An address may exceed its own bound by
connections that were heard of within the last second: many clients of one machine may reconnect at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

FIRST_CALL_S = 5.0  # for the handshake and the first call
TOTAL_MAX = 1_000
ADDRESS_MAX = 64
SILENT_S = 1.0

N = TypeVar("N")


class Newcomers(Generic[N]):
    """The newcomers of one server. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._joined: dict[N, tuple[str, float]] = {}  # insertion order is age
        self._heard: dict[str, dict[N, float]] = {}  # by address; the longest silent first

    def __len__(self) -> int:
        return len(self._joined)

    def join(self, connection: N, address: str, now: float) -> N | None:
        """Add a connection; return the one that must be closed for it, or None."""
        displaced = self._choose_displaced(address, now)
        self._joined[connection] = (address, now)
        self._heard.setdefault(address, {})[connection] = now
        return displaced

    def _choose_displaced(self, address: str, now: float) -> N | None:
        own = self._heard.get(address, {})
        if len(own) >= ADDRESS_MAX:
            connection, heard_at = next(iter(own.items()))
            if now - heard_at >= SILENT_S:
                return connection
        if len(self._joined) >= TOTAL_MAX:
            largest = max(self._heard, key=lambda other: len(self._heard[other]))
            return next(iter(self._heard[largest]))
        return None

    def record_bytes(self, connection: N, now: float) -> None:
        """Record that bytes of a connection have arrived, if it is a newcomer."""
        entry = self._joined.get(connection)
        if entry is not None:
            own = self._heard[entry[0]]
            del own[connection]
            own[connection] = now

    def leave(self, connection: N) -> None:
        """Remove a connection that made its first call or was closed, if it is a newcomer."""
        entry = self._joined.pop(connection, None)
        if entry is not None:
            own = self._heard[entry[0]]
            del own[connection]
            if not own:
                del self._heard[entry[0]]

    def list_overdue(self, now: float) -> Iterator[N]:
        """Yield the connections whose first call is overdue. They may be removed meanwhile."""
        for connection, (_, joined_at) in list(self._joined.items()):
            if joined_at > now - FIRST_CALL_S:
                return
            yield connection
