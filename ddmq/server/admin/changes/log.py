"""The last changes as settings of the backend: durable, and the same at every process.

Each change is a setting `change/ID`, as JSON. Ids sort by time; a new change deletes the oldest ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from backend.port import Backend
from backend.records import CommitBatch
from ddmq.server.admin.operations.storing import is_id, make_id
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq_common.clock import Clock
from ddmq_common.errors import StorageError
from ddmq_common.names import CHANGE_PREFIX

CHANGES_MAX = 1_000
STATE_BYTES_MAX = 16 << 10  # of `before` and of `after`
REQUEST_CHARS = 1_000
TOO_LARGE = f"what it changed is larger than {STATE_BYTES_MAX:,} bytes and was not recorded"
log = logging.getLogger("ddmq.changes")


class RecordedChange(msgspec.Struct, frozen=True):
    """A change that was made.

    `who`: the identity that made it, without rights the address of the client. `address`: of the client, or
    of the process that passed the request on; "" in records of earlier releases.
    `request`: its method, path and body. `kind`: a key of CHANGE_KINDS.
    `path`: the names in the path, and for a key the key. `before`, `after`: the state of the object, null if
    it did not exist. `final`: why the change cannot be undone, "" if it can. `undoes`, `undone_by`: ids of
    other changes.
    """

    id: str
    at_ms: int
    who: str
    request: str
    kind: str
    object: str
    path: dict[str, str]
    before: Any
    after: Any
    final: str = ""
    undoes: str = ""
    undone_by: str = ""
    address: str = ""


class ChangeLog:
    """Reads and writes the changes."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    def make_id(self) -> str:
        """Return the id of a new change."""
        return make_id(self._clock.wall_ms())

    def get(self, change_id: str) -> RecordedChange | None:
        """Return a change, or None. Raises StorageError if it cannot be decoded."""
        value = self._backend.setting(CHANGE_PREFIX + change_id) if is_id(change_id) else None
        if value is None:
            return None
        try:
            return msgspec.json.decode(value, type=RecordedChange)
        except msgspec.MsgspecError as error:
            raise StorageError(f"setting {CHANGE_PREFIX}{change_id} is not a change: {error}") from error

    def list_changes(
        self, before_id: str, count: int, allows: Callable[[RecordedChange], bool] | None = None
    ) -> tuple[list[RecordedChange], str | None]:
        """Return up to `count` changes, the newest first, and the id with which the next page begins.

        `before_id`: only changes older than this id; "" for all. Changes that cannot be decoded are left out.
        `allows`: whether the caller may see a change; None: it may see all.
        """
        ids = sorted(self._list_ids(), reverse=True)
        ids = [change_id for change_id in ids if not before_id or change_id < before_id]
        changes: list[RecordedChange] = []
        for change_id in paced(ids):
            try:
                change = self.get(change_id)
            except StorageError as error:
                log.warning("a recorded change is left out", extra={"error": str(error)})
                continue
            if change is None or not (allows is None or allows(change)):
                continue
            if len(changes) == count:
                return changes, changes[-1].id if changes else None
            changes.append(change)
        return changes, None

    def add(self, change: RecordedChange, undone: RecordedChange | None = None) -> None:
        """Record a change, and delete the oldest ones beyond CHANGES_MAX. `undone`: the change that it
        undoes, which is marked in the same commit."""
        settings: dict[str, bytes | None] = {CHANGE_PREFIX + change.id: msgspec.json.encode(change)}
        if undone is not None:
            marked = msgspec.structs.replace(undone, undone_by=change.id)
            settings[CHANGE_PREFIX + undone.id] = msgspec.json.encode(marked)
        ids = sorted({*self._list_ids(), change.id})
        settings |= dict.fromkeys(CHANGE_PREFIX + each for each in ids[: max(len(ids) - CHANGES_MAX, 0)])
        self._backend.commit(CommitBatch(settings=settings), self._clock.monotonic() + WAIT_S).wait(WAIT_S)

    def _list_ids(self) -> list[str]:
        return [key.removeprefix(CHANGE_PREFIX) for key in self._backend.settings(CHANGE_PREFIX)]


def as_state(value: Any) -> Any:
    """Return a state as it is read from the log, so that states compare equal."""
    return msgspec.json.decode(msgspec.json.encode(value))


def is_too_large(state: Any) -> bool:
    """Return whether a state is larger than what is recorded."""
    return len(msgspec.json.encode(state)) > STATE_BYTES_MAX
