"""Connections to Redis on gevent's own sockets, one stack per host."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

import gevent
from gevent import socket
from gevent.lock import BoundedSemaphore

from proxy_consumer.push.sinks.receiving import Receiving, UnboundedError
from proxy_consumer.push.sinks.redis_protocol import (
    PIECES_MAX,
    REPLY_BYTES_MAX,
    RefusedError,
    WrongReplyError,
    encode_command,
    read_reply,
)

Address = tuple[str, int]


class CommandError(Exception):
    """Redis refused a command, or did not answer; the text says which and why."""


class _RedisConnection:
    """One connection, made and authenticated at its first command."""

    def __init__(self, address: Address, password: str) -> None:
        self._address = address
        self._password = password
        self._sock: Any = None

    def run(self, commands: Sequence[Sequence[bytes]], until: float) -> None:
        """The commands in order, until the first error. Raises RefusedError and what `read_reply` does."""
        if self._sock is None:
            self._sock = socket.create_connection(self._address)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._password:
                self._run((b"AUTH", self._password.encode()), until)
        for command in commands:
            self._run(command, until)

    def _run(self, command: Sequence[bytes], until: float) -> None:
        self._sock.sendall(encode_command(command))
        try:
            read_reply(Receiving(self._sock, REPLY_BYTES_MAX, PIECES_MAX, until))
        except RefusedError as error:
            raise RefusedError(f"{command[0].decode()}: {error}") from error

    def close(self) -> None:
        """Harmless when it never was open."""
        if self._sock is not None:
            self._sock.close()

    def is_quiet(self) -> bool:
        """Nothing has arrived on it since: neither its end nor bytes nobody asked for."""
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return not poll.poll(0)


class RedisPool:
    """At most `connections_max` connections per host."""

    def __init__(self, password: str, timeout_s: float, connections_max: int) -> None:
        self._password = password
        self._timeout_s = timeout_s
        self._connections_max = connections_max
        self._hosts: dict[Address, tuple[BoundedSemaphore, list[_RedisConnection]]] = {}
        self._closed = False

    def close(self) -> None:
        """Close what is kept; commands under way end by themselves."""
        self._closed = True
        for _, kept in self._hosts.values():
            while kept:
                kept.pop().close()

    def run(self, address: Address, commands: Sequence[Sequence[bytes]]) -> None:
        """The commands in order, until the first error. Raises CommandError."""
        permits, kept = self._hosts.setdefault(address, (BoundedSemaphore(self._connections_max), []))
        with permits:
            connection = self._connection(address, kept)
            whole = False
            try:
                with gevent.Timeout(self._timeout_s):
                    connection.run(commands, time.monotonic() + self._timeout_s)
                whole = True
            except gevent.Timeout:
                raise CommandError(f"no answer within {self._timeout_s:g} s") from None
            except RefusedError as error:
                whole = not str(error).startswith("AUTH: ")  # an answer, though a bad one
                raise CommandError(str(error)) from error
            except (WrongReplyError, UnboundedError, EOFError) as error:
                raise CommandError(str(error)) from error
            except OSError as error:
                raise CommandError(f"{type(error).__name__}: {error}") from error
            finally:
                if whole and not self._closed:
                    kept.append(connection)
                else:
                    connection.close()

    def _connection(self, address: Address, kept: list[_RedisConnection]) -> _RedisConnection:
        while kept:
            connection = kept.pop()
            if connection.is_quiet():
                return connection
            connection.close()
        return _RedisConnection(address, self._password)
