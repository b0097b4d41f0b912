"""One fire at the backend: due messages to where they belong, and that they are done, as one commit.

How, where the engine is not atomic, is said in delay_service/storing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backend.completion import Completion
from backend.records import NewRecord
from delay_service.context import ShardContext
from delay_service.core.fire_command import FireCommand, progress_of
from delay_service.core.taken import FireNow
from delay_service.storing import store


class Firing:
    """`done(firing, error)` follows once: None when it is durable. `replies`: outcomes told with it.
    `over`: offsets that are done without firing. `awaited`: whom the replies are for, by offset."""

    def __init__(
        self,
        context: ShardContext,
        fires: list[FireCommand],
        replies: list[NewRecord],
        over: list[int],
        done: Callable[[Firing, Exception | None], None],
        awaited: Mapping[int, FireNow],
    ) -> None:
        self.fires = fires
        self.replies = replies
        self.over = over
        self.awaited = awaited
        self.epoch = context.epoch
        self._context = context
        self._service = context.service
        self._deadline = self._service.deadline()
        self._done = done
        self.finished, self.attempts = progress_of(fires)
        self._delta = context.done(self.finished + over, self.attempts)

    def start(self) -> None:
        """Begin; what cannot even be begun has ended with that error."""
        try:
            self._start()
        except Exception as error:
            self._done(self, error)

    def _start(self) -> None:
        if any(one.reason for one in self.fires):
            self._service.ready_dead_topic().then(self._topic_made)
        else:
            self._store()

    def _topic_made(self, made: Completion[Any]) -> None:
        if made.error is not None:
            self._done(self, made.error)
        else:
            self._store()

    def _store(self) -> None:
        records = [one.record for one in self.fires]
        records += self.replies
        store(self._service.backend, records, self._delta, self._deadline, self._ended)

    def _ended(self, error: Exception | None) -> None:
        self._done(self, error)
