"""One queue of ours as clients name it, what may be asked of the subscription that holds it, and
ProgressCommit: an acknowledgement's last step before the backend, and what follows when it is (not)
durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mypy_extensions import mypyc_attr

from backend.completion import Completion
from backend.records import AppendResult, Bounds, CommitBatch, ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import FencedError, RemoteError
from proxy_consumer.answers import Place
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.steps import BufferedQueue, ReadRequest
from proxy_consumer.retries.publisher import RetryPublisher
from proxy_consumer.runtime import Runtime


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueHolder(Protocol):
    """A subscription, as its parts see it, and those who bring results for its queues.

    `created_ms`: when it was made, 0: not known yet.
    """

    config: SubscriptionDefaults
    created_ms: int

    @property
    def group_name(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def joined(self) -> bool: ...

    @property
    def buffer(self) -> PullBuffer: ...

    @property
    def retries(self) -> RetryPublisher: ...

    def holds(self, state: BufferedQueue) -> bool:
        """Whether the queue is still its own."""

    def read(self, request: ReadRequest) -> None:
        """Carry out what a PullBuffer asks for: of several that share a scope, not always its own."""

    def next_offset(self, state: BufferedQueue, now: float) -> int:
        """The queue's next offset as known lately."""

    def after_results(self, states: Iterable[BufferedQueue]) -> None:
        """Messages of these queues were finished, have failed, or are to be moved."""

    def store_later(self) -> None:
        """Something could not be stored: it is to be tried again soon."""

    def refence(self, state: BufferedQueue, then: Callable[[], None]) -> None:
        """A commit was fenced: see whether the queue was reset or lost; `then` runs in any case."""

    def start_anew(self) -> None:
        """Have its queues anew, with those that share its chains; clients keep what they have. Under the new
        epoch no commit of before can come any more."""

    def serve(self) -> None:
        """There may be something for those who wait."""

    def wake(self, moment: float) -> None:
        """What waits for its time is to go on at `moment` (monotonic seconds)."""

    # --- its queues come and go

    def update_order(self) -> None:
        """Queues were given: what waits for them may go on."""

    def install(
        self, queue: QueueRef, view: ProgressView, bounds: Bounds, epoch: int, *, retry: bool
    ) -> None:
        """A queue may be read from now on."""

    def installed(self) -> None:
        """All that could be loaded is."""

    def end_pushes(self, queues: Sequence[QueueRef], until: float, then: Callable[[], None]) -> None:
        """`then` runs when nothing of the queues is being pushed, at `until` at the latest."""

    def let_go(self, queue: QueueRef) -> None:
        """The queue is not its own any more, and may come back."""

    def drop(self, queue: QueueRef) -> None:
        """The queue is not its own any more."""


class HeldQueue:
    """`key` is (topic, qid) in bytes.

    `lost`: it was taken from us without a word; what clients still hold of it may yet be acknowledged.
    """

    __slots__ = ("key", "lost", "place", "state", "subscription")

    def __init__(self, place: Place, subscription: QueueHolder, state: BufferedQueue) -> None:
        self.place = place
        self.subscription = subscription
        self.state = state
        self.lost = False
        self.key = (place.context.topic.encode(), place.context.qid.encode())


def held_of(state: BufferedQueue) -> HeldQueue:
    """The queue of a PullBuffer as clients name it."""
    held = state.label
    assert isinstance(held, HeldQueue)
    return held


TRIES_MAX = 3


class Part(NamedTuple):
    """One queue's share of a commit."""

    owner: QueueHolder
    state: BufferedQueue
    delta: ProgressDelta


def collect(owner: QueueHolder, states: Iterable[BufferedQueue]) -> list[Part]:
    """All progress of these queues that is not committed."""
    parts = []
    for state in states:
        delta = state.jobs.collect(owner.group_name)
        if delta is not None:
            parts.append(Part(owner, state, delta))
    return parts


def store_settings(
    runtime: Runtime, settings: Mapping[str, bytes | None], done: Callable[[], None] | None = None
) -> None:
    """Commit settings; `done` runs when they are durable or have failed, which is counted and logged."""

    def answered(committed: Completion[list[AppendResult]]) -> None:
        runtime.open_commits -= 1
        if committed.error is not None:
            runtime.progress_failed(committed.error)
        if done is not None:
            done()

    if settings:
        runtime.open_commits += 1
        batch = CommitBatch(settings=dict(settings))
        runtime.backend.commit(batch, runtime.commit_deadline()).then(answered)
    elif done is not None:
        done()


class ProgressCommit(Completion[list[AppendResult]]):
    """One commit of progress. `done(error)` runs once it is durable (None) or has failed.

    When the backend fences it, the queues concerned learn their present epoch and generation; what is
    still ours then is committed again.
    """

    __slots__ = ("_done", "_parts", "_runtime", "_tries")

    def __init__(
        self,
        runtime: Runtime,
        parts: list[Part],
        done: Callable[[Exception | None], None] | None = None,
        tries: int = TRIES_MAX,
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._parts = parts
        self._done = done
        self._tries = tries

    def start(self) -> None:
        """Hand it to the backend."""
        runtime = self._runtime
        runtime.open_commits += 1
        batch = CommitBatch(progress=[part.delta for part in self._parts])
        runtime.backend.commit(batch, runtime.commit_deadline(), into=self)

    def settled(self) -> None:
        self._runtime.open_commits -= 1
        error = self.error
        if error is None:
            for part in self._parts:
                part.state.jobs.uncommitted.committed()
            self._finish(None)
            return
        for part in self._parts:
            part.state.jobs.uncommitted.restore(part.delta, part.state.jobs.table.jobs)
        if isinstance(error, FencedError) and self._tries > 1:
            self._refence()
            return
        self._runtime.progress_failed(error)
        for part in self._parts:
            part.owner.store_later()
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        if self._done is not None:
            self._done(error)

    def _refence(self) -> None:
        left = len(self._parts)

        def checked() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._again()

        for part in self._parts:
            part.owner.refence(part.state, checked)

    def _again(self) -> None:
        if any(held_of(part.state).lost for part in self._parts):
            for part in self._parts:
                part.owner.store_later()
            self._finish(RemoteError("a queue was lost while its results were on their way; send them again"))
            return
        parts: list[Part] = []
        for part in self._parts:
            if part.owner.holds(part.state):
                parts += collect(part.owner, (part.state,))
        if parts:
            ProgressCommit(self._runtime, parts, self._done, self._tries - 1).start()
        else:
            self._finish(None)
