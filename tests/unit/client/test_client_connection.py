"""A connection that another thread closes while its own looks whether it is still good."""

from __future__ import annotations

import socket
import time

import pytest

from ddmq_client.core.nodes import ProxyAddress
from ddmq_client.net import connection as module
from ddmq_client.net.connection import FramedConnection


def test_a_connection_closed_during_its_check_reconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ClosedMeanwhile(socket.socket):
        def settimeout(self, value: float | None) -> None:
            super().settimeout(value)
            if value == 0.0:
                connection.close()

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        client_socket = ClosedMeanwhile()
        client_socket.settimeout(timeout)
        client_socket.connect(address)
        return client_socket

    monkeypatch.setattr(module.socket, "create_connection", connect)
    monkeypatch.setattr(module, "IDLE_CHECK_S", -1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        connection = FramedConnection(ProxyAddress(*server.getsockname()))
        for frame in (b"one", b"two"):
            connection.send_only(lambda now, number, frame=frame: frame, time.monotonic() + 5)  # type: ignore[misc]
            accepted, _ = server.accept()
            with accepted:
                accepted.settimeout(5)
                assert accepted.recv(16) == frame
    connection.close()
