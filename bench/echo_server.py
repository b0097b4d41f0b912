"""A floor: accept, read once, write the same back; an event-loop callback per socket, nothing else."""

from __future__ import annotations

import socket
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


def main() -> None:
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
            Echo(connection, loop)

    watcher.start(accept)
    print(f"ready echo=127.0.0.1:{listener.getsockname()[1]}", flush=True)
    gevent.get_hub().join()


if __name__ == "__main__":
    main()
