"""A broadcasting instance's offsets on disk, replaced atomically, even if the machine crashes meanwhile.

Only one consumer uses a file at a time. Two consumers would overwrite each other's offsets, and each would
miss messages after a restart. The consumer locks `PATH.lock`, which is never deleted.

The file is JSON, one object: `format` 1, `group`, `instance`, and `offsets`: topic → queue → next offset. A
file of another group or instance, or one that cannot be read, is rejected: starting at other offsets
without an error would miss messages.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from ddmq_client.core.instance_offsets import Offsets
from ddmq_client.core.settings import ConsumerSettings, check_text
from ddmq_client.errors import OptionError
from ddmq_client.wire.consuming import FetchSettings


class OffsetsFile:
    """The offsets file of one instance of one group."""

    def __init__(self, path: Path, group: str, instance: str) -> None:
        self._path = path
        self._group = group
        self._instance = instance
        self._written: str | None = None
        self._lock: IO[bytes] | None = None
        self._is_open = False

    def lock_and_load(self) -> Offsets:
        """Lock the file until `leave`, and load it. Raises OptionError if another consumer has locked it."""
        import fcntl  # exists on POSIX systems only

        try:
            self._lock = open(self._path.with_name(f"{self._path.name}.lock"), "ab")  # noqa: SIM115
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.leave()
            text = "is in use by another consumer; each needs an instance and a file of its own"
            raise OptionError(f"offsets_file={str(self._path)!r} {text}") from error
        except OSError:
            pass  # no such folder, which `save` reports; or a file system without locks
        self._is_open = True
        try:
            return self.load()
        except OptionError:
            self.leave()
            raise

    def leave(self) -> None:
        """Unlock the file, so that other consumers can use it; nothing is stored by this one any more."""
        self._is_open = False
        lock, self._lock = self._lock, None
        if lock is not None:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_UN)  # also for children of a fork, who have it open, too
            lock.close()

    def load(self) -> Offsets:
        """Return the stored offsets; empty if the file does not exist. Raises OptionError for an unusable
        file."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"offsets_file={str(self._path)!r} cannot be read: {error}") from error
        self._written = text
        return _from_text(text, self._group, self._instance, str(self._path))

    def save(self, offsets: Offsets) -> None:
        """Store `offsets` durably and atomically, through a temporary file. Raises OSError."""
        text = _to_text(self._group, self._instance, offsets)
        if not self._is_open or text == self._written or not offsets:
            return
        fresh = self._path.with_name(f"{self._path.name}.new")
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._written = text


def build_broadcast_settings(
    settings: ConsumerSettings, instance: str | None, path: str | Path | None
) -> tuple[FetchSettings, OffsetsFile | None] | None:
    """Return the fetch settings and the offsets file of a broadcasting consumer; None for other consumers.

    Raises OptionError for arguments that do not fit.
    """
    if not settings.broadcasting:
        if instance is not None or path is not None:
            raise OptionError("instance and offsets_file are for model='broadcasting' only")
        return None
    if path is not None and instance is None:
        raise OptionError("offsets_file is set and instance is not; give this instance a name that lasts")
    name = settings.client_id if instance is None else instance
    check_text("instance", name)
    fetches = FetchSettings(settings.group, name, settings.client_id, settings.model, settings.topics or None)
    file = None if path is None else OffsetsFile(Path(path), settings.group, name)
    if file is not None:
        file.load()  # an unusable file is rejected at once
    return fetches, file


FORMAT = 1


def _to_text(group: str, instance: str, offsets: Offsets) -> str:
    """Encode offsets as the text of the file."""
    document = {"format": FORMAT, "group": group, "instance": instance, "offsets": offsets}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _from_text(text: str, group: str, instance: str, path: str) -> Offsets:
    """Decode the text of an offsets file. Raises OptionError, which names the file and the problem."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _file_error(path, f"is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _file_error(path, f"has not the format {FORMAT}")
    for name, required in (("group", group), ("instance", instance)):
        if document.get(name) != required:
            raise _file_error(path, f"belongs to {name} {document.get(name)!r}, not {required!r}")
    offsets: Any = document.get("offsets")
    if not _is_offsets(offsets):
        raise _file_error(path, "has no offsets: topic, queue, whole number")
    return {topic: dict(queues) for topic, queues in offsets.items()}


def _is_offsets(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(queues, dict) and all(type(offset) is int and offset >= 0 for offset in queues.values())
        for queues in value.values()
    )


def _file_error(path: str, what: str) -> OptionError:
    return OptionError(
        f"offsets_file={path!r} {what}; name another file, or remove this one to start at the newest messages"
    )
