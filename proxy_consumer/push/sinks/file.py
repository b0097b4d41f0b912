"""The sink File: writes one line per message; lines that arrive during a sync are written and synced together
next.

A message is done when its line is durable. One greenlet per file collects the lines, a native thread writes
and syncs. After a failed write or sync the file is left as it is and a new one is created: the retry writes
the failed lines again, so that a line may be duplicated, and the last line of a file may be incomplete.

A file is NAME.NUMBER.jsonl, where NAME is never a path. It is created with the next free number and must not
exist before (O_EXCL): several proxies can share a folder, and after a crash a new file is created, so that
nothing is appended to an incomplete last line.
"""

from __future__ import annotations

import fcntl
import os
import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import gevent
from gevent.event import AsyncResult
from gevent.threadpool import ThreadPool

from ddmq_common.clock import Clock
from proxy_consumer.push.actions.config import FileConfig
from proxy_consumer.push.actions.job import ABSENT, ActionJob, compact_json, readable_text
from proxy_consumer.push.verdict import DONE, Pushed, Verdict, VerdictKind

NAME_CHARS_MAX = 128
_NAME = re.compile(
    r"(?:[A-Za-z0-9_-]|\{topic\}|\{group\}|\{date\})(?:[A-Za-z0-9_.-]|\{topic\}|\{group\}|\{date\})*\Z"
)
SUFFIX = ".jsonl"
TALLY = ".bytes"  # file in the folder with the total bytes of its files
_TALLY = Struct("<Q")
_NUMBER_DIGITS = 8
_TRIES_MAX = 1_000
OPEN_MAX = 64  # open files of one sink; beyond it the least recently used one is closed


class NotALineError(Exception):
    """The message cannot be written as one line."""


def check_file(config: FileConfig) -> None:
    """Raise ValueError if the File sink cannot work with these settings."""
    if len(config.name) > NAME_CHARS_MAX or not _NAME.match(config.name):
        raise ValueError(
            f"push.file.name is {config.name!r}; allowed: letters, digits, _ - . (not first) and "
            f"{{topic}}, {{group}}, {{date}}, at most {NAME_CHARS_MAX} characters; it is never a path"
        )


def file_name(config: FileConfig, job: ActionJob, date: str) -> str:
    """Return the stem of the file name for one message; topics and groups contain no dot and no slash."""
    return (
        config.name.replace("{topic}", job.position.topic)
        .replace("{group}", job.position.group)
        .replace("{date}", date)
    )


def encode_line(config: FileConfig, job: ActionJob) -> bytes:
    """Encode a message as one line with its line break. Raises NotALineError for a body with a line break."""
    if config.content == "record":
        return compact_json(_build_record(job)).encode() + b"\n"
    body = job.body if job.json is ABSENT else job.text_for_sink().encode()
    if b"\n" in body:
        raise NotALineError(
            "the body has a line break; set push.file.content: record, or put Json before File"
        )
    return body + b"\n"


def _build_record(job: ActionJob) -> dict[str, object]:
    position = job.position
    record: dict[str, object] = {"topic": position.topic, "qid": position.qid, "offset": position.offset}
    if job.key:
        record["key"] = readable_text(job.key)
    if job.tag:
        record["tag"] = readable_text(job.tag)
    if job.properties:
        record["properties"] = job.properties_text()
    if job.json is not ABSENT:
        record["body"] = job.json
        return record
    try:
        record["body"] = job.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = b64encode(job.body).decode()
    return record


class FilesFolder:
    """A folder of output files with a total size of at most `bytes_max`, over all processes that write there.

    The total is stored in the file TALLY. A writer locks it, adds its bytes and writes them, so that the
    bound holds for all proxies. The files are counted at the first write of a process (a killed process may
    have added bytes that it did not write) and before a write is rejected (files may have been deleted).
    """

    def __init__(self, path: str, bytes_max: int) -> None:
        self.path = Path(path) if path else None
        self.bytes_max = bytes_max
        self._counted = False

    @property
    def config_error(self) -> str | None:
        """The reason why the File sink cannot be used at this proxy; None if it can."""
        if self.path is None:
            return "push_files_dir is not set in proxy_consumer.yaml of the proxy; File writes nowhere"
        return None

    def begin(self, name: str) -> tuple[int, Path]:
        """Create a new file with a durable directory entry; return its descriptor and path. Raises
        OSError."""
        assert self.path is not None
        self.path.mkdir(parents=True, exist_ok=True)
        number = 1 + max((_number_of(path_there.name, name) for path_there in self.path.iterdir()), default=0)
        for candidate in range(number, number + _TRIES_MAX):
            path = self.path / f"{name}.{candidate:0{_NUMBER_DIGITS}}{SUFFIX}"
            try:
                descriptor = os.open(
                    path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
                )
            except FileExistsError:
                continue
            try:
                self._sync_entry()
            except OSError:
                self.drop_empty(descriptor, path)
                os.close(descriptor)
                raise
            return descriptor, path
        raise FileExistsError(f"{_TRIES_MAX} files of {name} were created by others meanwhile")

    def drop_empty(self, descriptor: int, path: Path) -> None:
        """Remove the file after an error if it is empty; otherwise empty files would accumulate on a full
        disk."""
        with suppress(OSError):
            if os.fstat(descriptor).st_size == 0:
                path.unlink()

    @contextmanager
    def reserve_bytes(self, size: int) -> Iterator[None]:
        """Add `size` bytes to the total, and hold the lock while the caller writes them.

        Raises OSError if they exceed the bound.
        """
        assert self.path is not None
        self.path.mkdir(parents=True, exist_ok=True)
        tally = os.open(self.path / TALLY, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(tally, fcntl.LOCK_EX)
            self._add_to_tally(tally, size)
            yield
        finally:
            os.close(tally)

    def _add_to_tally(self, tally: int, size: int) -> None:
        stored = os.pread(tally, _TALLY.size, 0)
        total = (
            _TALLY.unpack(stored)[0] if self._counted and len(stored) == _TALLY.size else self._count_files()
        )
        if total + size > self.bytes_max:
            total = self._count_files()
        if total + size > self.bytes_max:
            raise OSError(f"the folder holds push_files_bytes_max ({self.bytes_max} bytes)")
        os.pwrite(tally, _TALLY.pack(total + size), 0)
        self._counted = True

    def _count_files(self) -> int:
        assert self.path is not None
        total = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    total += entry.stat(follow_symlinks=False).st_size
        return total

    def _sync_entry(self) -> None:
        folder = os.open(str(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _number_of(file: str, name: str) -> int:
    """Return the number in the file name if it is a file of `name`, otherwise 0."""
    middle = file.removeprefix(name + ".").removesuffix(SUFFIX)
    return int(middle) if file == f"{name}.{middle}{SUFFIX}" and middle.isdecimal() else 0


class _WaitingLine(NamedTuple):
    line: bytes
    stored: AsyncResult


class _File:
    """One file name, with its open file, if any, and the lines that wait to be written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.descriptor = -1
        self.size = 0
        self.path = Path()
        self.began_ms = 0
        self.waiting: list[_WaitingLine] = []
        self.busy = False

    def close(self) -> None:
        """Close the open file; the next line creates a new one."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class FileSink:
    """Writes the messages of one push subscription to files in the proxy's folder."""

    def __init__(self, config: FileConfig, folder: FilesFolder, clock: Clock) -> None:
        self._config = config
        self._folder = folder
        self._clock = clock
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._threads = ThreadPool(1)
        self.config_error = folder.config_error

    def close(self) -> None:
        """Close the files and end the thread."""
        for file in self._files.values():
            file.close()
        gevent.spawn(self._threads.kill)

    def push(self, pushed: Pushed) -> Verdict:
        """Write the message's line and wait until it is durable."""
        pushed.requests += 1
        try:
            text = encode_line(self._config, pushed.job)
        except NotALineError as error:
            return Verdict(VerdictKind.GIVE_UP, f"File: {error}")
        date = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).strftime("%Y-%m-%d")
        stored = AsyncResult()
        file = self._open_file(file_name(self._config, pushed.job, date))
        file.waiting.append(_WaitingLine(text, stored))
        if not file.busy:
            file.busy = True
            gevent.spawn(self._write_all, file)
        write_error = stored.get()
        return DONE if write_error is None else Verdict(VerdictKind.FAIL, f"File: {write_error}")

    def _open_file(self, name: str) -> _File:
        file = self._files.pop(name, None) or _File(name)
        self._files[name] = file  # used last
        if len(self._files) > OPEN_MAX:
            idle = next((open_file for open_file in self._files.values() if not open_file.busy), None)
            if idle is not None and idle is not file:
                idle.close()
                del self._files[idle.name]
        return file

    def _write_all(self, file: _File) -> None:
        """Write the waiting lines, until none is left."""
        while file.waiting:
            lines, file.waiting = file.waiting, []
            write_error = self._threads.apply(
                self._write_sync, (file, b"".join([each.line for each in lines]))
            )
            for each in lines:
                each.stored.set(write_error)
        file.busy = False

    def _write_sync(self, file: _File, data: bytes) -> str | None:
        """Write and sync in a native thread; return the error text, or None."""
        try:
            with self._folder.reserve_bytes(len(data)):
                self._write(file, data)
            os.fdatasync(file.descriptor)
        except OSError as error:
            if file.descriptor >= 0:
                self._folder.drop_empty(file.descriptor, file.path)
            file.close()
            return f"{file.name}: {error.strerror or error}"
        return None

    def _write(self, file: _File, data: bytes) -> None:
        now_ms = self._clock.wall_ms()
        old = file.size + len(data) > self._config.rotate_bytes or (
            now_ms - file.began_ms >= self._config.rotate_ms
        )
        if file.descriptor >= 0 and ((file.size and old) or os.fstat(file.descriptor).st_nlink == 0):
            file.close()  # no link: the file was deleted, and its lines would be lost
        if file.descriptor < 0:
            file.descriptor, file.path = self._folder.begin(file.name)
            file.size, file.began_ms = 0, now_ms
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(file.descriptor, unwritten) :]
        file.size += len(data)
