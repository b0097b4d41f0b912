"""File: one line a message; all lines that came while the last ones were synced are synced together.

A message is done when its line is durable. One greenlet per file gathers, a native thread writes and
syncs. After a failed write or sync the file is left as it is and a new one is begun: what failed is
written again by the retry, so a line may stand twice, and the last line of a file may be torn.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import gevent
from gevent.event import AsyncResult
from gevent.threadpool import ThreadPool

from ddmq_common.clock import Clock
from proxy_consumer.push.actions.config import FileConfig
from proxy_consumer.push.actions.file_lines import NotALineError, file_name, line
from proxy_consumer.push.sinks.files_folder import FilesFolder
from proxy_consumer.push.verdict import DONE, Pushed, Verdict, VerdictKind

OPEN_MAX = 64  # files of one sink; the one used longest ago is closed


class _WaitingLine(NamedTuple):
    line: bytes
    stored: AsyncResult


class _File:
    """One name: the open file behind it, if there is one, and the lines that wait for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.descriptor = -1
        self.size = 0
        self.path = Path()
        self.began_ms = 0
        self.waiting: list[_WaitingLine] = []
        self.busy = False

    def close(self) -> None:
        """Forget the open file; the next line begins a new one."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class FileSink:
    """The sink of one subscription."""

    def __init__(self, config: FileConfig, folder: FilesFolder, clock: Clock) -> None:
        self._config = config
        self._folder = folder
        self._clock = clock
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._threads = ThreadPool(1)
        self.fault = folder.fault

    def close(self) -> None:
        """Close the files and end the thread."""
        for file in self._files.values():
            file.close()
        gevent.spawn(self._threads.kill)

    def push(self, pushed: Pushed) -> Verdict:
        """Wait until the message's line is durable."""
        pushed.requests += 1
        try:
            text = line(self._config, pushed.job)
        except NotALineError as error:
            return Verdict(VerdictKind.GIVE_UP, f"File: {error}")
        date = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).strftime("%Y-%m-%d")
        stored = AsyncResult()
        file = self._file(file_name(self._config, pushed.job, date))
        file.waiting.append(_WaitingLine(text, stored))
        if not file.busy:
            file.busy = True
            gevent.spawn(self._write_all, file)
        fault = stored.get()
        return DONE if fault is None else Verdict(VerdictKind.FAIL, f"File: {fault}")

    def _file(self, name: str) -> _File:
        file = self._files.pop(name, None) or _File(name)
        self._files[name] = file  # used last
        if len(self._files) > OPEN_MAX:
            idle = next((known for known in self._files.values() if not known.busy), None)
            if idle is not None and idle is not file:
                idle.close()
                del self._files[idle.name]
        return file

    def _write_all(self, file: _File) -> None:
        """Until no line waits."""
        while file.waiting:
            lines, file.waiting = file.waiting, []
            fault = self._threads.apply(self._written, (file, b"".join([each.line for each in lines])))
            for each in lines:
                each.stored.set(fault)
        file.busy = False

    def _written(self, file: _File, data: bytes) -> str | None:
        """In a native thread: write and sync; the fault, if there is one."""
        try:
            if not self._folder.room(len(data)):
                raise OSError(f"the folder holds push_files_bytes_max ({self._folder.bytes_max} bytes)")
            self._write(file, data)
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
            file.close()  # the last: somebody deleted it, lines would be in no file
        if file.descriptor < 0:
            file.descriptor, file.path = self._folder.begin(file.name)
            file.size, file.began_ms = 0, now_ms
        left = memoryview(data)
        while left:
            left = left[os.write(file.descriptor, left) :]
        os.fdatasync(file.descriptor)
        file.size += len(data)
        self._folder.add(len(data))
