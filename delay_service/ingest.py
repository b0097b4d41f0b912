"""Takes the orders of one shard out of the inner topic and into the store.

Read → decide and write to the store, one bounded run a step → flush in a native thread → one commit of the
progress of both groups and of the outcomes that somebody waits for. The first two go on while a flush and
its commit are under way; what is not yet durable is bounded, and at the bound reading stops. Rules:
* Where orders come thick the next read waits a little for more of them; a single order never waits.
* Orders that the store already had when we opened it are read again only for what had become of them.
* An order about a message whose commit is under way waits, and everything behind it, until `go`.
* A commit that is refused for its outcomes is made without them; their callers have been told "pending".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent

from backend.completion import Completion
from backend.port import Wait
from backend.records import CommitBatch, NewRecord, ReadBatch
from ddmq_common.delays.command import COMMAND_PROPERTY
from ddmq_common.errors import CallerError, FencedError, RemoteError
from ddmq_common.native_threads import off_hub
from delay_service.core.intake import INGESTED
from delay_service.core.orders import Order, order_of
from delay_service.core.outlets import UNREADABLE, dead_record
from delay_service.core.taken import Reply, Taken
from delay_service.fire import Fire
from delay_service.holding import Holding
from delay_service.levels.alarm import Alarm
from delay_service.levels.reading import LevelRead
from delay_service.outcomes import outcome_record, tellable
from delay_service.store.port import Changes

log = logging.getLogger("ddmq.delay")
WAIT_S = 60.0  # how long one wait for data stands before it is armed again
RUN_MAX = 256  # orders in one step on the hub
BUSY = 4  # orders in one read: the next one then begins …
LINGER_S = 0.01  # … so much later than it could, for more orders to share a write, a flush and a commit


class OrderRead(LevelRead):
    """The answer to a read of orders."""

    __slots__ = ("orders",)

    def __init__(self, offset: int, answer: Completion[ReadBatch]) -> None:
        self.orders: list[Order] = []
        super().__init__(offset, answer)

    def _records(self, batch: ReadBatch) -> int:
        self.orders = [order_of(record) for record in batch.carried(COMMAND_PROPERTY)]
        return len(self.orders)


class Ready:
    """Orders that are in the store and not yet durable there."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.orders = 0
        self.replies: list[Reply] = []
        self.done: list[int] = []
        self.dead: list[Order] = []

    def add(self, taken: Taken, end: int) -> None:
        self.end = end
        self.orders += taken.orders
        self.replies += taken.replies
        self.done += taken.done
        self.dead += taken.dead


class Ingest:
    """Of one shard. `position`: the next order to take; `known_to`: the store had everything below it.

    `caught_up`: how far orders must be taken before `on_caught_up` is called, once.
    `settled()`: a flush and its commit have ended.
    """

    def __init__(
        self,
        holding: Holding,
        fire: Fire,
        alarm: Alarm,
        position: int,
        known_to: int,
        caught_up: int,
        on_caught_up: Callable[[], None],
        settled: Callable[[], None],
    ) -> None:
        self._holding = holding
        self._around = holding.around
        self._fire = fire
        self._alarm = alarm
        self._settled = settled
        self._loop: Any = gevent.get_hub().loop
        self.position = position
        self._known_to = known_to
        self._caught_up = caught_up
        self._on_caught_up: Callable[[], None] | None = on_caught_up
        self._orders: list[Order] = []
        self._end = position  # of what was read
        self._ready = Ready(position)
        self._wait: Wait | None = None
        self._busy = self._lingering = self._short = False  # short: the last read took what there was
        self._reading = self._stepping = self._flushing = self._stopped = False
        self._pause_s = self._pause_min = self._around.config.pause_ms_min / 1e3

    @property
    def idle(self) -> bool:
        """Nothing is under way at the store or the backend."""
        return not self._flushing

    def stop(self) -> None:
        """Take nothing more; a flush and commit under way end by themselves. May be called twice."""
        self._stopped = True
        self._alarm.stop()
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.cancel()

    def go(self) -> None:
        """Go on, when something may have been waited for."""
        if not (self._stepping or self._stopped):
            self._stepping = True
            self._loop.run_callback(self._step)

    def _step(self) -> None:
        self._stepping = False
        if not self._stopped and self._holding.running:
            self._holding.safely("take in", self._next)

    def _next(self) -> None:
        if self._ready.orders >= self._around.config.ingest_unflushed_max:
            return
        if self._orders:
            self._take()
        elif self.position < self._end:
            self._took(Taken(0, Changes(), [], [], [], [], [], {}))
        elif not (self._reading or self._lingering) and self._wait is None:
            self._tell_caught_up()
            if self._short:
                self._wait_for_data()
            else:
                self._read()

    # --- reading

    def _read(self) -> None:
        self._reading, self._short = True, False
        config, offset = self._around.config, self._end
        read = self._around.backend.read(
            self._holding.queue, offset, config.ingest_count, config.ingest_bytes
        )
        read.then(lambda answer: self._holding.safely("read", self._read_ended, offset, answer))

    def _read_ended(self, offset: int, answer: Completion[ReadBatch]) -> None:
        self._reading = False
        if self._stopped:
            return
        read = OrderRead(offset, answer)
        if read.missing:
            self._around.counts.lost("missing", read.missing)
            log.error("%d delay orders are missing from the log behind offset %d", read.missing, read.offset)
        if read.error is not None:
            self._around.counts.failed("read", read.error)
            log.warning("delay orders cannot be read, tried again: %s", read.error)
            self._alarm.set(self._pause(), self.go)
        elif read.oldest is not None:
            self._around.counts.lost("expired", read.oldest - read.offset)
            log.error("%d delay orders are gone from the log", read.oldest - read.offset)
            self._end = read.oldest
            self.go()
        else:
            self._pause_s = self._pause_min
            self._arrived(read)

    def _arrived(self, read: OrderRead) -> None:
        self._end = read.next_offset
        self._orders = read.orders
        if read.orders:
            self._busy = len(read.orders) >= BUSY
            self._short = read.next_offset - read.offset < self._around.config.ingest_count
        if read.at_end and not self._orders and self.position == self._end:
            self._tell_caught_up()
            self._wait_for_data()
        else:
            self.go()

    def _wait_for_data(self) -> None:
        deadline = self._around.clock.monotonic() + WAIT_S
        wait = self._wait = self._around.backend.wait(self._holding.queue, self._end, deadline)
        wait.then(lambda answer: self._holding.safely("wait", self._wait_ended, answer))

    def _wait_ended(self, wait: Completion[bool]) -> None:
        if self._wait is not wait:
            return
        self._wait = None
        if wait.error is not None:
            self._around.counts.failed("wait", wait.error)
            self._alarm.set(self._pause(), self.go)
        elif self._busy:
            self._lingering = True
            self._alarm.set(LINGER_S, self._lingered)
        elif not self._stopped and self._holding.running:
            self._read()

    def _lingered(self) -> None:
        self._lingering = self._short = False
        self.go()

    def _pause(self) -> float:
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, self._around.config.pause_ms_max / 1e3)
        return pause

    # --- deciding

    def _take(self) -> None:
        again = self.position < self._known_to
        run = self._orders[:RUN_MAX]
        if again:
            run = [order for order in run if order.offset < self._known_to] or run
            again = run[0].offset < self._known_to
        intake, now_ms = self._holding.intake, self._around.clock.wall_ms()
        self._took(intake.again(run, now_ms) if again else intake.take(run, now_ms))

    def _took(self, taken: Taken) -> None:
        rest = self._orders[taken.orders :]
        end = rest[0].offset if rest else self._end
        if end == self.position:
            return  # the first one waits for a commit; `go` comes when that has ended
        if end > self._known_to:
            if end >= self._holding.intake.place_from:
                taken.changes.meta[INGESTED] = b"%d" % end
            if not self._holding.write(taken.changes, taken.ended):
                return
        self._orders, self.position = rest, end
        for fire_now in taken.awaited:
            self._fire.awaits(fire_now)
        self._around.counts.orders(taken.tally)
        self._ready.add(taken, end)
        self._ready.replies += self._fire.overtaken(taken.done)
        self._flush()
        self._tell_caught_up()
        self.go()

    def _tell_caught_up(self) -> None:
        if self._on_caught_up is not None and self.position >= self._caught_up:
            told, self._on_caught_up = self._on_caught_up, None
            told()

    # --- making it durable

    def _flush(self) -> None:
        if self._flushing or self._ready.end == self._ready.start:
            return
        self._flushing = True
        ready, self._ready = self._ready, Ready(self._ready.end)
        off_hub(self._holding.store.flush, lambda _, error: self._flushed(ready, error))

    def _flushed(self, ready: Ready, error: Exception | None) -> None:
        if error is None:
            self._ending("commit", self._prepare, ready)
        else:
            self._ending("flush", _raise, error)

    def _ending(self, what: str, call: Callable[..., object], *arguments: object) -> None:
        """A step on the way from a flush to the end of its commit; when it fails that is the end."""
        if not self._holding.safely(what, call, *arguments):
            self._flushing = False
            self._settled()

    def _prepare(self, ready: Ready) -> None:
        if ready.dead:
            made = self._around.ready_dead_topic()
            made.then(lambda _: self._ending("commit", self._commit, ready))
        else:
            self._commit(ready)

    def _commit(self, ready: Ready) -> None:
        holding, backend = self._holding, self._around.backend
        wall_ms = self._around.clock.wall_ms()
        known = tellable(backend, ready.replies)
        if len(known) < len(ready.replies):
            self._around.counts.replies_dropped("nobody waits", len(ready.replies) - len(known))
        records = [outcome_record(reply, wall_ms) for reply in known]
        records += [_dead(order, wall_ms) for order in ready.dead]
        progress = [holding.taken(ready.start, ready.end)]
        if ready.done:
            progress.append(holding.done(ready.done, []))
        batch = CommitBatch(records=records, progress=progress)
        if records and not backend.capabilities.atomic:
            alone = CommitBatch(progress=progress)
            backend.append(records, self._around.deadline()).then(
                lambda _: self._ending("commit", self._commit_progress, ready, alone)
            )
        else:
            self._commit_progress(ready, batch)

    def _commit_progress(self, ready: Ready, batch: CommitBatch) -> None:
        stored = self._around.backend.commit(batch, self._around.deadline())
        stored.then(lambda answer: self._ending("commit", self._committed, ready, answer.error))

    def _committed(self, ready: Ready, error: Exception | None) -> None:
        holding = self._holding
        if error is None:
            self._flushing = False
            holding.finished(ready.done)
            self._around.counts.dead(UNREADABLE, len(ready.dead))
            self._flush()
            self.go()
        elif isinstance(error, FencedError | RemoteError) or not holding.running:
            self._flushing = False
            holding.doubt("commit", error)
        else:
            self._commit_again(ready, error)
            return
        self._settled()

    def _commit_again(self, ready: Ready, error: Exception) -> None:
        self._around.counts.failed("commit", error)
        log.warning("what was taken in cannot be committed, tried again: %s", error)
        if isinstance(error, CallerError) and ready.replies:
            self._around.counts.replies_dropped("refused", len(ready.replies))
            ready.replies = []
        gevent.spawn_later(self._pause(), self._ending, "commit", self._prepare, ready)


def _raise(error: Exception) -> None:
    raise error


def _dead(order: Order, wall_ms: int) -> NewRecord:
    """The dead letter of an order that does not say what it wants."""
    facts = {"dead-letter-reason": UNREADABLE, "dead-letter-time": str(wall_ms)}
    return dead_record(order.delivery, order.message_id, order.born_ms, order.flags, facts)


def taken_in(text: bytes | None) -> int | None:
    """How far the store says that it has taken orders in."""
    return int(text) if text is not None and text.isdigit() else None
