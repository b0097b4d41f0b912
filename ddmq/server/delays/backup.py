"""A backup of all that waits: a copy of every shard's store in one new folder, made by those who own them.

Whoever is asked copies its own shards, asks the other owners (each over its admin port) for theirs, and
writes the manifest last: a folder without one is no whole backup. Blocks: native threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddmq.server.http.routing import AdminRequest, ask_other
from ddmq_common.errors import CallerError, TryLaterError
from ddmq_common.private_files import make_private
from delay_service.store.port import DelayStore

MANIFEST = "delay-backup.json"


class OpenShard(NamedTuple):
    """A shard of this process whose store is open."""

    number: int
    store: DelayStore


def backup_folder(given: object, backups: Path) -> Path:
    """The folder below `backups` that is meant, by its name there or its whole path. Raises CallerError.

    What is refused is told the same way whether it exists or not.
    """
    if isinstance(given, str) and given and "\0" not in given:
        with suppress(OSError, RuntimeError):  # too long; symbolic links in a circle
            folder = (backups / given).resolve()
            if backups.resolve() in folder.parents:
                return folder
    raise CallerError(
        f"folder is {given!r}; backups go below {backups.absolute()} on the server's machine: give the name "
        "of a new folder there, or set backup_dir in ddmq.yaml"
    )


def make_backup(
    backups: Path,
    folder: Path,
    held: Sequence[OpenShard],
    elsewhere: Mapping[str, Sequence[int]],
    wall_ms: int,
) -> int:
    """Return how many shards were copied. `folder` is below `backups`; `elsewhere`: by their owner's admin
    address."""
    try:
        make_private(backups)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CallerError(f"{folder} is not empty; a backup goes into a new folder")
        copy_shards(folder, held)
        for address, numbers in elsewhere.items():
            _ask_for(address, folder, numbers)
        shards = sorted([one.number for one in held] + [each for some in elsewhere.values() for each in some])
        _write_manifest(folder, {"format": 1, "made_ms": wall_ms, "shards": shards})
    except OSError as error:
        raise CallerError(f"cannot write a backup to {folder}: {error.strerror or error}") from error
    return len(shards)


def copy_shards(folder: Path, held: Iterable[OpenShard]) -> None:
    """Each as at one moment."""
    for number, store in held:
        store.checkpoint(folder / str(number))


def _ask_for(address: str, folder: Path, numbers: Sequence[int]) -> None:
    body = {"folder": str(folder), "shards": list(numbers)}
    answer = ask_other(address, AdminRequest({}, {}, body, "POST", "/delay/backup"))
    if answer.status != 200:
        why = answer.payload.decode("utf-8", "replace")[:500]
        raise TryLaterError(f"shards {list(numbers)} are not copied by their owner at {address}: {why}")


def _write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    making = folder / (MANIFEST + ".making")
    making.write_bytes(msgspec.json.encode(facts))
    making.rename(folder / MANIFEST)
    for path in (folder / MANIFEST, folder, folder.parent):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
