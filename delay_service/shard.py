"""One shard, from its grant to its end: opened, at work, closed.

Opening, in this order: our epoch goes into the group of fired messages, which keeps every earlier owner's
fires out; then its progress is read, so it is whole; then the store is opened in a native thread and, where
the engine has rows of what waits, brought in line with these: it may be empty, or old. Commands are taken in
from where the store stands, and nothing fires before all that were there at the grant are in the store: a
cancel that came in time counts.

What fails at work, a store or a mistake of ours, ends here: what is under way ends, the store is closed, and
the shard is opened anew under the same epoch. Only a claim that is in doubt is the service's to renew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import gevent

from backend.completion import Completion
from backend.progress.ack_map import AckMap
from backend.records import Bounds, CommitBatch, ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import DdmqError, StorageError
from ddmq_common.names import DELAY_GROUP, FIRED_GROUP, WAITING_TOPIC
from ddmq_common.native_threads import in_thread, nothing, off_hub
from delay_service.context import DelayServiceContext, Generations, ShardContext
from delay_service.core.decider import INGESTED
from delay_service.due.backend import CLAIM_ERRORS
from delay_service.due.service import Alarm
from delay_service.fire import FireLoop
from delay_service.ingest import Ingest, taken_in
from delay_service.store.port import DelayStore, DueKey, StoreChanges, StoreOpener
from delay_service.waiting.follow import Follower, followed_to

log = logging.getLogger("ddmq.delay")
T = TypeVar("T")
PAUSE_S = 0.2  # pause after opening or work failed for a reason that passes, doubling …
CALM_S = 60.0  # … as long as the last time was less than this ago


class Shard:
    """See the module's text. `doubt(shard, error)`: our claim has to be had anew. `opened()`: it fires.
    `closed` settles when the store is given back, `before` when that of the last owner in this process is.
    """

    def __init__(
        self,
        service: DelayServiceContext,
        queue: QueueRef,
        epoch: int,
        opener: StoreOpener,
        alarms: Callable[[], Alarm],
        doubt: Callable[[Shard, Exception], None],
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
        self._doubt = doubt
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
        """Begin, once whoever had the store here before has closed it."""
        self._opening = True
        if self._before is None:
            gevent.spawn(self._open)
        else:
            self._before.then(lambda _: gevent.spawn(self._open))

    def _open(self) -> None:
        try:
            if not self._stopped:
                self._load()
        except Exception as error:
            self._not_opened(error)
        finally:
            self._opening = False
            self._close_when_idle()

    def _not_opened(self, error: Exception) -> None:
        self.why = str(error) or type(error).__name__
        self._service.counts.failed("open", error)
        unexpected = None if isinstance(error, DdmqError | OSError) else error
        log.warning(
            "delay shard %d cannot be opened, tried again: %s", self.queue.queue_id, self.why,
            exc_info=unexpected,
        )  # fmt: skip
        self._put_back()
        self._go_on(error if isinstance(error, CLAIM_ERRORS) else None)

    def _go_on(self, doubt: Exception | None) -> None:
        """It is closed: open it anew after a pause, unless there is doubt whose it is."""
        if self._stopped:
            return
        if doubt is not None:
            self._stopped = True
            self._doubt(self, doubt)
            return
        now = self._service.clock.monotonic()
        if now - self._failed_at >= CALM_S:
            self._pause_s = PAUSE_S
        self._alarm.once(self._pause_s, self._open_anew)
        self._pause_s = min(self._pause_s * 2, self._service.config.pause_ms_max / 1e3)
        self._failed_at = now

    def _open_anew(self) -> None:
        if not self._stopped and not self._opening and self.context is None:
            self._opening = True
            gevent.spawn(self._open)

    def _put_back(self) -> None:
        """The store is opened anew the next time: it may have failed, and then refuses everything."""
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
        fired = self._wait(backend.progress(FIRED_GROUP, [queue]))[0]
        claim = ProgressDelta(FIRED_GROUP, queue, self.epoch, fired.generation)
        self._wait(backend.commit(CommitBatch(progress=(claim,)), self._service.deadline()))
        fired = self._wait(backend.progress(FIRED_GROUP, [queue]))[0]
        taken = self._wait(backend.progress(DELAY_GROUP, [queue]))[0]
        bounds = self._wait(backend.bounds([queue]))[0]
        if self._stopped or bounds is None:
            self._stopped = True  # the topic is gone, and with it our membership
            return
        if self.store is None:
            self.store = in_thread(self._opener, queue, self.epoch)
        if backend.compacts:
            self._follow(self.store, taken.committed or 0)
        if not self._stopped:
            self._run(self.store, taken, fired, bounds)

    def _follow(self, store: DelayStore, committed: int) -> None:
        """Have in the store what the rows say: that is all that was ever committed, up to `committed`."""
        service = self._service
        follower = Follower(service.backend, service.clock, self.queue.queue_id, store, lambda: self._stopped)
        bounds = follower.bounds()
        self.why = f"it restores what waits: rows up to offset {bounds.next}"
        began = service.clock.monotonic()
        follower.follow(bounds.next)
        if bounds.next and not self._stopped:  # else no row was ever written, and the commands tell all
            store.write(StoreChanges(meta={INGESTED: b"%d" % committed}))
            log.info(
                "delay shard %d has what waits: %d rows were followed in %.1f s",
                self.queue.queue_id, follower.rows, service.clock.monotonic() - began,
            )  # fmt: skip

    def _wait(self, completion: Completion[T]) -> T:
        return completion.wait(self._service.config.commit_timeout_ms / 1e3 + 1)

    def _run(self, store: DelayStore, taken: ProgressView, fired: ProgressView, bounds: Bounds) -> None:
        acks = _ack_map(fired)
        generations = Generations(taken.generation, fired.generation)
        start, known_to = _start(store, taken, bounds)
        context = ShardContext(
            self._service,
            self.queue,
            self.epoch,
            generations,
            store,
            acks,
            self._failed,
            self._on_commit_end,
            taken.committed or 0,
        )
        fire = FireLoop(context, self._alarms())
        self.context, self._fire = context, fire
        self._ingest = Ingest(context, fire, self._alarms(), start, known_to, bounds.next, self._caught_up)
        self.why = "it takes in the commands that came before"
        log.info(
            "delay shard %d is ours (epoch %d): %d messages wait, commands taken in from offset %d, %d to go",
            self.queue.queue_id, self.epoch, sum(store.counts().values()), start, bounds.next - start,
        )  # fmt: skip
        self._ingest.go()

    def _caught_up(self) -> None:
        self.why = ""
        if self._fire is not None and self._service.fires:
            self._fire.open()
        self._opened()

    # --- at work

    @property
    def position(self) -> int | None:
        """The next command to take in; None while opening."""
        return None if self._ingest is None else self._ingest.position

    @property
    def running(self) -> bool:
        """It has its store, and nobody doubts it."""
        return self.context is not None and self.context.running

    def first_due_ms(self) -> int | None:
        """When the first message that waits is, or was, due, in flight or not, but for those put aside; None
        when none does. While `why` says that nothing fires, nobody knows."""
        context = self.context
        found: list[DueKey | None] = [None]
        if context is not None and context.running:
            context.safely("look", lambda: found.append(context.store.next_due()))
        return None if found[-1] is None else found[-1].due_ms

    def raise_epoch(self, epoch: int) -> None:
        """Commit under this epoch from now on."""
        self.epoch = epoch
        if self.context is not None:
            self.context.epoch = epoch

    def topic_changed(self, topic: str) -> None:
        if self._fire is not None:
            self._fire.topic_changed(topic)

    # --- what failed

    def _failed(self, error: Exception) -> None:
        if isinstance(error, CLAIM_ERRORS) or self._stopped:
            self._doubt(self, error)
            return
        self.why = str(error) or type(error).__name__
        log.warning("delay shard %d is opened anew: %s", self.queue.queue_id, self.why)
        self._stop_work()
        self._put_back_when_idle()

    def _put_back_when_idle(self) -> None:
        """Close what failed, once nothing of it is under way."""
        failed = self.context is not None and not self.context.running
        if failed and self.idle and not self._stopped:
            self._opening = True
            gevent.spawn(self._open_later)

    def _open_later(self) -> None:
        doubt = None if self.context is None else self.context.claim_doubt
        self._put_back()
        self._opening = False
        self._go_on(doubt)
        self._close_when_idle()

    # --- the end

    @property
    def busy(self) -> bool:
        """Whether the store is not given back yet."""
        return not self.closed.done

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Begin nothing more; what is under way ends, then the store is closed and `on_idle` follows."""
        self.closed.then(lambda _: on_idle())
        self._stopped = True
        self._alarm.stop()
        self._stop_work()
        self._close_when_idle()

    def abandon(self) -> None:
        """Tell the store nothing more of what is under way: the log has it, and the next owner reads it."""
        if self.context is not None:
            self.context.running = False

    def _stop_work(self) -> None:
        if self._fire is not None:
            self._fire.stop()
        if self._ingest is not None:
            self._ingest.stop()

    def _on_commit_end(self) -> None:
        """Let the ingest resume, which may have waited for this; a shard that stops may be idle now."""
        if self._ingest is not None:
            self._ingest.go()
        self._put_back_when_idle()
        self._close_when_idle()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        fire, ingest = self._fire, self._ingest
        return not self._opening and (fire is None or fire.idle) and (ingest is None or ingest.idle)

    def trim(self) -> None:
        """Let the log forget commands that are in rows, and note how far the store has these.

        For every now and then.
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
            ended_at = now + self._service.config.commit_timeout_ms / 1e3 + 1

            def known(answer: Completion[list[Bounds | None]]) -> None:
                bounds = None if answer.error is not None else answer.value[0]
                if bounds is not None and self.context is context:
                    self._mark = bounds.next, ended_at

            backend.bounds([queue]).then(known)

    def tidy(self) -> None:
        """Let the store give back disk space of what left it, off the hub. For every now and then."""
        if self.context is not None and self.context.running and not self._stopped and not self._tidying:
            self._tidying = True
            off_hub(self.context.store.tidy, self._tidied)

    def _tidied(self, value: object, error: Exception | None) -> None:
        nothing(value, error)
        self._tidying = False
        if error is not None and not self._stopped:
            self._service.counts.failed("tidy", error)
            log.warning("delay shard %d gives back no disk space: %s", self.queue.queue_id, error)

    def _close_when_idle(self) -> None:
        if not self._stopped or self._closing or not self.idle:
            return
        self._closing = True
        if self.context is not None:
            self.context.running = False
        if self.store is None:
            self.closed.succeed(None)
        else:
            off_hub(self.store.close, lambda value, error: self._has_closed(value, error))

    def _has_closed(self, value: object, error: Exception | None) -> None:
        nothing(value, error)
        if error is not None:
            log.error("the store of delay shard %d does not close: %s", self.queue.queue_id, error)
        self.closed.succeed(None)


def _ack_map(view: ProgressView) -> AckMap:
    acks = AckMap(view.committed or 0)
    acks.finish(view.finished)
    for offset, attempts in view.attempts.items():
        acks.attempt(offset, attempts)
    return acks


def _start(store: DelayStore, taken: ProgressView, bounds: Bounds) -> tuple[int, int]:
    """Where to take commands in from, and below which the store has them already.

    A store that is behind the group's progress was restored from a backup, or is new: it takes what the log
    still has. What it holds of that, and what has fired since, is recognised. Raises StorageError for a store
    that knows more commands than the log ever had.
    """
    known_to = taken_in(store.meta(INGESTED))
    committed = taken.committed or 0
    if known_to is None:
        if bounds.min and committed:
            log.error("a delay store is empty although %d commands were taken in; those that the log still "
                      "has are taken in again", committed)  # fmt: skip
        return bounds.min, 0
    if known_to > bounds.next:
        raise StorageError(
            f"the delay store has taken in commands up to {known_to}, the log's next is {bounds.next}: it "
            "belongs to another log; put it away, or the log that it belongs to back"
        )
    return min(committed, known_to), known_to
