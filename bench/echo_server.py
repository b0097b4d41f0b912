"""A floor: accept, read once, write the same back; an event-loop callback per socket, nothing else.

With `--tls CERTIFICATE KEY`, over TLS in memory buffers.
"""

from __future__ import annotations

import socket
import ssl
import sys
from typing import Any

import gevent


class Echo:
    """One connection."""

    def __init__(self, connection: socket.socket, loop: Any) -> None:
        self.connection = connection
        self.watcher = loop.io(connection.fileno(), 1)
        self.watcher.start(self.readable)

    def readable(self) -> None:
        data = self.connection.recv(1 << 16)
        if data:
            self.connection.send(data)
        else:
            self.watcher.stop()
            self.connection.close()


class TlsEcho(Echo):
    """One connection with TLS."""

    def __init__(self, connection: socket.socket, loop: Any, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.established = False
        super().__init__(connection, loop)

    def readable(self) -> None:
        data = self.connection.recv(1 << 16)
        if not data:
            self.watcher.stop()
            self.connection.close()
            return
        self.incoming.write(data)
        try:
            if not self.established:
                self.tls.do_handshake()
                self.established = True
            while self.incoming.pending:
                self.tls.write(self.tls.read(1 << 16))
        except ssl.SSLWantReadError:
            pass
        if self.outgoing.pending:
            self.connection.send(self.outgoing.read())


def main() -> None:
    context: ssl.SSLContext | None = None
    if sys.argv[1:2] == ["--tls"]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[2:4])
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    loop = gevent.get_hub().loop
    watcher = loop.io(listener.fileno(), 1)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            if context is None:
                Echo(connection, loop)
            else:
                TlsEcho(connection, loop, context)

    watcher.start(accept)
    print(f"ready echo=127.0.0.1:{listener.getsockname()[1]}", flush=True)
    gevent.get_hub().join()


if __name__ == "__main__":
    main()
