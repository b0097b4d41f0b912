"""Keeps the index in shape beside a running log: seals full segments, repairs damaged ones.

One greenlet; all work is done in steps in gevent's native threads with a pause after each, so that the
hub is never held longer than one step's C call (measured in docs/formats-index.md's last section).
A segment that cannot be sealed or repaired is logged, counted and tried again at the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import gevent
from gevent.event import Event

from backend.file_log.index.log_index import LogIndex, Span
from backend.file_log.index.sealing import IndexRow
from ddmq_common.errors import DdmqError
from ddmq_common.native_threads import in_thread

logger = logging.getLogger(__name__)

PAUSE_S = 0.001
ROUND_S = 30.0
_DONE = object()


def drive(steps: Iterator[None], pause_s: float = PAUSE_S) -> None:
    """Run all steps off the hub, with a pause after each. Raises what a step raises."""
    while in_thread(next, steps, _DONE) is not _DONE:
        gevent.sleep(pause_s)


class IndexKeeper:
    """`spans()`: the log's segments `[start, end)`, ascending, the last one live. `rows_of(span)`: its
    records in log order, read lazily (in a native thread). `wake` after a roll, else it looks every 30 s.
    """

    def __init__(
        self,
        index: LogIndex,
        spans: Callable[[], Sequence[Span]],
        rows_of: Callable[[Span], Iterable[IndexRow]],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._index = index
        self._spans = spans
        self._rows_of = rows_of
        self._pause_s = pause_s
        self._event = Event()
        self._greenlet: gevent.Greenlet | None = None
        self.failures = 0

    def start(self) -> None:
        """Begin; the first round runs at once."""
        self._greenlet = gevent.spawn(self._run)

    def wake(self) -> None:
        """There is something to seal or repair."""
        self._event.set()

    def stop(self) -> None:
        """Abandon what is under way; the next start does it again. Blocks the calling greenlet."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _run(self) -> None:
        while True:
            try:
                self.work_once()
            except (OSError, DdmqError) as error:
                self.failures += 1
                logger.warning("the index cannot be looked after now: %s", error)
            self._event.wait(ROUND_S)
            self._event.clear()

    def work_once(self) -> None:
        """Seal and repair all there is now."""
        full = dict(self._spans()[:-1])
        for start in self._index.damaged - full.keys():
            if start < self._index.writer.segment_start:
                self._index.damaged.discard(start)  # deleted meanwhile
        unsealed = in_thread(self._index.unsealed)
        for start in sorted({*unsealed, *self._index.damaged} & full.keys()):
            self._work_on((start, full[start]), start in self._index.damaged)

    def _work_on(self, span: Span, damaged: bool) -> None:
        try:
            if damaged:
                logger.warning("repairing the index of segment %d", span[0])
            drive(self._index.repair_steps(span, lambda: self._rows_of(span)), self._pause_s)
            if span[0] not in dict(self._spans()):
                in_thread(self._index.drop, span[0])  # deleted while we were at it
        except (OSError, DdmqError) as error:
            self.failures += 1
            logger.warning("the index of segment %d stays unsorted: %s", span[0], error)
