"""A store of a shard that another process owns, kept warm: little is missing when we are granted it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from backend.completion import Completion
from backend.port import Backend
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from ddmq_common.event_loop import sleep, spawn
from ddmq_common.native_threads import in_thread
from delay_service.store.port import DelayStore
from delay_service.waiting.follow import Follower

log = logging.getLogger("ddmq.delay")
PAUSE_S = 5.0  # after a failure; also while another process of this machine has the store
TIDY_S = 60.0


class Standby:
    """Keeps the store of one shard warm from `start` to `stop`; `closed` settles when the store is closed.

    `opener(queue)` opens the newest store in the folder, or an empty one, and blocks.
    """

    def __init__(
        self, backend: Backend, clock: Clock, queue: QueueRef, opener: Callable[[QueueRef], DelayStore]
    ) -> None:
        self.queue = queue
        self.closed: Completion[None] = Completion()
        self.why = "it is being opened"  # it does not follow; "": it does
        self.follower: Follower | None = None
        self._backend = backend
        self._clock = clock
        self._opener = opener
        self._stopped = False
        self._tidied_at = 0.0

    @property
    def is_warm(self) -> bool:
        """Return whether the store had every row a moment ago."""
        return self.follower is not None and self.follower.at_end

    def start(self) -> None:
        spawn(self._run)

    def stop(self) -> Completion[None]:
        """Follow no more; `closed`. May be called twice."""
        self._stopped = True
        return self.closed

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    self._follow_rows()
                except (DdmqError, OSError) as error:
                    self._on_failed(error)
                except Exception as error:  # a mistake of ours must not leave the shard without a warm store
                    log.exception("the standby of delay shard %d has failed", self.queue.queue_id)
                    self._on_failed(error)
        finally:
            self.closed.succeed(None)

    def _on_failed(self, error: Exception) -> None:
        self.why = str(error) or type(error).__name__
        log.info("no standby of delay shard %d, tried again: %s", self.queue.queue_id, self.why)
        give_up = self._clock.monotonic() + PAUSE_S
        while not self._stopped and self._clock.monotonic() < give_up:
            sleep(0.05)

    def _follow_rows(self) -> None:
        store = in_thread(self._opener, self.queue)
        try:
            self.follower = Follower(
                self._backend, self._clock, self.queue.queue_id, store, lambda: self._stopped
            )
            self.why = ""
            while not self._stopped:
                self.follower.follow_to(self.follower.position + 1)
                self._tidy_store(store)
        finally:
            self.follower = None
            in_thread(store.close)

    def _tidy_store(self, store: DelayStore) -> None:
        now = self._clock.monotonic()
        if now - self._tidied_at >= TIDY_S:
            self._tidied_at = now
            in_thread(store.tidy)
