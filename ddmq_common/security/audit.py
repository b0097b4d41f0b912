"""The audit log: who did what to which object, and rejected attempts, as JSON lines in `data_dir/audit/`.

Rejections have files of their own, so that an attacker who causes many of them displaces no line about a
change or login. A line never has a body, a key, a value of a setting or a secret: its fields are those of
AuditLine alone, whose texts are cleaned and cut. Rejections and logins that repeat within a second are one
line with a count, for each identity, action and reason. Lines wait in a bounded queue for a native thread,
which appends them; what the queue or the disk does not take is dropped and counted. Nothing is synced: a
machine that crashes may lose the last lines. A line that a crash left incomplete ends at the next start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from ddmq_common.native_threads import off_hub
from ddmq_common.plain_text import plain
from ddmq_common.private_files import make_private

FOLDER = "audit"
FILE_BYTES_MAX = 16 << 20
FILES_MAX = 8  # of one process, with the current one
QUEUE_MAX = 10_000  # lines
REPEATS_MAX = 10_000  # identities, actions and reasons that are counted for a second
REPEAT_S = 1.0
REJECTED = "rejected"  # in the name of the files of rejections
TEXT_MAX = 200
_encode = msgspec.json.Encoder().encode


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `count`: how often it happened since the line before; above 1, `address` and `client` are
    those of the first."""

    at_ms: int
    event: str  # "change", "rejected", "login", "login_rejected"
    who: str = ""  # the identity; "" for none
    address: str = ""
    client: str = ""  # as the client states it
    action: str = ""  # a method, or a route's method and path
    object: str = ""  # names in the path
    reason: str = ""  # of a rejection: the right that is missing, or the quota
    count: int = 1


class AuditFiles:
    """The files of one process: `NAME.jsonl`, and older ones `NAME.1.jsonl` and so on. Blocks."""

    def __init__(
        self, folder: Path, name: str, bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX
    ) -> None:
        self.folder = folder
        self._name = name
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._descriptor = -1
        self._size = 0

    def append(self, data: bytes) -> None:
        """Append lines, and start a new file first if they do not fit. Raises OSError."""
        if self._descriptor < 0:
            self._open()
        if self._size and self._size + len(data) > self._bytes_max:
            self._rotate_files()
        rest = memoryview(data)
        while rest:
            written = os.write(self._descriptor, rest)
            self._size += written
            rest = rest[written:]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _build_path(self, number: int) -> Path:
        return self.folder / (f"{self._name}.{number}.jsonl" if number else f"{self._name}.jsonl")

    def _open(self) -> None:
        make_private(self.folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._build_path(0), flags, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            self._size = os.fstat(descriptor).st_size
            if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
                self._size += os.write(descriptor, b"\n")
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _rotate_files(self) -> None:
        self.close()
        with suppress(FileNotFoundError):
            self._build_path(self._files_max - 1).unlink()
        for number in range(self._files_max - 2, -1, -1):
            with suppress(FileNotFoundError):
                self._build_path(number).rename(self._build_path(number + 1))
        self._open()


class _Repeats:
    """The repetitions of one line since it was last written."""

    __slots__ = ("count", "line")

    def __init__(self, line: AuditLine) -> None:
        self.line = line
        self.count = 0


class LineCounter(Protocol):
    value: float


class RepeatTimer(Protocol):
    def every(self, seconds: float, ring: Callable[[], object]) -> None: ...
    def stop(self) -> None: ...


class Actor(NamedTuple):
    """The actor of an event: its identity, its address, and the client id that the client states."""

    who: str
    address: str
    client: str = ""


def _clean_text(text: str) -> str:
    return plain(text[:TEXT_MAX])


class AuditLog:
    """Queues lines for the files. Used on the hub. `rejected_files`: those of rejections. `timer`: a
    repeating timer of the hub."""

    def __init__(
        self,
        files: AuditFiles,
        rejected_files: AuditFiles,
        wall_ms: Callable[[], int],
        timer: RepeatTimer,
        written: LineCounter,
        dropped: LineCounter,
        run: Callable[..., None] = off_hub,
    ) -> None:
        self.folder = files.folder  # of the files of all processes on this data directory
        self._files = files
        self._rejected_files = rejected_files
        self._wall_ms = wall_ms
        self._timer = timer
        self._written = written
        self._dropped = dropped
        self._run = run
        self._queue: list[AuditLine] = []
        self._repeats: dict[tuple[str, str, str, str], _Repeats] = {}
        self._is_writing = False
        self._is_ticking = False

    def record_change(self, actor: Actor, action: str, names: str, reason: str = "") -> None:
        """Record a change that was made, or that failed for `reason`."""
        self._put(self._build_line("change", actor, action, names, reason))

    def record_rejection(self, actor: Actor, action: str, reason: str) -> None:
        """Record an attempt that a missing right or a quota has rejected."""
        self._put_repeated(self._build_line("rejected", actor, action, "", reason))

    def record_login(self, actor: Actor, reason: str = "") -> None:
        """Record a login, or with `reason` a rejected one."""
        event = "login_rejected" if reason else "login"
        self._put_repeated(self._build_line(event, actor, "authenticate", "", reason))

    def _build_line(self, event: str, actor: Actor, action: str, names: str, reason: str) -> AuditLine:
        who, address, client = map(_clean_text, actor)
        return AuditLine(
            self._wall_ms(),
            event,
            who,
            address,
            client,
            _clean_text(action),
            _clean_text(names),
            _clean_text(reason),
        )

    def _put_repeated(self, line: AuditLine) -> None:
        """Write the first of equal lines at once, and those of the next second as a count."""
        key = line.event, line.who, line.action, line.reason
        repeats = self._repeats.get(key)
        if repeats is not None:
            if not repeats.count:
                repeats.line = line
            repeats.count += 1
            return
        if len(self._repeats) >= REPEATS_MAX:
            self._dropped.value += 1
            return
        self._repeats[key] = _Repeats(line)
        self._put(line)
        if not self._is_ticking:
            self._is_ticking = True
            self._timer.every(REPEAT_S, self.flush_repeats)

    def flush_repeats(self) -> None:
        """Write the repetitions of the last second. Called once a second while there may be some."""
        repeated, self._repeats = self._repeats, {}
        for key, repeats in repeated.items():
            if repeats.count:
                self._put(msgspec.structs.replace(repeats.line, count=repeats.count))
                self._repeats[key] = _Repeats(repeats.line)  # still once a second
        if not self._repeats and self._is_ticking:
            self._is_ticking = False
            self._timer.stop()

    def _put(self, line: AuditLine) -> None:
        if len(self._queue) >= QUEUE_MAX:
            self._dropped.value += 1
            return
        self._queue.append(line)
        if not self._is_writing:
            self._write()

    def _write(self) -> None:
        lines, self._queue = self._queue, []
        self._is_writing = True
        self._run(self._write_lines, lambda written, error: self._on_written(len(lines), error), lines)

    def _write_lines(self, lines: Sequence[AuditLine]) -> None:
        for files, is_rejection in ((self._files, False), (self._rejected_files, True)):
            texts = [_encode(line) for line in lines if line.event.endswith("rejected") is is_rejection]
            if texts:
                files.append(b"\n".join(texts) + b"\n")

    def _close_files(self) -> None:
        self._files.close()
        self._rejected_files.close()

    def _on_written(self, count: int, error: Exception | None) -> None:
        self._is_writing = False
        if error is None:
            self._written.value += count
        else:
            self._dropped.value += count
            self._close_files()  # they are opened again for the next lines
        if self._queue:
            self._write()

    def close(self) -> None:
        """Write what is queued, in this thread, and close the file. Called once, when nothing is recorded any
        more."""
        self.flush_repeats()
        if self._is_ticking:
            self._is_ticking = False
            self._timer.stop()
        if self._is_writing:  # the native thread has the file; what is queued behind it would be out of order
            self._dropped.value += len(self._queue)
            self._queue = []
            return
        lines, self._queue = self._queue, []
        with suppress(OSError):
            self._write_lines(lines)
        self._close_files()


def client_of(args: Any) -> str:
    """Return the client id that the arguments of a Thrift call state; "" if they state none."""
    for name in ("message", "request", "delayMessage"):
        stated = getattr(args, name, None)
        if stated is not None:
            text = getattr(stated, "clientId", None) or getattr(stated, "consumerId", None) or b""
            return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)
    return ""
