"""Connections to Redis on gevent's own sockets: redis-py speaks the protocol, only its socket is ours.

redis-py's own client and pool are left out: they guard state with locks of native threads, which greenlets
of one thread would walk through.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

import gevent
from gevent import socket
from gevent.lock import BoundedSemaphore
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

Address = tuple[str, int]


class CommandError(Exception):
    """Redis refused a command, or did not answer; the text says which and why."""


class _Connection(Connection):
    """redis-py's connection over a gevent socket."""

    def _connect(self) -> Any:
        sock = socket.create_connection((self.host, self.port), self.socket_connect_timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(self.socket_timeout)
        return sock


class RedisPool:
    """At most `connections_max` connections per host."""

    def __init__(self, password: str, timeout_s: float, connections_max: int) -> None:
        self._password = password
        self._timeout_s = timeout_s
        self._connections_max = connections_max
        self._hosts: dict[Address, tuple[BoundedSemaphore, list[Any]]] = {}
        self._closed = False

    def close(self) -> None:
        """Close what is kept; commands under way end by themselves."""
        self._closed = True
        for _, kept in self._hosts.values():
            while kept:
                kept.pop().disconnect()

    def run(self, address: Address, commands: Sequence[Sequence[bytes]]) -> None:
        """The commands in order, until the first error. Raises CommandError."""
        permits, kept = self._hosts.setdefault(address, (BoundedSemaphore(self._connections_max), []))
        with permits:
            connection = self._connection(address, kept)
            whole = False
            try:
                with gevent.Timeout(self._timeout_s):
                    self._run(connection, commands)
                whole = True
            except gevent.Timeout:
                raise CommandError(f"no answer within {self._timeout_s:g} s") from None
            except ResponseError as error:
                whole = True  # an answer, though a bad one
                raise CommandError(str(error)) from error
            except (RedisError, OSError) as error:
                raise CommandError(f"{type(error).__name__}: {error}") from error
            finally:
                if whole and not self._closed:
                    kept.append(connection)
                else:
                    connection.disconnect()

    def _run(self, connection: Any, commands: Sequence[Sequence[bytes]]) -> None:
        connection.connect()
        for command in commands:
            connection.send_command(*command, check_health=False)
            try:
                connection.read_response()
            except ResponseError as error:
                raise ResponseError(f"{command[0].decode()}: {error}") from error

    def _connection(self, address: Address, kept: list[Any]) -> Any:
        while kept:
            connection = kept.pop()
            if _is_quiet(connection):
                return connection
            connection.disconnect()
        make: Any = _Connection
        return make(
            host=address[0],
            port=address[1],
            password=self._password or None,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            protocol=2,
            retry=Retry(NoBackoff(), 0),  # its waits would stop the hub; the job is retried instead
            driver_info=None,
        )


def _is_quiet(connection: Any) -> bool:
    """Nothing has arrived on it since: neither its end nor bytes nobody asked for."""
    sock = connection._sock
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return not poll.poll(0)
