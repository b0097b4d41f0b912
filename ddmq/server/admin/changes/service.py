"""Records changes by the admin API with the state before and after, lists them, and undoes them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec

from ddmq.server.admin.changes.kinds import (
    CHANGE_KINDS,
    RECORDED,
    ChangeableServer,
    ChangeKind,
    UndoableKind,
    mask_secrets,
)
from ddmq.server.admin.changes.log import (
    CHANGES_MAX,
    REQUEST_CHARS,
    TOO_LARGE,
    ChangeLog,
    RecordedChange,
    as_state,
    is_too_large,
)
from ddmq.server.admin.contract.queries import ChangesQuery
from ddmq.server.admin.contract.versions import NameLocks
from ddmq.server.admin.operations.target import stated_fields
from ddmq.server.http.routing import AdminRequest, NoSuchChangeError
from ddmq_common.errors import ConflictError, DdmqError

COUNT_MAX = 200
UNDO = "undo"  # in an answer: the id with which the change can be undone
log = logging.getLogger("ddmq.changes")


class RecordedChanges:
    """The changes that a server records. `locks`: those of topics and groups."""

    def __init__(self, server: ChangeableServer, locks: NameLocks) -> None:
        self._server = server
        self._locks = locks
        self.log = ChangeLog(server.backend, server.clock)

    def make_recorded(self, request: AdminRequest, make: Callable[[], Any]) -> Any:
        """Make the change that a request asks for, and record it if its kind is recorded; return the answer,
        which names the change if it can be undone.

        A change that cannot be recorded is made nevertheless.
        """
        kind_name = RECORDED.get((request.method, request.pattern))
        if kind_name is None or not CHANGE_KINDS[kind_name].is_change(request):
            return make()
        kind = CHANGE_KINDS[kind_name]
        names = kind.names_of(request)
        before = self._read_before(kind, names)
        answer = make()
        if not kind.has_changed(answer):
            return answer
        try:
            after = as_state(kind.read_after(self._server, names, request, answer))
            change = self._build_change(kind_name, names, request, before, after)
            if change is not None:
                self.log.add(change)
                if not change.final and isinstance(answer, dict):
                    answer = answer | {UNDO: change.id}
        except (DdmqError, TimeoutError) as error:
            facts = {"request": f"{request.method} {request.pattern}", "error": str(error)}
            log.warning("a change is not recorded", extra=facts)
        return answer

    def _read_before(self, kind: ChangeKind, names: dict[str, str]) -> Any:
        """Return the state before a change; None if it cannot be read, because then the change says why."""
        try:
            return as_state(kind.read_before(self._server, names))
        except (DdmqError, TimeoutError):
            return None

    def _build_change(
        self,
        kind_name: str,
        names: dict[str, str],
        request: AdminRequest,
        before: Any,
        after: Any,
        undoes: str = "",
    ) -> RecordedChange | None:
        """Return the record of a change; None if nothing has changed."""
        kind = CHANGE_KINDS[kind_name]
        if before == after and before is not None:
            return None
        final = kind.find_obstacle(before, after)
        if is_too_large(before) or is_too_large(after):
            before, after, final = None, None, final or TOO_LARGE
        return RecordedChange(
            id=self.log.make_id(),
            at_ms=self._server.clock.wall_ms(),
            who=request.caller.name if request.caller is not None else request.address,
            address=request.address,
            request=_describe_request(request),
            kind=kind_name,
            object=kind.describe_object(names),
            path=names,
            before=before,
            after=after,
            final=final,
            undoes=undoes,
        )

    # --- requests

    def list_changes(
        self, query: ChangesQuery, allows: Callable[[RecordedChange], bool] | None = None
    ) -> dict[str, Any]:
        """Return a page of the changes that the caller may see, the newest first."""
        changes, following = self.log.list_changes(query.after or "", min(query.count, COUNT_MAX), allows)
        return {"items": [_change_row(each) for each in changes], "next": following}

    def list_rows(self, allows: Callable[[RecordedChange], bool] | None = None) -> list[dict[str, Any]]:
        """Return all changes that the caller may see, the newest first."""
        return [_change_row(each) for each in self.log.list_changes("", CHANGES_MAX, allows)[0]]

    def show_change(self, change_id: str) -> dict[str, Any]:
        """Return one change. Raises NoSuchChangeError."""
        return _change_row(self._require_change(change_id))

    def undo_change(self, request: AdminRequest) -> dict[str, Any]:
        """Bring the object of a change back to its state before; return the change that this is.

        Raises ConflictError if the change cannot be undone, was undone before, or if the object was changed
        meanwhile; then nothing is changed.
        """
        change = self._require_change(request.path["id"])
        kind, names = CHANGE_KINDS[change.kind], change.path
        if not isinstance(kind, UndoableKind):
            raise ConflictError(f"change {change.id} cannot be undone: {change.final}")
        lock = kind.find_lock(names)
        with nullcontext() if lock is None else self._locks.hold_lock(*lock):
            change = self._require_change(change.id)
            if change.undone_by:
                raise ConflictError(f"change {change.id} was undone before, by {change.undone_by}")
            if change.final:
                raise ConflictError(f"change {change.id} cannot be undone: {change.final}")
            now = as_state(kind.read_state(self._server, names))
            difference = kind.find_difference(change.before, change.after, now)
            if difference:
                raise ConflictError(
                    f"{change.object} was changed meanwhile: {difference}; nothing was changed"
                )
            kind.restore(self._server, names, change.before, change.after)
            after = as_state(kind.read_state(self._server, names))
            undo = self._build_change(change.kind, names, request, change.after, after, change.id)
            assert undo is not None, "a change has changed something, and so has its undo"
            if change.kind == "key":
                undo = msgspec.structs.replace(undo, final="the messages of the key are delivered again")
            self.log.add(undo, change)
        return _change_row(undo)

    def _require_change(self, change_id: str) -> RecordedChange:
        change = self.log.get(change_id)
        if change is None:
            raise no_such_change(change_id)
        return change


def no_such_change(change_id: str) -> NoSuchChangeError:
    """Return the error for an id that is not that of a recorded change."""
    return NoSuchChangeError(f"there is no change {change_id[:80]!r}; `ddmq changes` lists the last ones")


def _describe_request(request: AdminRequest) -> str:
    """Return a request as text: method, path and stated body."""
    path = request.pattern
    for name, value in request.path.items():
        path = path.replace(f"{{{name}}}", value)
    body = request.body
    fields = stated_fields(body) if isinstance(body, msgspec.Struct) else dict(body)
    fields.pop("token", None)
    text = f" {msgspec.json.encode(mask_secrets(fields)).decode()}" if fields else ""
    return f"{request.method} {path}{text}"[:REQUEST_CHARS]


def _change_row(change: RecordedChange) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(change)
    del row["path"]
    row |= {"before": mask_secrets(change.before), "after": mask_secrets(change.after)}
    return row | {"undoable": not (change.final or change.undone_by)}
