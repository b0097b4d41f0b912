"""Commits of a subscription's progress: the last step of an acknowledgement before the backend, and its
results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from backend.completion import Completion
from backend.ownership.claims import RETRY_S
from backend.records import AppendResult, Bounds, CommitBatch, ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import FencedError, RemoteError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import UpstreamJob
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.runtime import Runtime
from proxy_consumer.tracing.messages import SubscriptionTrace

TRIES_MAX = 3


class SubscriptionBase(ABC):
    """The base of a subscription: the interface for its memberships, reads, moves and commits.

    `created_ms`: when it was created, in epoch milliseconds; 0: not known yet. `removed`: it was deleted,
    here or elsewhere, and never joins again. `trace`: None: its messages are not traced.
    """

    def __init__(
        self, runtime: Runtime, group_name: str, topic: str, config: SubscriptionDefaults, buffer: PullBuffer
    ) -> None:
        self.runtime = runtime
        self.group_name = group_name
        self.topic = topic
        self.config = config
        self.buffer = buffer
        self.created_ms = 0
        self.removed = False
        self.trace: SubscriptionTrace | None = None
        self.wake_at = NEVER

    # --- time

    @abstractmethod
    def due(self, now: float) -> None:
        """Do the work that is due; called by the timer queue."""

    def wake(self, moment: float) -> None:
        """Have `due` called at `moment` (monotonic seconds), or earlier."""
        self.runtime.timers.set(self, moment)

    def store_later(self) -> None:
        """Try again soon to store progress, after a failure."""
        self.wake(self.runtime.now() + RETRY_S)

    # --- queues are acquired and lost

    @property
    @abstractmethod
    def joined(self) -> bool:
        """Whether this proxy is a member of the group for this topic."""

    @abstractmethod
    def install(self, ref: QueueRef, view: ProgressView, bounds: Bounds, epoch: int) -> None:
        """Start to read a queue that this proxy acquired, from its recorded progress."""

    @abstractmethod
    def update_order(self) -> None:
        """Open the ordered scopes whose queues are all loaded."""

    @abstractmethod
    def on_installed(self) -> None:
        """Called when all queues of an assignment that could be loaded are installed."""

    @abstractmethod
    def end_pushes(self, refs: Sequence[QueueRef], until: float, then: Callable[[], None]) -> None:
        """Call `then` when no message of the queues is being pushed any more, at `until` at the latest."""

    @abstractmethod
    def suspend(self, ref: QueueRef) -> None:
        """Drop a queue that was lost but may come back; queues that share its chains wait until that is
        known."""

    @abstractmethod
    def drop(self, ref: QueueRef) -> None:
        """Forget a queue that this proxy lost."""

    @abstractmethod
    def refence(self, queue: SubscribedQueue, then: Callable[[], None]) -> None:
        """After a fenced commit, read whether the queue was reset or lost; `then` is called in any case."""

    # --- messages

    @abstractmethod
    def serve(self) -> None:
        """Deliver available messages to the waiting pulls."""

    @abstractmethod
    def after_results(self, queues: Iterable[SubscribedQueue]) -> None:
        """Move spent messages of these queues and set the next wake-up, after results were applied."""

    @abstractmethod
    def on_moved(self, queue: SubscribedQueue, job: UpstreamJob, *, expired: bool) -> None:
        """Called once a spent message was moved; `expired`: it no longer exists and nothing is stored yet."""

    @abstractmethod
    def on_not_moved(self, queue: SubscribedQueue, error: Exception, retry_at: float) -> None:
        """Called when a spent message could not be moved; it is tried again at `retry_at` (monotonic
        seconds)."""


class QueueProgress(NamedTuple):
    """A queue and the part of its progress that a commit contains."""

    owner: SubscriptionBase
    queue: SubscribedQueue
    delta: ProgressDelta


def collect_progress(owner: SubscriptionBase, queues: Iterable[SubscribedQueue]) -> list[QueueProgress]:
    """Take all uncommitted progress of these queues. The caller must commit it."""
    shares = []
    for queue in queues:
        delta = queue.collect_progress(owner.group_name)
        if delta is not None:
            shares.append(QueueProgress(owner, queue, delta))
    return shares


def store_settings(
    runtime: Runtime, settings: Mapping[str, bytes | None], done: Callable[[], None] | None = None
) -> None:
    """Commit settings. `done` is called when they are durable or have failed; a failure is counted and
    logged."""

    def on_committed(committed: Completion[list[AppendResult]]) -> None:
        runtime.open_commits -= 1
        if committed.error is not None:
            runtime.progress_failed(committed.error)
        if done is not None:
            done()

    if settings:
        runtime.open_commits += 1
        batch = CommitBatch(settings=dict(settings))
        runtime.backend.commit(batch, runtime.commit_deadline()).then(on_committed)
    elif done is not None:
        done()


class ProgressCommit(Completion[list[AppendResult]]):
    """A commit of the progress of several queues. `done(error)` is called once it is durable (None) or has
    failed.

    Order keys whose messages it finishes go on when it is durable, before `done`; if it fails, they wait for
    the commit that repeats it.
    If the backend fences it, the present epochs and generations of the queues are read; the progress of the
    queues that this proxy still owns is then committed again.
    """

    __slots__ = ("_done", "_runtime", "_shares", "_tries")

    def __init__(
        self,
        runtime: Runtime,
        shares: list[QueueProgress],
        done: Callable[[Exception | None], None] | None = None,
        tries: int = TRIES_MAX,
    ) -> None:
        super().__init__()
        self._runtime = runtime
        self._shares = shares
        self._done = done
        self._tries = tries

    def start(self) -> None:
        """Pass the commit to the backend."""
        runtime = self._runtime
        runtime.open_commits += 1
        batch = CommitBatch(progress=[share.delta for share in self._shares])
        runtime.backend.commit(batch, runtime.commit_deadline(), into=self)

    def settled(self) -> None:
        """Mark the progress as durable, or have it committed again."""
        self._runtime.open_commits -= 1
        error = self.error
        if error is None:
            self._release_chains()
            self._report_end(None)
            return
        for share in self._shares:
            share.queue.uncommitted.restore(share.delta, share.queue.table.jobs)
        if isinstance(error, FencedError) and self._tries > 1:
            self._refence_queues()
            return
        self._runtime.progress_failed(error)
        for share in self._shares:
            share.owner.store_later()
        self._report_end(error)

    def _release_chains(self) -> None:
        """Deliver the messages that waited for this commit: the next ones of the order keys that it
        finishes."""
        owners: dict[SubscriptionBase, None] = {}
        for share in self._shares:
            if share.queue.on_stored(share.delta) and share.owner.buffer.holds_queue(share.queue):
                share.owner.buffer.on_news(share.queue)
                owners[share.owner] = None
        for owner in owners:
            owner.serve()

    def _report_end(self, error: Exception | None) -> None:
        if self._done is not None:
            self._done(error)

    def _refence_queues(self) -> None:
        unchecked = len(self._shares)

        def on_checked() -> None:
            nonlocal unchecked
            unchecked -= 1
            if unchecked == 0:
                self._retry()

        for share in self._shares:
            share.owner.refence(share.queue, on_checked)

    def _retry(self) -> None:
        if any(share.queue.is_lost for share in self._shares):
            for share in self._shares:
                share.owner.store_later()
            self._report_end(
                RemoteError("a queue was lost while its results were on their way; send them again")
            )
            return
        shares: list[QueueProgress] = []
        for share in self._shares:
            if share.owner.buffer.holds_queue(share.queue):
                shares += collect_progress(share.owner, (share.queue,))
        if shares:
            ProgressCommit(self._runtime, shares, self._done, self._tries - 1).start()
        else:
            self._report_end(None)
