"""A relay between clients and a proxy that loses answers: what was asked is done, and nobody hears it."""

from __future__ import annotations

import socket
import threading

HEARTBEAT = b"carrera_heartbeat"


class LossyRelay:
    """Stands before a producer proxy and passes everything on, but for the answers that it shall lose: then
    the connection ends instead, when the proxy has answered."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answers = 0
        self._lock = threading.Lock()
        self.every = 0  # which answers are lost: each so many-th, 0 none
        self.lost = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request after the other, as the library sends them."""
        try:
            with client, socket.create_connection(("127.0.0.1", self._target)) as proxy:
                while True:
                    request = self._frame(client)
                    proxy.sendall(request)
                    answer = self._frame(proxy)
                    if HEARTBEAT not in request and self._loses():
                        return
                    client.sendall(answer)
        except OSError:
            return

    def _loses(self) -> bool:
        with self._lock:
            self._answers += 1
            if not self.every or self._answers % self.every:
                return False
            self.lost += 1
            return True

    @staticmethod
    def _frame(connection: socket.socket) -> bytes:
        head = connection.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            raise ConnectionResetError
        size = int.from_bytes(head, "big")
        return head + connection.recv(size, socket.MSG_WAITALL)
