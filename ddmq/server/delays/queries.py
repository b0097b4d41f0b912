"""Answers the admin API's requests about one delayed message, and makes backups of all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddmq.server.delays.backup import backup_folder, check_secret, copy_shards, make_backup
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.delays.rows import describe_message
from ddmq.server.http.parameters import Query
from ddmq.server.http.routing import AdminRequest, read_forwarded
from ddmq_common.delays.command import uuid_bytes
from ddmq_common.errors import TryLaterError
from ddmq_common.native_threads import in_thread
from delay_service.due.holds import is_held
from delay_service.store.port import DueKey, IdKind

PENDING, CANCELLED = "pending", "cancelled"
_STATES = {
    IdKind.PENDING: PENDING, IdKind.CANCELLED: CANCELLED, IdKind.TOMBSTONE: "cancelled before it was known",
    IdKind.DEAD: "dead letter",
}  # fmt: skip


class DelayQueries:
    """Answers requests about single messages in the shards of this process, and for backups. `backups`: their
    folder."""

    def __init__(self, owners: DelayOwners, backups: Path) -> None:
        self._owners = owners
        self._backups = backups

    def message(self, request: AdminRequest) -> dict[str, Any]:
        """Return the state and content of one delayed message, given its delay id or its uuid."""
        uuid, shard = self._owners.find_shard(request.path["id"])
        behind = self._owners.catch_up().behind
        store = self._owners.find_store(shard)
        state = store.ids([uuid_bytes(uuid)])[0]
        row: dict[str, Any] = {"uuid": uuid, "shard": shard, "state": "unknown"}
        if state is None:
            if shard in behind:
                orders = f"delay shard {shard} has {behind[shard]} orders to take in"
                raise TryLaterError(f"{uuid} is not known yet: {orders}; try again")
            return row
        row["state"] = _STATES.get(state.kind, state.kind.name.lower())
        if state.kind is not IdKind.PENDING:
            return row | {"at_ms": state.at_ms, "kept_until_ms": state.forget_ms}
        message = store.get(DueKey(state.at_ms, state.offset))
        return row if message is None else row | describe_message(message, with_body=True)

    def fetch_message(self, uuid: str) -> Mapping[str, Any]:
        """Return the answer of `message` for a uuid, from this process or from the one that owns the shard.
        Raises TryLaterError."""
        request = AdminRequest({"id": uuid}, Query(), {}, "GET", "/delay/messages/{id}")
        return dict(read_forwarded(self._owners.answer_anywhere(request, self.message), "the delay service"))

    def backup(self, request: AdminRequest) -> dict[str, Any]:
        """Copy every shard, each as of one moment, into a new folder below the backup folder.

        With `shards` in the body, copy only those, into a folder that another process has begun; that process
        sends its `secret`.
        """
        folder = backup_folder(request.body.folder, self._backups)
        numbers, open_shards = request.body.shards, self._owners.list_open_shards()
        if numbers is not None:
            check_secret(folder, request.body.secret)
            chosen_shards = [one for one in open_shards if one.number in numbers]
            if len(chosen_shards) < len(numbers):
                raise TryLaterError("not all of these shards are open here; try again")
            in_thread(copy_shards, folder, chosen_shards)
            return {"folder": str(folder), "shards": len(chosen_shards)}
        others = self._owners.group_by_owner(self._owners.list_foreign_shards(self._owners.require_service()))
        if len(open_shards) + sum(map(len, others.values())) < self._owners.count_shards():
            raise TryLaterError("not every shard is open yet; try again")
        shards = in_thread(
            make_backup, self._backups, folder, open_shards, others, self._owners.clock.wall_ms(),
            self._owners.read_token(),
        )  # fmt: skip
        return {"folder": str(folder), "shards": shards}

    def is_held(self, topic: str) -> bool:
        """Return whether the delayed messages of a topic are held."""
        return is_held(self._owners.backend, topic)
