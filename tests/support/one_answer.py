"""A server that gives each connection one answer, and closes it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ddmq_client.core import frames
from ddmq_client.wire.login import METHOD, SEQUENCE_ID

HTTP_ANSWER = b"HTTP/1.1 400 Bad Request\r\n\r\n"


class OneAnswer:
    """The server. `connections`: how many it has accepted."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0

    def __str__(self) -> str:
        return self.address


@contextmanager
def answering(*answers: bytes) -> Iterator[OneAnswer]:
    """Run a server that gives the first connection the first answer, and so on; later ones get the last."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                server.connections += 1
                with accepted:
                    accepted.recv(1 << 16)
                    accepted.sendall(answers[min(server.connections, len(answers)) - 1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = OneAnswer(f"127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


def login_answer(code: int, text: bytes) -> bytes:
    """Encode the answer to a login: AuthResponse(code, text)."""
    response = (
        b"\x15" + frames.encode_zigzag(code) + b"\x18" + frames.encode_varint(len(text)) + text + b"\x00"
    )
    head = frames.call_head(METHOD, SEQUENCE_ID, frames.REPLY)
    return frames.build_frame((head, b"\x0c\x00", response, b"\x00"))
