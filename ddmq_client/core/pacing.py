"""How long a puller waits before its next pull. Pure.

None after messages, or after an empty answer that took the proxy the linger time. An empty answer that came
at once (a group unknown there, a proxy that cannot wait) is followed by 50 ms, doubling to 500 ms; a failed
call by 100 ms, doubling to 5 s, with jitter.
"""

from __future__ import annotations

from collections.abc import Callable

EMPTY_FIRST_S, EMPTY_MAX_S = 0.05, 0.5
FAILED_FIRST_S, FAILED_MAX_S = 0.1, 5.0
LINGER_MIN_S = 0.02  # proxies wait no shorter


class Pace:
    """One puller's pauses."""

    def __init__(self, linger_s: float, jitter: Callable[[], float]) -> None:
        """`jitter` returns a number in [0, 1)."""
        self._linger_s = linger_s
        self._jitter = jitter
        self._empties = 0
        self._failures = 0

    @property
    def failing(self) -> bool:
        """The last call failed."""
        return self._failures > 0

    def answered(self, messages: int, took_s: float, asked_s: float | None = None) -> float:
        """Seconds to wait after an answer; `asked_s`: the linger time of this call, where it was another."""
        self._failures = 0
        linger_s = self._linger_s if asked_s is None else max(asked_s, LINGER_MIN_S)
        if messages or took_s >= linger_s / 2:
            self._empties = 0
            return 0.0
        pause = min(EMPTY_FIRST_S * 2.0 ** min(self._empties, 10), EMPTY_MAX_S)
        self._empties += 1
        return pause

    def failed(self) -> float:
        """Seconds to wait after a call without answer, or a refused one."""
        pause = min(FAILED_FIRST_S * 2.0 ** min(self._failures, 10), FAILED_MAX_S)
        self._failures += 1
        return pause * (0.75 + self._jitter() / 2)
