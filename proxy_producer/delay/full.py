"""Topics that take no more delayed messages for now, as the delay services say (delay_service/quota.py)."""

from __future__ import annotations

from collections.abc import Callable

from backend.port import Backend
from ddmq_common.delays.full import decode_full
from ddmq_common.names import DELAY_FULL_PREFIX


class FullTopics:
    """What one producer proxy knows of them. `names` is nearly always empty; the hot path looks there."""

    __slots__ = ("_backend", "_unwatch", "names")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.names: frozenset[str] = frozenset()
        self._unwatch: Callable[[], None] = backend.watch_settings(self._changed)
        self._changed(DELAY_FULL_PREFIX)

    def close(self) -> None:
        """Hear of no more changes."""
        self._unwatch()

    def _changed(self, key: str) -> None:
        if key.startswith(DELAY_FULL_PREFIX):
            told = self._backend.settings(DELAY_FULL_PREFIX).values()
            self.names = frozenset(topic for value in told for topic in decode_full(value))
