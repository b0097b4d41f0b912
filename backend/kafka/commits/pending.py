"""PendingCommits: the commit calls of one process that are not answered yet; each is by its deadline."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import gevent

from backend.completion import Completion
from backend.kafka.commits.lanes import LaneWork, WorkKind
from backend.kafka.commits.plan import CommitPlan
from backend.records import NewRecord
from ddmq_common.errors import RemoteError, TryLaterError
from ddmq_common.hub_timer import HubTimer

FOREVER = float("inf")
Queue = tuple[str, int]  # topic, queue_id


def queues_of(records: Iterable[NewRecord]) -> list[Queue]:
    """Return the topic and queue of each record."""
    return [(record.topic, record.queue_id) for record in records]


def _add_nothing(_: CommitPlan) -> None:
    """Leave a commit plan unchanged."""


class PendingCommit(LaneWork):
    """One commit call that is waiting or in flight.

    `add_to` adds the call to a plan, or raises; `to_result` converts the offsets of its records into its
    result. `queues`: those that its records go to. `action` runs in the call's place instead of being
    planned. `needs_namespace_id`: the call goes under the namespace's transactional id.
    """

    __slots__ = (
        "action", "add_to", "completion", "deadline", "is_in_flight", "is_sent", "needs_namespace_id",
        "queues", "to_result",
    )  # fmt: skip

    def __init__(
        self,
        kind: WorkKind,
        deadline: float,
        add_to: Callable[[CommitPlan], None] = _add_nothing,
        to_result: Callable[[list[int]], Any] = lambda offsets: None,
        into: Completion[Any] | None = None,
        *,
        resources: Iterable[Hashable] = (),
        queues: list[Queue] | None = None,
        action: Callable[[], None] | None = None,
    ) -> None:
        self.queues = queues or []
        super().__init__(kind, (*resources, *self.queues), len(self.queues))
        self.completion: Completion[Any] = Completion() if into is None else into
        self.deadline = deadline
        self.add_to = add_to
        self.to_result = to_result
        self.action = action
        self.needs_namespace_id = kind is WorkKind.EXCLUSIVE
        self.is_in_flight = self.is_sent = False

    def answer_stored(self, offsets: list[int]) -> None:
        """Answer the call with success unless it is answered; an error in its callback is contained."""
        if not self.completion.done:
            self._settle_completion(self.completion.succeed, self.to_result(offsets))

    def fail(self, error: Exception) -> None:
        """Answer the call with an error unless it is answered."""
        if not self.completion.done:
            self._settle_completion(self.completion.fail, error)

    def _settle_completion(self, settle: Callable[[Any], None], value: Any) -> None:
        try:
            settle(value)
        except Exception as error:
            hub: Any = gevent.get_hub()
            hub.handle_error(settle, type(error), error, error.__traceback__)


class PendingCommits:
    """The calls that are not answered, in order.

    `reason()`: why calls may be delayed, for error texts. `give_up(commit)` is called with a call that has
    expired while it waited.
    """

    def __init__(
        self, now: Callable[[], float], reason: Callable[[], str], give_up: Callable[[PendingCommit], object]
    ) -> None:
        self._now = now
        self._reason = reason
        self._give_up = give_up
        self._commits: dict[PendingCommit, None] = {}
        self._timer = HubTimer(ref=False)
        self._wake_at = FOREVER

    def add(self, commit: PendingCommit) -> None:
        """Add a commit call. It is answered by its deadline at the latest."""
        if commit.deadline < FOREVER:
            self._commits[commit] = None
            if commit.deadline < self._wake_at:
                self._set_timer(commit.deadline)

    def remove(self, commit: PendingCommit) -> PendingCommit:
        """Remove a call, which is about to be answered; returns it."""
        self._commits.pop(commit, None)
        return commit

    def fail_expired(self) -> None:
        """Fail the calls past their deadline: as not stored, or with an unknown outcome if they were sent."""
        now = self._now()
        if now < self._wake_at:
            return
        for commit in [commit for commit in self._commits if commit.deadline <= now]:
            self.remove(commit)
            if commit.is_sent:
                commit.fail(RemoteError("no answer by the deadline; it may be stored or not"))
                continue
            if not commit.is_in_flight:
                self._give_up(commit)
            reason = self._reason() or "what was called before is not answered yet"
            commit.fail(TryLaterError(f"not written by the deadline: {reason}"))
        self._wake_at = FOREVER
        first = min((commit.deadline for commit in self._commits), default=FOREVER)
        if first < FOREVER:
            self._set_timer(first)

    def close(self, error: Exception) -> None:
        """Fail every call with an error."""
        self._timer.stop()
        commits, self._commits = self._commits, {}
        for commit in commits:
            commit.fail(error)

    def _set_timer(self, deadline: float) -> None:
        self._wake_at = deadline
        self._timer.once(max(0.0, deadline - self._now()), self.fail_expired)
