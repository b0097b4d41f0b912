"""One fire at the backend: due messages to where they belong, and that they are done, as one commit.

How, where the engine is not atomic, is said in delay_service/due/commit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend.records import NewRecord
from delay_service.context import ShardContext
from delay_service.core.commands import FireNow
from delay_service.core.fire_command import FireCommand, progress_of
from delay_service.due.commit import commit_due


class FireCommit:
    """`done(firing, error)` follows once: None when it is durable. `replies`: outcomes told with it.
    `over`: offsets that are done without firing. `awaited`: whom the replies are for, by offset."""

    def __init__(
        self,
        context: ShardContext,
        fires: list[FireCommand],
        replies: list[NewRecord],
        over: list[int],
        done: Callable[[FireCommit, Exception | None], None],
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
        dead_topic = self._service.ready_dead_topic() if any(one.reason for one in self.fires) else None
        commit_due(self._service.backend, dead_topic, self._records, self._delta, self._deadline, self._ended)

    def _records(self) -> list[NewRecord]:
        return [one.record for one in self.fires] + self.replies

    def _ended(self, error: Exception | None) -> None:
        self._done(self, error)
