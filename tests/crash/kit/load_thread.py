"""A thread that loads the servers of a run, beside many others; what it chooses comes from the seed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from random import Random


class LoadThread:
    """Works until it is stopped. `failure`: what ended it before, which `join` raises."""

    join_s = 300.0

    def __init__(self, name: str, seed: object) -> None:
        self.name = name
        self.random = Random(f"{seed}/{name}")
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no more work; `join` waits for its end."""
        self.stopping.set()

    def join(self) -> None:
        self._thread.join(self.join_s)
        if self.failure is not None:
            raise self.failure
        assert not self._thread.is_alive(), f"{self.name} hangs"

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.work()
            self.last()
        except BaseException as error:
            self.failure = error
        finally:
            self.hang_up()

    def work(self) -> None:
        """A little, again and again."""
        raise NotImplementedError

    def last(self) -> None:
        """Before it ends as it should."""

    def hang_up(self) -> None:
        """Give up its connection, where it has one of its own."""


def stopped(threads: Iterable[LoadThread]) -> None:
    """All of them end; what made one of them fail is raised."""
    threads = list(threads)
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join()
