"""A real HTTP server in a native thread: remembers requests, answers as it is told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

Answer = tuple[int, bytes]
OK: Answer = (200, b'{"errno":0}')


class ReceivedRequest(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]

    @property
    def fields(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))


class Receiver:
    """`answers` are given one after the other, then `usual` for ever; a callable makes one by itself."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.answers: deque[Any] = deque()
        self.default_answer: Any = OK
        self.hold = threading.Event()
        self.hold.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/in") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def counts(self) -> list[str]:
        return [request.fields["carrera_req_cnt"] for request in self.requests]

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(size)
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = receiver.answers.popleft() if receiver.answers else receiver.default_answer
                receiver.requests.append(
                    ReceivedRequest(self.command, self.path, headers, body, self.client_address)
                )
                receiver.hold.wait(20)
                if answer is None:
                    self.close_connection = True  # no answer at all
                    return
                status, content = answer
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", receiver.url("/elsewhere"))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@contextmanager
def receiver() -> Iterator[Receiver]:
    http_receiver = Receiver()
    try:
        yield http_receiver
    finally:
        http_receiver.close()
