"""SIGTERM and Ctrl-C as something to wait for, while a consumer runs on the main thread."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

RUN_LOOK_S = 0.2  # how often `run` looks whether it is over
WATCHED = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """The first of either sets `came` and puts the former handlers back; so does the end of the block."""

    def __init__(self) -> None:
        self.came = False
        self._before: dict[signal.Signals, Any] = {}
        self._set = threading.Event()

    def wait(self, seconds: float) -> None:
        """Wait for a signal; ends early when one comes (and at the latest after so long)."""
        self._set.wait(seconds)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._arrived) for number in WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        self._restore()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
