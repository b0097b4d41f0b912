"""One fire at the backend: due messages to where they belong, and that they are done, as one commit.

Where the engine is not atomic the records are appended first, those that were not stored again until all
are, and the progress is committed then: a crash in between fires them twice, never not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.completion import Completion
from backend.records import AppendResult, AppendStatus, CommitBatch, NewRecord
from ddmq_common.errors import RemoteError
from delay_service.core.outlets import Outlet
from delay_service.holding import Holding


class Firing:
    """`done(firing, error)` follows once: None when it is durable. `replies`: outcomes told with it.
    `over`: offsets that are done without firing."""

    def __init__(
        self,
        holding: Holding,
        outlets: list[Outlet],
        replies: list[NewRecord],
        over: list[int],
        done: Callable[[Firing, Exception | None], None],
    ) -> None:
        self.outlets = outlets
        self.replies = replies
        self.over = over
        self.epoch = holding.epoch
        self._holding = holding
        self._around = holding.around
        self._deadline = self._around.deadline()
        self._done = done
        finished = [one.message.offset for one in outlets if one.following is None]
        self.finished = finished
        self.attempts = [
            (one.message.offset, one.message.occurrence + 1) for one in outlets if one.following is not None
        ]
        self._delta = holding.done(finished + over, self.attempts)

    def start(self) -> None:
        made = None
        if any(outlet.reason for outlet in self.outlets):
            made = self._around.ready_dead_topic()
        if made is None:
            self._store()
        else:
            made.then(self._topic_made)

    def _topic_made(self, made: Completion[Any]) -> None:
        if made.error is not None:
            self._done(self, made.error)
        else:
            self._store()

    def _store(self) -> None:
        records = [outlet.record for outlet in self.outlets]
        records += self.replies
        if self._around.backend.capabilities.atomic:
            self._commit(records)
        else:
            self._append(records)

    def _commit(self, records: list[NewRecord]) -> None:
        batch = CommitBatch(records=records, progress=(self._delta,))
        self._around.backend.commit(batch, self._deadline).then(self._ended)

    def _append(self, records: list[NewRecord]) -> None:
        def appended(answer: Completion[list[AppendResult]]) -> None:
            if answer.error is not None:
                self._done(self, answer.error)
                return
            pairs = list(zip(records, answer.value, strict=True))
            left = [record for record, result in pairs if result.status is not AppendStatus.STORED]
            if not left:
                self._commit([])
            elif len(left) < len(records):
                self._append(left)
            else:
                self._done(self, pairs[0][1].error or RemoteError("messages may or may not be stored"))

        self._around.backend.append(records, self._deadline).then(appended)

    def _ended(self, stored: Completion[Any]) -> None:
        self._done(self, stored.error)
