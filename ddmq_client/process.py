"""The process that a client lives in: the name it takes from it, forks of it, and the signals that end it.

A fork has none of the process's threads, and shares its connections. Two processes on one connection could
read each other's answers: a send could succeed because another process's message was stored. So an object
that was used before a fork raises an error when it is used after the fork.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from types import FrameType, TracebackType
from typing import Any

from ddmq_client.errors import ClientError


def new_client_id() -> str:
    """Return a new client id, such as `web-3@4711@9f2c51ab`."""
    return f"{socket.gethostname()[:64]}@{os.getpid()}@{secrets.token_hex(4)}"


class Home:
    """The process in which an object was first used, to detect a fork."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process: int | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the process that used the object first."""
        return self._process is not None and self._process != os.getpid()

    def check_process(self) -> None:
        """Record a use in this process.

        Raises ClientError in a fork of the process that used the object first.
        """
        if self._process is None:
            self._process = os.getpid()
        elif self._process != os.getpid():
            raise ClientError(
                f"this {self._what} was used before process {self._process} forked; make one in each process"
            )


RUN_POLL_S = 0.2  # how often `run` checks whether it must stop
WATCHED = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Catches SIGTERM and SIGINT in its block: the first of them sets `came`.

    The former handlers are restored then, and at the end of the block.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in WATCHED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        self._restore()

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
