"""Calls to several proxies at the same time, at most one to each, each on a thread of its own while it lasts.

Whoever started them takes their answers later, in the order in which they came. A thread for each call, not
for each proxy: nothing is left running when a consumer is dropped without being closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ddmq_client.core.fetching import FetchAnswer
from ddmq_client.core.places import Offsets
from ddmq_client.received import FetchedQueue

Work = Callable[[], Sequence[FetchedQueue]]


class Calls:
    """Started by one thread at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: dict[str, float] = {}  # started, answer not taken
        self._ended: list[FetchAnswer] = []

    def start(self, name: str, asked: Offsets, max_messages: int, work: Work, alone: bool) -> None:
        """Start a call to a proxy that is not under way; `alone`: on this thread, until it has ended."""
        started = time.monotonic()
        self._since[name] = started
        args = (name, asked, max_messages, started, work)
        try:
            if alone:
                self._run(*args)
            else:
                threading.Thread(target=self._run, args=args, name=f"ddmq-fetch-{name}", daemon=True).start()
        except BaseException:  # interrupted, or no thread could be started
            self.forget(name)
            raise

    def under_way(self) -> dict[str, float]:
        """Proxy → when its call was started, of those whose answer was not taken."""
        return self._since

    def waiting(self) -> list[str]:
        """Proxies that have not answered yet."""
        with self._changed:
            return list(self._since.keys() - {answer.proxy for answer in self._ended})

    def forget(self, name: str) -> None:
        """Nobody wants the answer of this proxy's call, if there is one."""
        with self._changed:
            self._since.pop(name, None)
            self._ended = [answer for answer in self._ended if answer.proxy != name]

    def ended(self, until: float) -> list[FetchAnswer]:
        """Answers that have come; waits for one until then (monotonic seconds)."""
        with self._changed:
            while not self._ended:
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(min(left, threading.TIMEOUT_MAX)):
                    break
            taken, self._ended = self._ended, []
            for answer in taken:
                self._since.pop(answer.proxy)
            return taken

    def _run(self, name: str, asked: Offsets, max_messages: int, started: float, work: Work) -> None:
        outcome: Sequence[FetchedQueue] | Exception
        try:
            outcome = work()
        except Exception as error:
            outcome = error
        with self._changed:
            if self._since.get(name) == started:  # else nobody wants it any more
                ended = time.monotonic()
                self._ended.append(FetchAnswer(name, asked, max_messages, started, ended, outcome))
                self._changed.notify()
