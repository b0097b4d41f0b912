"""A scripted admin port: answers each request as told, and keeps what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

TRUNCATE, HANG, CLOSE = "cut", "hang", "close"  # in place of an answer


class AdminCall(NamedTuple):
    """One request: its first line, headers and JSON body; the number of the connection that it came over."""

    line: str
    headers: dict[str, str]
    body: Any
    connection: int


class AdminStandin:
    """Listens on a port of its own. `answers`: what it does with the next requests, then `{}` for each."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.calls: list[AdminCall] = []
        self.answers: list[Any] = []
        self.open = 0
        self.open_max = 0
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Close the port and all connections."""
        self.stopped.set()
        self._listener.close()
        self.close_connections()

    def close_connections(self) -> None:
        """Close all connections, as the server does with those that are silent."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        number = 0
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                with self._lock:
                    self._sockets.append(accepted)
                    self.open += 1
                    self.open_max = max(self.open, self.open_max)
                threading.Thread(target=self._serve, args=(accepted, number), daemon=True).start()
                number += 1

    def _serve(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
            while line := lines.readline().decode().strip():
                headers = {}
                while header := lines.readline().decode().strip():
                    name, _, value = header.partition(": ")
                    headers[name] = value
                length = int(headers.get("Content-Length", "0"))
                body = json.loads(lines.read(length)) if length else None
                with self._lock:
                    self.calls.append(AdminCall(line, headers, body, number))
                    answer = self.answers.pop(0) if self.answers else {}
                if answer == HANG:
                    self.stopped.wait(60)
                if answer in (HANG, CLOSE):
                    break
                connection.sendall(_encode_answer(answer))
                if answer == TRUNCATE:
                    break
        with self._lock:
            self.open -= 1


def _encode_answer(answer: Any) -> bytes:
    if isinstance(answer, bytes):
        return answer
    if answer == TRUNCATE:
        return b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"
    status, value = answer if isinstance(answer, tuple) else (200, answer)
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@contextmanager
def admin_standing_in() -> Iterator[AdminStandin]:
    """An AdminStandin until the end of the block."""
    standin = AdminStandin()
    try:
        yield standin
    finally:
        standin.stop()
