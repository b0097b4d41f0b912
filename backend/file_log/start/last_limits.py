"""The limits of retention that the last writer kept by: whoever writes next says so when its own are others.

Each process brings its own configuration, and any server process may become the writer: one that was started
without the right file would delete by the wrong limits. Only a note beside the log: nothing depends on it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict

from backend.file_log.core import names
from backend.file_log.core.retention import RetentionOptions
from backend.file_log.storage import Storage

log = logging.getLogger(__name__)


def note_limits(storage: Storage, directory: str, options: RetentionOptions) -> None:
    """Warn with both values where they differ from the last writer's, and note these. Blocking."""
    path = f"{directory}/{names.RETENTION}"
    mine = asdict(options)
    try:
        last = _read(storage, path)
        if last == mine:
            return
        drift = [
            f"{key} {last[key]} -> {value}" for key, value in mine.items() if last.get(key, value) != value
        ]
        if drift:
            log.warning(
                "this process keeps the log in %s by other limits than the last writer did: %s;"
                " every process that may write it should have the same configuration (--config)",
                directory,
                ", ".join(drift),
            )
        _write(storage, path, mine)
    except OSError as error:
        log.warning("the limits of retention cannot be noted in %s: %s", path, error)


def _read(storage: Storage, path: str) -> dict[str, object]:
    """Empty when there is no note, or none that can be read."""
    if not storage.size(path):
        return {}
    file = storage.open(path)
    try:
        found = json.loads(file.pread(file.size(), 0))
    except ValueError:
        return {}
    finally:
        file.close()
    return found if isinstance(found, dict) else {}


def _write(storage: Storage, path: str, limits: dict[str, object]) -> None:
    file = storage.open(path + names.UNFINISHED, write=True)
    try:
        file.truncate(0)
        file.pwrite(json.dumps(limits).encode() + b"\n", 0)
    finally:
        file.close()
    storage.rename(path + names.UNFINISHED, path)
