"""The store's clock: wall time that neither goes back nor stands still.

Where the wall clock has stepped back behind the newest store time, it goes on from that at the pace of the
monotonic clock, until the wall has caught up: what is due after a wait is then due after that wait, not when
the wall is right again. A message that was stored while the wall was ahead leaves it ahead, also after a
restart; that is warned of, once, and shown by a gauge.
"""

from __future__ import annotations

import logging

from ddmq_common.clock import Clock
from ddmq_common.metrics.cells import MetricCell

log = logging.getLogger(__name__)
AHEAD_WARN_MS = 1_000


class StoreClock:
    """`last_ms`: the newest store time there is. Belongs to the hub."""

    __slots__ = ("_base_ms", "_base_s", "_clock", "_stamp", "_warned")

    def __init__(self, clock: Clock, last_ms: int) -> None:
        self._clock = clock
        self._base_ms = float(last_ms)
        self._base_s = clock.monotonic()
        self._stamp = self._base_ms, self._base_s
        self._warned = False

    def now_ms(self) -> int:
        """What a message would be stored with now."""
        return int(self._at(self._clock.monotonic()))

    def stamp(self, now_s: float) -> int:
        """The store time of what is being written; `now_s` is the monotonic time."""
        found = self._at(now_s)
        self._stamp = found, now_s
        return int(found)

    def stored(self) -> None:
        """A message counts with the time of the last stamp: nothing is stored below it any more."""
        self._base_ms, self._base_s = self._stamp

    def told(self, clock_ms: int) -> None:
        """Another process stores with this time by now."""
        now_s = self._clock.monotonic()
        if clock_ms > self._at(now_s):
            self._base_ms, self._base_s = float(clock_ms), now_s

    def _at(self, now_s: float) -> float:
        return max(self._clock.wall_ms(), self._base_ms + (now_s - self._base_s) * 1000)

    def ahead_ms(self) -> int:
        """By how much it is ahead of the wall clock."""
        return self.now_ms() - self._clock.wall_ms()

    def watch(self, ahead: MetricCell) -> None:
        """Show by how many ms it is ahead, and warn when that begins; asked now and then."""
        found = self.ahead_ms()
        ahead.value = found
        if (found >= AHEAD_WARN_MS) is not self._warned:
            self._warned = not self._warned
            text = "the wall clock was ahead and has stepped back: store times go on %.1f s ahead of it"
            log.warning(text if self._warned else "store times are those of the wall clock again (%.1f s)",
                        found / 1000)  # fmt: skip
