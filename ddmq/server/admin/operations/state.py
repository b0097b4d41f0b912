"""The states of an operation, and its progress. Pure: no clock, no backend.

    plan ──start──▶ running ──end──▶ done
                    │  ▲ │
               stop │  │ └─error──▶ failed
                    ▼  │ start        │ start (continues)
                  stopped ◀───────────┘

A plan has no progress yet. The progress of a started operation is replaced as a whole by each step, so the
stored one is always consistent: `changed`, `skipped` and `cursor` describe the same batches.

Two more states are shown, but not stored: an operation is `stopping` while a requested stop waits for the
batch in progress, and `interrupted` if its runner has given no sign of life for INTERRUPTED_MS.

Each start makes a new runner. A progress names the runner that may replace it; an earlier runner, for
example in a process that was paused, finds another name and ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from ddmq_common.errors import ConflictError

INTERRUPTED_MS = 30_000
REASONS_MAX = 50  # different reasons in `skipped`
OTHER_REASONS = "other reasons"


class OperationState(StrEnum):
    """The state of an operation, as the admin API shows it."""

    PLANNED = "planned"
    RUNNING = "running"
    STOPPING = "stopping"  # shown, not stored
    INTERRUPTED = "interrupted"  # shown, not stored
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


class OperationEvent(StrEnum):
    """An event in the life of an operation."""

    START = "start"
    BATCH = "batch"
    END = "end"
    STOP = "stop"
    ERROR = "error"


_S, _E = OperationState, OperationEvent
TRANSITIONS: dict[tuple[OperationState, OperationEvent], OperationState] = {
    (_S.PLANNED, _E.START): _S.RUNNING,
    (_S.INTERRUPTED, _E.START): _S.RUNNING,
    (_S.STOPPED, _E.START): _S.RUNNING,
    (_S.FAILED, _E.START): _S.RUNNING,
    (_S.RUNNING, _E.BATCH): _S.RUNNING,
    (_S.RUNNING, _E.END): _S.DONE,
    (_S.RUNNING, _E.STOP): _S.STOPPED,
    (_S.RUNNING, _E.ERROR): _S.FAILED,
}


class BatchResult(msgspec.Struct, frozen=True):
    """The result of one batch. `skipped`: counts by reason. `cursor`: the position of the next batch, in the
    form of the operation's kind; None at the end."""

    changed: int
    skipped: Mapping[str, int]
    cursor: Any


class Progress(msgspec.Struct, frozen=True):
    """The progress of a started operation. `runner`: the only one that may replace it; `home`: the name of
    the runner's process. Times are epoch milliseconds; `at_ms`: the last sign of life."""

    state: OperationState
    runner: str
    home: str
    at_ms: int
    started_ms: int
    cursor: Any
    changed: int = 0
    skipped: dict[str, int] = {}
    ended_ms: int | None = None
    error: str = ""

    @property
    def processed_count(self) -> int:
        """The number of items that were changed or skipped."""
        return self.changed + sum(self.skipped.values())

    def add_batch(self, batch: BatchResult, at_ms: int) -> Progress:
        """Return the progress after a batch, which ends the operation if it has no cursor."""
        event = OperationEvent.BATCH if batch.cursor is not None else OperationEvent.END
        return msgspec.structs.replace(
            self,
            state=next_state(self.state, event),
            at_ms=at_ms,
            cursor=batch.cursor,
            changed=self.changed + batch.changed,
            skipped=merge_skipped(self.skipped, batch.skipped),
            ended_ms=at_ms if batch.cursor is None else None,
        )

    def skip_missing(self, total: int, reason: str) -> Progress:
        """Return the progress of a completed operation, with the items that no batch met counted as skipped.
        `total`: the number of items in the plan."""
        missing = total - self.processed_count
        if missing <= 0:
            return self
        return msgspec.structs.replace(self, skipped=merge_skipped(self.skipped, {reason: missing}))

    def stop(self, at_ms: int) -> Progress:
        """Return the progress of the stopped operation."""
        state = next_state(self.state, OperationEvent.STOP)
        return msgspec.structs.replace(self, state=state, at_ms=at_ms, ended_ms=at_ms)

    def fail(self, error: str, at_ms: int) -> Progress:
        """Return the progress of the operation after an error that ends it."""
        state = next_state(self.state, OperationEvent.ERROR)
        return msgspec.structs.replace(self, state=state, at_ms=at_ms, ended_ms=at_ms, error=error)

    def restart_with(self, runner: str, home: str, at_ms: int) -> Progress:
        """Return the progress with which another runner continues. The caller has checked with
        `check_start` that this is allowed."""
        return msgspec.structs.replace(
            self, state=OperationState.RUNNING, runner=runner, home=home, at_ms=at_ms, ended_ms=None, error=""
        )

    def shown_state(self, now_ms: int, stopped_runner: str | None) -> OperationState:
        """Return the state to show. `stopped_runner`: the runner that the last stop request named, if any."""
        if self.state is not OperationState.RUNNING:
            return self.state
        if now_ms - self.at_ms > INTERRUPTED_MS:
            return OperationState.INTERRUPTED
        return OperationState.STOPPING if stopped_runner == self.runner else OperationState.RUNNING


def next_state(state: OperationState, event: OperationEvent) -> OperationState:
    """Return the state after an event. Raises ConflictError if the event is not allowed."""
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise ConflictError(f"the operation is {state}; {event} is not possible")
    return following


def check_start(state: OperationState) -> None:
    """Raise ConflictError unless an operation in this shown state can be started."""
    if (state, OperationEvent.START) not in TRANSITIONS:
        hint = {
            OperationState.STOPPING: "; start it again when it is stopped",
            OperationState.DONE: "; make a new plan",
        }.get(state, "")
        raise ConflictError(f"the operation is {state}{hint}")


def merge_skipped(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of two counts by reason, with at most REASONS_MAX reasons and OTHER_REASONS."""
    merged = dict(counts)
    for reason, count in more.items():
        name = reason if reason in merged or len(merged) < REASONS_MAX else OTHER_REASONS
        merged[name] = merged.get(name, 0) + count
    return merged
