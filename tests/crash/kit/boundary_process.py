"""A real server process that kills itself at one boundary of a commit, for the runs with `--boundaries`.

`python -m tests.crash.kit.boundary_process BOUNDARY MOMENT COUNT DELAY_US python -m ddmq COMMAND …` is
`ddmq COMMAND …`, which dies by SIGKILL at the COUNTth commit (or append) of that kind: before its backend is
asked, while that is at work (DELAY_US later), or when it is durable and nobody has heard of it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from backend import engines
from backend.completion import Completion
from backend.port import Backend
from backend.records import AppendResult, CommitBatch, NewRecord, ProgressDelta
from ddmq.cli.root import run as ddmq
from ddmq_common.names import HALF_TOPIC, LEVELS_GROUP, OP_TOPIC, TRANSACTION_DEAD_TOPIC, TRANSACTION_GROUP

BEFORE, DURING, AFTER = MOMENTS = ("before", "during", "after")
PREPARE, END, CHECK, GIVE_UP = "prepare", "end", "check", "give up"
SEND, REPLY, PROGRESS, SETTINGS = "send", "reply", "progress", "settings"
LEVEL = "level"
Results = Completion[list[AppendResult]]


def boundary_of(records: Sequence[NewRecord], progress: Sequence[ProgressDelta]) -> str:
    """What such a commit is for."""
    topics, groups = {record.topic for record in records}, {delta.group for delta in progress}
    if TRANSACTION_DEAD_TOPIC in topics:
        return GIVE_UP
    if OP_TOPIC in topics:
        return END
    if HALF_TOPIC in topics:
        return PREPARE
    if TRANSACTION_GROUP in groups:
        return CHECK if any(delta.attempts for delta in progress) else PROGRESS
    if LEVELS_GROUP in groups:
        return LEVEL
    if records:
        return REPLY if progress else SEND
    return PROGRESS if progress else SETTINGS


def die(*_: object) -> None:
    """At once."""
    os.kill(os.getpid(), signal.SIGKILL)


class Doom:
    """Takes the place of a backend's `append` and `commit`."""

    def __init__(self, backend: Backend, boundary: str, moment: str, count: int, delay_s: float) -> None:
        self._append, self._commit = backend.append, backend.commit
        self._boundary, self._moment = boundary, moment
        self._left = count
        self._delay_s = delay_s
        backend.append, backend.commit = self.append, self.commit  # type: ignore[method-assign]

    def append(self, records: Sequence[NewRecord], deadline: float, into: Results | None = None) -> Results:
        return self._pass(boundary_of(records, ()), lambda into: self._append(records, deadline, into), into)

    def commit(self, batch: CommitBatch, deadline: float, into: Results | None = None) -> Results:
        name = boundary_of(batch.records, batch.progress)
        return self._pass(name, lambda into: self._commit(batch, deadline, into), into)

    def _pass(self, name: str, call: Callable[[Results | None], Results], into: Results | None) -> Results:
        if name == self._boundary:
            self._left -= 1
        if name != self._boundary or self._left:
            return call(into)
        if self._moment == BEFORE:
            die()
        if self._moment == DURING:
            threading.Timer(self._delay_s, die).start()
            return call(into)
        durable = call(None)
        durable.then(die)
        return into or durable


def main(boundary: str, moment: str, count: str, delay_us: str, *words: str) -> None:
    def doomed(opened: Callable[..., Backend]) -> Callable[..., Any]:
        def opens(*args: Any, **kwargs: Any) -> Backend:
            backend = opened(*args, **kwargs)
            Doom(backend, boundary, moment, int(count), int(delay_us) / 1e6)
            return backend

        return opens

    engines.BUNDLED.update({name: doomed(open_engine) for name, open_engine in engines.BUNDLED.items()})
    sys.exit(ddmq(list(words[words.index("ddmq") + 1 :])))


if __name__ == "__main__":
    main(*sys.argv[1:])
