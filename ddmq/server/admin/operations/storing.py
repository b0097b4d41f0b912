"""Started operations as settings of the backend: durable, and the same at every process.

    operation/ID              the plan and the rate, as JSON
    operation/ID/items/N      the Nth chunk of the plan's items, as JSON, compressed; deleted at the end
    operation/ID/progress     the progress, as JSON
    operation/ID/stop         the runner that is requested to stop

The items are stored first and the plan last, so that a plan that is there is complete. The progress has its
own key, which only the runner writes; requests write the stop.
"""

from __future__ import annotations

import logging
import re
import secrets
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backend.port import Backend
from backend.records import CommitBatch
from ddmq.server.admin.operations.plans import Plan, PlannedOperation
from ddmq.server.admin.operations.state import Progress
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq_common.clock import Clock
from ddmq_common.errors import ConflictError, FencedError, StorageError
from ddmq_common.names import OPERATION_PREFIX

CHUNK = 500  # items in one setting
KEPT_MAX = 100  # started operations that are remembered
log = logging.getLogger("ddmq.operations")
_ID = re.compile(r"[0-9a-f]{20}")


class StoredOperation(msgspec.Struct, frozen=True):
    """A plan that was started. `rate`: at most so many items are changed per second; None: no limit."""

    plan: Plan
    rate: int | None


class OperationStore:
    """Reads and writes started operations."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    def catch_up(self) -> None:
        """Wait until this process sees every change that was confirmed to any process."""
        self._backend.caught_up().wait(WAIT_S)

    def get(self, operation_id: str) -> tuple[StoredOperation, Progress] | None:
        """Return an operation and its progress, or None. Raises StorageError if it cannot be decoded."""
        head = self._backend.setting(_head_key(operation_id))
        progress = self._backend.setting(progress_key(operation_id))
        if head is None or progress is None:
            return None
        try:
            return msgspec.json.decode(head, type=StoredOperation), decode_progress(progress)
        except msgspec.MsgspecError as error:
            raise StorageError(f"setting {_head_key(operation_id)} is not an operation: {error}") from error

    def get_decodable(self, operation_id: str) -> tuple[StoredOperation, Progress] | None:
        """Return an operation and its progress, or None; also for one that cannot be decoded, which is
        logged."""
        try:
            return self.get(operation_id)
        except StorageError as error:
            log.warning("a stored operation is left out", extra={"error": str(error)})
            return None

    def get_progress(self, operation_id: str) -> Progress | None:
        """Return the progress of an operation, or None."""
        progress = self._backend.setting(progress_key(operation_id))
        return None if progress is None else decode_progress(progress)

    def list_ids(self) -> list[str]:
        """Return the ids of all started operations."""
        names = (key.removeprefix(OPERATION_PREFIX) for key in self._backend.settings(OPERATION_PREFIX))
        return [name for name in names if "/" not in name]

    def stopped_runner(self, operation_id: str) -> str | None:
        """Return the runner that the last stop request named, or None."""
        value = self._backend.setting(_stop_key(operation_id))
        return None if value is None else value.decode()

    def add(self, planned: PlannedOperation, rate: int | None, progress: Progress) -> None:
        """Store a plan with its items and its first progress. Raises ConflictError if the plan was
        started before."""
        plan_id = planned.plan.id
        for number, chunk in enumerate(planned.chunks):
            self._commit({_items_key(plan_id, number): chunk})
        head = _head_key(plan_id)
        values = {
            head: msgspec.json.encode(StoredOperation(planned.plan, rate)),
            progress_key(plan_id): encode_progress(progress),
        }
        try:
            self._commit(values, absent=(head,))
        except FencedError as error:
            raise ConflictError(f"operation {plan_id} was started before") from error

    def read_items(self, operation_id: str, start: int, count: int) -> list[Any]:
        """Return up to `count` items from index `start` on, all of one chunk; none at the end."""
        value = self._backend.setting(_items_key(operation_id, start // CHUNK))
        if value is None:
            return []
        items: list[Any] = msgspec.json.decode(zlib.decompress(value))
        at = start % CHUNK
        return items[at : at + count]

    def put_progress(self, operation_id: str, progress: Progress) -> None:
        """Replace the stored progress of an operation."""
        self._commit({progress_key(operation_id): encode_progress(progress)})

    def put_rate(self, operation: StoredOperation) -> None:
        """Replace the stored rate of an operation that continues."""
        self._commit({_head_key(operation.plan.id): msgspec.json.encode(operation)})

    def request_stop(self, operation_id: str, runner: str) -> None:
        """Request a runner to stop."""
        self._commit({_stop_key(operation_id): runner.encode()})

    def delete_items(self, operation_id: str) -> None:
        """Delete the items of an operation that is done."""
        keys = self._backend.settings(f"{_head_key(operation_id)}/items/")
        if keys:
            self._commit(dict.fromkeys(keys))

    def delete_old(self, deletable: Sequence[str]) -> None:
        """Delete the oldest of these operations, until at most KEPT_MAX are stored."""
        excess = len(self.list_ids()) - KEPT_MAX
        for operation_id in sorted(deletable)[: max(excess, 0)]:
            head = _head_key(operation_id)
            self._commit(dict.fromkeys([head, *self._backend.settings(head + "/")]))

    def delete_orphans(self, before_ms: int) -> None:
        """Delete items of operations that were planned before `before_ms` and whose start did not
        complete."""
        ids = set(self.list_ids())
        keys = [
            key
            for key in self._backend.settings(OPERATION_PREFIX)
            if _id_of(key) not in ids and planned_at(_id_of(key)) < before_ms
        ]
        if keys:
            self._commit(dict.fromkeys(keys))

    def _commit(self, settings: Mapping[str, bytes | None], absent: Sequence[str] = ()) -> None:
        batch = CommitBatch(settings=settings, absent=absent)
        self._backend.commit(batch, self._clock.monotonic() + WAIT_S).wait(WAIT_S)


def encode_items(items: Sequence[Any]) -> list[bytes]:
    """Return the items of a plan as chunks, each the value of a setting. Other greenlets run between the
    chunks."""
    return [
        zlib.compress(msgspec.json.encode(items[start : start + CHUNK]))
        for start in paced(range(0, len(items), CHUNK))
    ]


def make_id(now_ms: int) -> str:
    """Return a new id. Ids sort by the time of the plan, in epoch milliseconds."""
    return f"{now_ms:012x}{secrets.token_hex(4)}"


def is_id(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def planned_at(operation_id: str) -> int:
    """Return the time at which an operation was planned, in epoch milliseconds."""
    return int(operation_id[:12], 16) if is_id(operation_id) else 0


def progress_key(operation_id: str) -> str:
    """Return the name of the setting with the progress of an operation."""
    return f"{_head_key(operation_id)}/progress"


def encode_progress(progress: Progress) -> bytes:
    """Return a progress as the value of its setting."""
    return msgspec.json.encode(progress)


def decode_progress(value: bytes) -> Progress:
    """Return the progress of a setting's value. Raises MsgspecError."""
    return msgspec.json.decode(value, type=Progress)


def _head_key(operation_id: str) -> str:
    return OPERATION_PREFIX + operation_id


def _items_key(operation_id: str, chunk: int) -> str:
    return f"{_head_key(operation_id)}/items/{chunk}"


def _stop_key(operation_id: str) -> str:
    return f"{_head_key(operation_id)}/stop"


def _id_of(key: str) -> str:
    return key.removeprefix(OPERATION_PREFIX).partition("/")[0]
