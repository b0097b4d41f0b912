"""One fire at the backend: due messages to where they belong, and that they are done, as one commit.

How, where the engine is not atomic, is said in delay_service/storing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backend.completion import Completion
from backend.records import NewRecord
from delay_service.core.outlets import Outlet, progress_of
from delay_service.core.taken import FireNow
from delay_service.holding import Holding
from delay_service.storing import store


class Firing:
    """`done(firing, error)` follows once: None when it is durable. `replies`: outcomes told with it.
    `over`: offsets that are done without firing. `awaited`: whom the replies are for, by offset."""

    def __init__(
        self,
        holding: Holding,
        outlets: list[Outlet],
        replies: list[NewRecord],
        over: list[int],
        done: Callable[[Firing, Exception | None], None],
        awaited: Mapping[int, FireNow],
    ) -> None:
        self.outlets = outlets
        self.replies = replies
        self.over = over
        self.awaited = awaited
        self.epoch = holding.epoch
        self._holding = holding
        self._around = holding.around
        self._deadline = self._around.deadline()
        self._done = done
        self.finished, self.attempts = progress_of(outlets)
        self._delta = holding.done(self.finished + over, self.attempts)

    def start(self) -> None:
        """Begin; what cannot even be begun has ended with that error."""
        try:
            self._start()
        except Exception as error:
            self._done(self, error)

    def _start(self) -> None:
        if any(outlet.reason for outlet in self.outlets):
            self._around.ready_dead_topic().then(self._topic_made)
        else:
            self._store()

    def _topic_made(self, made: Completion[Any]) -> None:
        if made.error is not None:
            self._done(self, made.error)
        else:
            self._store()

    def _store(self) -> None:
        records = [outlet.record for outlet in self.outlets]
        records += self.replies
        store(self._around.backend, records, self._delta, self._deadline, self._ended)

    def _ended(self, error: Exception | None) -> None:
        self._done(self, error)
