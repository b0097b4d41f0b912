"""Runs started operations in this process: a greenlet each, in batches, with a rate and a stop.

A runner stores its progress after each batch. It ends if the stored progress names another runner, because
the operation was continued elsewhere. Errors that pass are waited out; all others end the operation, which
can be started again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from ddmq.server.admin.operations.plans import Plan
from ddmq.server.admin.operations.slices import spawn_sliced
from ddmq.server.admin.operations.state import BatchResult, OperationState, Progress
from ddmq.server.admin.operations.storing import (
    OperationStore,
    StoredOperation,
    encode_progress,
    progress_key,
)
from ddmq.server.admin.operations.target import OperationTarget
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError, FencedError, RemoteError, TryLaterError

RUNNING_MAX = 4  # operations that run in one process
RETRY_S = (0.1, 0.5, 2.0, 5.0)  # pauses after errors that pass, the last one again and again
BATCH_S = 0.2  # of the rate, at most, in one batch
STORE_S = 1.0  # between two writes of the progress of batches that changed nothing
log = logging.getLogger("ddmq.operations")


class OperationRunner:
    """The running operations of this process. `home`: its name, the same after a restart."""

    def __init__(
        self,
        store: OperationStore,
        clock: Clock,
        home: str,
        make_target: Callable[[Plan], OperationTarget],
    ) -> None:
        self._store = store
        self._clock = clock
        self._make_target = make_target
        self.home = home
        self._wake_ups: dict[str, Event] = {}  # by id of the operation
        self._greenlets: set[Any] = set()
        self._closed = False

    def check_capacity(self) -> None:
        """Raise TryLaterError if RUNNING_MAX operations run in this process."""
        if len(self._wake_ups) >= RUNNING_MAX:
            raise TryLaterError(f"{RUNNING_MAX} operations are running here; try again when one has ended")

    def is_running(self, operation_id: str) -> bool:
        """Return whether this process runs the operation."""
        return operation_id in self._wake_ups

    def make_progress(self, cursor: Any) -> Progress:
        """Return the first progress of an operation that this process will run."""
        now = self._clock.wall_ms()
        return Progress(OperationState.RUNNING, secrets.token_hex(8), self.home, now, now, cursor)

    def continue_progress(self, progress: Progress) -> Progress:
        """Return the progress with which this process continues an operation, as a new runner."""
        return progress.restart_with(secrets.token_hex(8), self.home, self._clock.wall_ms())

    def start(self, operation: StoredOperation, progress: Progress) -> None:
        """Run an operation, whose progress is stored and names the runner."""
        operation_id = operation.plan.id
        event = self._wake_ups[operation_id] = Event()
        facts = {"operation": operation_id, "kind": operation.plan.kind, "action": operation.plan.action}
        log.info("operation started", extra=facts | {"items": operation.plan.item_count})
        greenlet = spawn_sliced(self._run, operation, progress, event)
        self._greenlets.add(greenlet)
        greenlet.link(self._greenlets.discard)

    def wake_up(self, operation_id: str) -> None:
        """Let a runner of this process see a stop request now."""
        if operation_id in self._wake_ups:
            self._wake_ups[operation_id].set()

    def resume_all(self) -> None:
        """Continue the operations that this process ran when it ended."""
        for operation_id in self._store.list_ids():
            stored = self._store.get_decodable(operation_id)
            if stored is None or self.is_running(operation_id):
                continue
            operation, progress = stored
            if progress.state is OperationState.RUNNING and progress.home == self.home:
                stop = self._store.stopped_runner(operation_id) == progress.runner
                following = progress.stop(self._clock.wall_ms()) if stop else self.continue_progress(progress)
                self._store.put_progress(operation_id, following)
                if not stop:
                    self.start(operation, following)

    def close(self, seconds: float = 0.0) -> None:
        """End all runners after their batch, and wait for these batches, at most `seconds`. The operations
        continue when the process starts again."""
        self._closed = True
        for event in self._wake_ups.values():
            event.set()
        gevent.joinall(list(self._greenlets), timeout=max(seconds, 0.0))
        if self._greenlets:
            log.warning("batches of operations have not ended in time", extra={"count": len(self._greenlets)})

    # --- one operation

    def _run(self, operation: StoredOperation, progress: Progress, event: Event) -> None:
        operation_id = operation.plan.id
        try:
            last = self._run_batches(operation, progress, event)
            facts = {"operation": operation_id, "state": last.state, "error": last.error}
            log.info("operation ended", extra=facts | {"changed": last.changed, "skipped": last.skipped})
        except Exception:
            log.exception("operation interrupted", extra={"operation": operation_id})
        finally:
            if self._wake_ups.get(operation_id) is event:  # it may have been started again since it ended
                del self._wake_ups[operation_id]

    def _run_batches(self, operation: StoredOperation, progress: Progress, event: Event) -> Progress:
        """Run batches until the operation ends here; return its last progress. `event` ends a pause."""
        operation_id, failures = operation.plan.id, 0
        try:
            run = OperationRun(
                self._store, self._clock, operation, progress, self._make_target(operation.plan)
            )
        except DdmqError as error:
            return self._store_failure(operation_id, progress, error)
        while True:
            try:
                pause_s = run.run_batch()
                failures = 0
            except (TryLaterError, RemoteError, FencedError, TimeoutError) as error:
                pause_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                facts = {"operation": operation_id, "error": str(error), "pause_s": pause_s}
                log.warning("operation waits", extra=facts)
            except DdmqError as error:
                return self._store_failure(operation_id, run.progress, error)
            if run.is_over:
                return run.progress
            event.wait(pause_s)
            event.clear()
            if self._closed:
                return run.progress

    def _store_failure(self, operation_id: str, progress: Progress, error: Exception) -> Progress:
        failed = progress.fail(str(error), self._clock.wall_ms())
        self._store.put_progress(operation_id, failed)
        return failed


class OperationRun:
    """One runner of one operation. `progress`: the newest one, which may not be stored yet.

    If a batch fails, it is uncertain whether it was stored, so the next one continues from the stored
    progress.
    """

    def __init__(
        self,
        store: OperationStore,
        clock: Clock,
        operation: StoredOperation,
        progress: Progress,
        target: OperationTarget,
    ) -> None:
        self._store = store
        self._clock = clock
        self._plan = operation.plan
        self._rate = operation.rate
        self._target = target
        self._runner = progress.runner
        self._stored = progress
        self._next_at = clock.monotonic()  # when the rate allows the next batch
        self._is_uncertain = False
        self.progress = progress
        self.is_over = False

    def run_batch(self) -> float:
        """Run one batch and store the progress; return the seconds to wait before the next one."""
        if self._is_uncertain:
            self._reload_progress()
        if self.is_over or self._end_if_replaced() or self._stop_if_requested():
            return 0.0
        pause_s = self._next_at - self._clock.monotonic()
        if pause_s > 0:
            return pause_s
        self._is_uncertain = True
        result, is_stored = self._target.run_batch(self.progress.cursor, self._batch_size(), self._encode)
        progress = self._advance_progress(result)
        if not is_stored and self._must_store(progress):
            self._store.put_progress(self._plan.id, progress)
            is_stored = True
        self.progress = progress
        self._stored = progress if is_stored else self._stored
        self._is_uncertain = False
        if self.progress.state is not OperationState.RUNNING:
            self.is_over = True
            self._store.delete_items(self._plan.id)
        return self._start_pause(result.changed)

    def _reload_progress(self) -> None:
        """Continue from the stored progress, as soon as this process sees all that was stored."""
        self._store.catch_up()
        self._is_uncertain = False
        progress = self._store.get_progress(self._plan.id)
        if progress is None or progress.runner != self._runner:
            self.is_over = True
        else:
            self.progress = self._stored = progress
            self.is_over = self.progress.state is not OperationState.RUNNING

    def _end_if_replaced(self) -> bool:
        """End the run if another runner continues the operation; return whether it ended."""
        progress = self._store.get_progress(self._plan.id)
        self.is_over = progress is None or progress.runner != self._runner
        return self.is_over

    def _stop_if_requested(self) -> bool:
        """Stop the operation if its runner is requested to stop; return whether it was stopped."""
        if self._store.stopped_runner(self._plan.id) != self._runner:
            return False
        stopped = self.progress.stop(self._clock.wall_ms())
        self._store.put_progress(self._plan.id, stopped)
        self.progress, self.is_over = stopped, True
        return True

    def _batch_size(self) -> int:
        if self._rate is None:
            return self._target.batch_max
        return max(1, min(self._target.batch_max, int(self._rate * BATCH_S)))

    def _start_pause(self, changed: int) -> float:
        """Account for the changes of a batch; return the seconds until the rate allows the next one."""
        now = self._clock.monotonic()
        if self._rate is not None:
            self._next_at = max(self._next_at, now - BATCH_S) + changed / self._rate
        return max(0.0, self._next_at - now)

    def _advance_progress(self, result: BatchResult) -> Progress:
        progress = self.progress.add_batch(result, self._clock.wall_ms())
        if result.cursor is None and self._plan.exact:
            progress = progress.skip_missing(self._plan.item_count, self._target.missing)
        return progress

    def _encode(self, result: BatchResult) -> dict[str, bytes]:
        """Return the settings that store the progress after a batch."""
        return {progress_key(self._plan.id): encode_progress(self._advance_progress(result))}

    def _must_store(self, now: Progress) -> bool:
        before = self._stored
        changed = now.changed > before.changed or now.state is not before.state
        return changed or now.at_ms - before.at_ms >= STORE_S * 1000
