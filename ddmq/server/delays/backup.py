"""Makes a backup of all waiting messages: each owner of a shard copies its store into one new folder.

The process that gets the request copies its own shards, requests the others from their owners (over their
admin ports), and writes the manifest last: a folder without a manifest is no complete backup. The functions
block, so they run in native threads.

Meanwhile the folder contains a file with a random secret, which is sent to the other owners. They copy into a
folder only if the request has the folder's secret, which only processes of the same user can read.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddmq.server.http.parameters import Query
from ddmq.server.http.routing import AdminRequest, forward_request
from ddmq_common.errors import CallerError, TryLaterError
from ddmq_common.plain_text import plain
from ddmq_common.private_files import make_private
from delay_service.store.port import DelayStore

MANIFEST = "delay-backup.json"
SECRET_FILE = "delay-backup.secret"  # there while the backup is made
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class OpenShard(NamedTuple):
    """A delay shard that this process owns and whose store is open."""

    number: int
    store: DelayStore


def backup_folder(name: object, backups: Path) -> Path:
    """Return the folder below `backups` for a name or a full path. Raises CallerError, with the same text
    whether a refused folder exists or not."""
    if isinstance(name, str) and name and "\0" not in name:
        with suppress(OSError, RuntimeError):  # too long; symbolic links in a circle
            folder, root = (backups / name).resolve(), backups.resolve()
            if root in folder.parents and all(map(_NAME.fullmatch, folder.relative_to(root).parts)):
                return folder
    raise CallerError(
        f"folder is {name!r}; backups go below {backups.absolute()} on the server's machine: give the name "
        "of a new folder there (letters, digits, . _ -), or set backup_dir in ddmq.yaml"
    )


def make_backup(
    backups: Path,
    folder: Path,
    open_shards: Sequence[OpenShard],
    elsewhere: Mapping[str, Sequence[int]],
    wall_ms: int,
    token: bytes = b"",
) -> int:
    """Create a backup in `folder`, which is below `backups`; return how many shards were copied.
    `open_shards`: the shards of this process; `elsewhere`: the others, by the admin address of their
    owner, at which this process logs in with `token`."""
    try:
        make_private(backups)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CallerError(f"{folder} is not empty; a backup goes into a new folder")
        with _secret_file(folder) as secret:
            copy_shards(folder, open_shards)
            for address, numbers in elsewhere.items():
                _request_copies(address, folder, numbers, secret, token)
        shards = sorted(
            [one.number for one in open_shards] + [each for some in elsewhere.values() for each in some]
        )
        _write_manifest(folder, {"format": 1, "made_ms": wall_ms, "shards": shards})
    except OSError as error:
        raise CallerError(f"cannot write a backup to {folder}: {error.strerror or error}") from error
    return len(shards)


def copy_shards(folder: Path, open_shards: Iterable[OpenShard]) -> None:
    """Copy each shard into the folder, consistent as of one moment. Raises CallerError if a copy exists
    already."""
    for number, store in open_shards:
        if os.path.lexists(folder / str(number)):
            raise CallerError(f"the backup {folder.name} has shard {number} already")
        store.checkpoint(folder / str(number))


def check_secret(folder: Path, secret: object) -> None:
    """Raise CallerError unless `secret` is that of the backup that is being created in the folder."""
    try:
        expected = (folder / SECRET_FILE).read_text()
    except (OSError, ValueError):
        expected = ""
    matches = isinstance(secret, str) and secret.isascii() and secrets.compare_digest(secret, expected)
    if not (expected and matches):
        raise CallerError(
            f"no backup {folder.name!r} is being made here by who asks; `shards` is for the processes that "
            "make one together: leave it out"
        )


@contextmanager
def _secret_file(folder: Path) -> Iterator[str]:
    """Yield a secret that is stored in the folder while the backup is created."""
    secret, path = secrets.token_hex(32), folder / SECRET_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(secret)
        yield secret
    finally:
        path.unlink()


def _request_copies(address: str, folder: Path, numbers: Sequence[int], secret: str, token: bytes) -> None:
    body = {"folder": str(folder), "shards": list(numbers), "secret": secret}
    answer = forward_request(address, AdminRequest({}, Query(), body, "POST", "/delay/backup"), token)
    if answer.status != 200:
        why = plain(answer.payload.decode("utf-8", "replace")[:500])
        raise TryLaterError(f"shards {list(numbers)} are not copied by their owner at {address}: {why}")


def _write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    making = folder / (MANIFEST + ".making")
    making.write_bytes(msgspec.json.encode(facts))
    making.rename(folder / MANIFEST)
    for path in (folder / MANIFEST, folder, folder.parent):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
