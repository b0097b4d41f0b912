"""One shard, from its grant to its end: opened, at work, closed.

A shard is opened in these steps:
1. Its epoch is committed to the group of fired messages, which fences the fires of every earlier owner.
2. The progress of that group is read, which is complete now.
3. The store is opened in a native thread. Where the engine has rows of waiting messages the store is brought
in
   line with them, because it may be empty or old.
4. Commands are ingested from the position of the store. Nothing fires before all commands that were there at
   the grant are in the store, so a cancel that came in time counts.

When a store fails at work, or an error of ours does, the commits under way end, the store is closed, and the
shard is opened again under the same epoch. Only an uncertain claim is renewed by the service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from backend.completion import Completion
from backend.progress.ack_map import AckMap
from backend.records import Bounds, CommitBatch, ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import DdmqError, StorageError
from ddmq_common.event_loop import sleep, spawn
from ddmq_common.names import DELAY_GROUP, FIRED_GROUP, WAITING_TOPIC
from ddmq_common.native_threads import ignore_outcome, in_thread, off_hub
from delay_service.context import DelayServiceContext, Generations, ShardContext
from delay_service.core.decider import INGESTED
from delay_service.due.backend import CLAIM_ERRORS
from delay_service.due.service import Alarm
from delay_service.fire import FireLoop
from delay_service.ingest import Ingest, ingested_offset
from delay_service.store.port import DelayStore, DueKey, StoreChanges, StoreOpener
from delay_service.waiting.follow import Follower, followed_to

log = logging.getLogger("ddmq.delay")
T = TypeVar("T")
PAUSE_S = 0.2  # pause after opening or work failed for a reason that passes, doubling …
COUNT_AT_ONCE = 200  # messages of an earlier release; that takes about a millisecond …
COUNT_PAUSE_S = 0.01  # … and then others run
CALM_S = 60.0  # … as long as the last time was less than this ago


class Shard:
    """A delay shard that this process owns: its store, its queue and the firing of its messages.

    It is a QueueWork of backend/ownership.

    `on_claim_uncertain(shard, error)` is called when the claim must be renewed, `opened()` when the shard
    fires. `closed` settles when the store is closed; `before` is the `closed` of the previous owner in this
    process.
    """

    def __init__(
        self,
        service: DelayServiceContext,
        queue: QueueRef,
        epoch: int,
        opener: StoreOpener,
        alarms: Callable[[], Alarm],
        on_claim_uncertain: Callable[[Shard, Exception], None],
        opened: Callable[[], None],
        before: Completion[None] | None,
    ) -> None:
        self.queue = queue
        self.epoch = epoch
        self.closed: Completion[None] = Completion()
        self.why = "it is being opened"  # it does not fire; "": it does
        self.context: ShardContext | None = None
        self.store: DelayStore | None = None
        self._service = service
        self._opener = opener
        self._alarms = alarms
        self._on_claim_uncertain = on_claim_uncertain
        self._opened = opened
        self._before = before
        self._fire: FireLoop | None = None
        self._ingest: Ingest | None = None
        self._opening = self._stopped = self._closing = self._tidying = False
        self._alarm = alarms()  # ends the pause before it is opened anew
        self._pause_s = PAUSE_S
        self._failed_at = float("-inf")
        self._mark: tuple[int, float] | None = None  # rows below it are in the store once it is so late

    # --- opening

    def start(self) -> None:
        """Open the shard once its previous owner in this process has closed the store."""
        self._opening = True
        if self._before is None:
            spawn(self._open)
        else:
            self._before.then(lambda _: spawn(self._open))

    def _open(self) -> None:
        try:
            if not self._stopped:
                self._load()
        except Exception as error:
            self._on_open_failed(error)
        finally:
            self._opening = False
            self._close_when_idle()

    def _on_open_failed(self, error: Exception) -> None:
        self.why = str(error) or type(error).__name__
        self._service.counts.count_failure("open", error)
        unexpected = None if isinstance(error, DdmqError | OSError) else error
        log.warning(
            "delay shard %d cannot be opened, tried again: %s", self.queue.queue_id, self.why,
            exc_info=unexpected,
        )  # fmt: skip
        self._close_store()
        self._reopen_later(error if isinstance(error, CLAIM_ERRORS) else None)

    def _reopen_later(self, claim_error: Exception | None) -> None:
        """Reopen the closed shard after a pause. With `claim_error`, report the uncertain claim instead."""
        if self._stopped:
            return
        if claim_error is not None:
            self._stopped = True
            self._on_claim_uncertain(self, claim_error)
            return
        now = self._service.clock.monotonic()
        if now - self._failed_at >= CALM_S:
            self._pause_s = PAUSE_S
        self._alarm.once(self._pause_s, self._reopen_now)
        self._pause_s = min(self._pause_s * 2, self._service.config.pause_ms_max / 1e3)
        self._failed_at = now

    def _reopen_now(self) -> None:
        if not self._stopped and not self._opening and self.context is None:
            self._opening = True
            spawn(self._open)

    def _close_store(self) -> None:
        """Close the store. A failed store rejects every call until it is reopened."""
        store, self.store, self.context = self.store, None, None
        self._fire = self._ingest = None
        if store is None:
            return
        try:
            in_thread(store.close)
        except Exception as error:
            log.error("the store of delay shard %d does not close: %s", self.queue.queue_id, error)

    def _load(self) -> None:
        backend, queue = self._service.backend, self.queue
        fired_view = self._wait(backend.progress(FIRED_GROUP, [queue]))[0]
        claim = ProgressDelta(FIRED_GROUP, queue, self.epoch, fired_view.generation)
        self._wait(backend.commit(CommitBatch(progress=(claim,)), self._service.deadline()))
        fired_view = self._wait(backend.progress(FIRED_GROUP, [queue]))[0]
        ingest_view = self._wait(backend.progress(DELAY_GROUP, [queue]))[0]
        bounds = self._wait(backend.bounds([queue]))[0]
        if self._stopped or bounds is None:
            self._stopped = True  # the topic is gone, and with it our membership
            return
        if self.store is None:
            self.store = in_thread(self._opener, queue, self.epoch)
        if backend.compacts:
            self._follow_rows(self.store, ingest_view.committed or 0)
        if not self._stopped:
            self._run(self.store, ingest_view, fired_view, bounds)

    def _follow_rows(self, store: DelayStore, committed: int) -> None:
        """Bring the store in line with the rows. They contain everything that was committed."""
        service = self._service
        follower = Follower(service.backend, service.clock, self.queue.queue_id, store, lambda: self._stopped)
        bounds = follower.read_bounds()
        self.why = f"it restores what waits: rows up to offset {bounds.next}"
        start_s = service.clock.monotonic()
        follower.follow_to(bounds.next)
        if bounds.next and not self._stopped:  # else no row was ever written, and the commands tell all
            store.write(StoreChanges(meta={INGESTED: b"%d" % committed}))
            log.info(
                "delay shard %d has what waits: %d rows were followed in %.1f s",
                self.queue.queue_id, follower.rows, service.clock.monotonic() - start_s,
            )  # fmt: skip

    def _wait(self, completion: Completion[T]) -> T:
        return completion.wait(self._service.config.commit_timeout_ms / 1e3 + 1)

    def _run(
        self, store: DelayStore, ingest_view: ProgressView, fired_view: ProgressView, bounds: Bounds
    ) -> None:
        acks = _ack_map(fired_view)
        generations = Generations(ingest_view.generation, fired_view.generation)
        start, stored_to = _start(store, ingest_view, bounds)
        context = ShardContext(
            self._service,
            self.queue,
            self.epoch,
            generations,
            store,
            acks,
            self._on_work_failed,
            self._on_commit_end,
            ingest_view.committed or 0,
        )
        fire = FireLoop(context, self._alarms())
        self.context, self._fire = context, fire
        self._ingest = Ingest(
            context, fire, self._alarms(), start, stored_to, bounds.next, self._on_caught_up
        )
        self.why = "it takes in the commands that came before"
        log.info(
            "delay shard %d is ours (epoch %d): %d messages wait, commands taken in from offset %d, %d to go",
            self.queue.queue_id, self.epoch, sum(store.counts().values()), start, bounds.next - start,
        )  # fmt: skip
        self._ingest.resume()

    def _on_caught_up(self) -> None:
        self.why = ""
        if self.context is not None and self.context.store.count_older(0):
            spawn(self._count_older, self.context)
        if self._fire is not None and self._service.fires:
            self._fire.open()
        self._opened()

    def _count_older(self, context: ShardContext) -> None:
        """Count the messages that an earlier release stored, a few at a time."""
        more = True

        def count() -> None:
            nonlocal more
            more = context.store.count_older(COUNT_AT_ONCE)

        while more and context.running and self.context is context:
            if not context.run_safely("count", count):
                return
            sleep(COUNT_PAUSE_S)

    # --- at work

    @property
    def position(self) -> int | None:
        """Return the offset of the next command to ingest; None while opening."""
        return None if self._ingest is None else self._ingest.position

    @property
    def running(self) -> bool:
        """Return whether the store is open and the claim is certain."""
        return self.context is not None and self.context.running

    def first_due_ms(self) -> int | None:
        """Return when the first waiting message is or was due; None if none waits or it is unknown.

        Messages in flight count, deferred ones do not.
        """
        context = self.context
        keys: list[DueKey | None] = [None]
        if context is not None and context.running:
            context.run_safely("look", lambda: keys.append(context.store.next_due()))
        return None if keys[-1] is None else keys[-1].due_ms

    def raise_epoch(self, epoch: int) -> None:
        """Use this epoch for all later commits."""
        self.epoch = epoch
        if self.context is not None:
            self.context.epoch = epoch

    def topic_changed(self, topic: str) -> None:
        if self._fire is not None:
            self._fire.topic_changed(topic)

    def hold_changed(self, topic: str) -> None:
        if self._fire is not None:
            self._fire.hold_changed(topic)

    # --- what failed

    def _on_work_failed(self, error: Exception) -> None:
        if isinstance(error, CLAIM_ERRORS) or self._stopped:
            self._on_claim_uncertain(self, error)
            return
        self.why = str(error) or type(error).__name__
        log.warning("delay shard %d is opened anew: %s", self.queue.queue_id, self.why)
        self._stop_work()
        self._reopen_when_idle()

    def _reopen_when_idle(self) -> None:
        """Close and reopen a failed shard when no work of it is in flight."""
        failed = self.context is not None and not self.context.running
        if failed and self.is_idle and not self._stopped:
            self._opening = True
            spawn(self._close_and_reopen)

    def _close_and_reopen(self) -> None:
        claim_error = None if self.context is None else self.context.claim_error
        self._close_store()
        self._opening = False
        self._reopen_later(claim_error)
        self._close_when_idle()

    # --- the end

    @property
    def is_busy(self) -> bool:
        """Return whether the store is still open."""
        return not self.closed.done

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Start nothing new; when work in flight has ended, close the store and call `on_idle`."""
        self.closed.then(lambda _: on_idle())
        self._stopped = True
        self._alarm.stop()
        self._stop_work()
        self._close_when_idle()

    def abandon(self) -> None:
        """Write no more results to the store. The log has them, and the next owner reads it."""
        if self.context is not None:
            self.context.running = False

    def _stop_work(self) -> None:
        if self._fire is not None:
            self._fire.stop()
        if self._ingest is not None:
            self._ingest.stop()

    def _on_commit_end(self) -> None:
        """Resume the ingest, which may wait for the commit, and close or reopen a shard that is idle now."""
        if self._ingest is not None:
            self._ingest.resume()
        self._reopen_when_idle()
        self._close_when_idle()

    @property
    def is_idle(self) -> bool:
        """Return whether no open, commit or flush is in flight."""
        fire, ingest = self._fire, self._ingest
        return not self._opening and (fire is None or fire.is_idle) and (ingest is None or ingest.is_idle)

    def trim_log(self) -> None:
        """Trim ingested commands from the log, and record in the store up to which row it is complete.

        Only for engines with rows. Call it periodically.
        """
        context, ingest, backend = self.context, self._ingest, self._service.backend
        info = backend.topic(WAITING_TOPIC)
        if context is None or ingest is None or info is None or not (context.running and context.has_rows):
            return
        backend.trim(self.queue, ingest.committed)
        now, queue = self._service.clock.monotonic(), info.refs()[self.queue.queue_id]
        if self._mark is not None and now >= self._mark[1]:
            context.write(StoreChanges(meta=followed_to(queue.incarnation, self._mark[0])))
            self._mark = None
        if self._mark is None:
            # All commits that were under way have ended by then, and the store has what they came to.
            settled_at = now + self._service.config.commit_timeout_ms / 1e3 + 1

            def on_bounds(answer: Completion[list[Bounds | None]]) -> None:
                bounds = None if answer.error is not None else answer.value[0]
                if bounds is not None and self.context is context:
                    self._mark = bounds.next, settled_at

            backend.bounds([queue]).then(on_bounds)

    def tidy_store(self) -> None:
        """Reclaim the store's free disk space in a native thread. Call it periodically."""
        if self.context is not None and self.context.running and not self._stopped and not self._tidying:
            self._tidying = True
            off_hub(self.context.store.tidy, self._on_tidied)

    def _on_tidied(self, value: object, error: Exception | None) -> None:
        ignore_outcome(value, error)
        self._tidying = False
        if error is not None and not self._stopped:
            self._service.counts.count_failure("tidy", error)
            log.warning("delay shard %d gives back no disk space: %s", self.queue.queue_id, error)

    def _close_when_idle(self) -> None:
        if not self._stopped or self._closing or not self.is_idle:
            return
        self._closing = True
        if self.context is not None:
            self.context.running = False
        if self.store is None:
            self.closed.succeed(None)
        else:
            off_hub(self.store.close, lambda value, error: self._on_closed(value, error))

    def _on_closed(self, value: object, error: Exception | None) -> None:
        ignore_outcome(value, error)
        if error is not None:
            log.error("the store of delay shard %d does not close: %s", self.queue.queue_id, error)
        self.closed.succeed(None)


def _ack_map(view: ProgressView) -> AckMap:
    acks = AckMap(view.committed or 0)
    acks.finish(view.finished)
    for offset, attempts in view.attempts.items():
        acks.record_attempts(offset, attempts)
    return acks


def _start(store: DelayStore, ingest_view: ProgressView, bounds: Bounds) -> tuple[int, int]:
    """Return the offset to ingest from, and the offset below which the store has all commands.

    A store behind the group's progress is new or restored from a backup; it ingests what the log still has
    and recognises what it has already. Raises StorageError for a store that is ahead of the log.
    """
    stored_to = ingested_offset(store.meta(INGESTED))
    committed = ingest_view.committed or 0
    if stored_to is None:
        if bounds.min and committed:
            log.error("a delay store is empty although %d commands were taken in; those that the log still "
                      "has are taken in again", committed)  # fmt: skip
        return bounds.min, 0
    if stored_to > bounds.next:
        raise StorageError(
            f"the delay store has taken in commands up to {stored_to}, the log's next is {bounds.next}: it "
            "belongs to another log; put it away, or the log that it belongs to back"
        )
    return min(committed, stored_to), stored_to
