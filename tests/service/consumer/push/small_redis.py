"""A stand-in for redis-server where none can be had: the sink's commands, GET, HGETALL, PTTL and EXISTS."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any

Reply = bytes | int | list[bytes] | None


class CommandError(Exception):
    """Answered as an error."""


class Store:
    """Keys with strings or hashes, and when they end."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Any] = {}
        self.ends: dict[bytes, float] = {}

    def run(self, name: str, arguments: list[bytes]) -> Reply:
        """One command. Raises WrongCommand."""
        for key in [key for key, end in self.ends.items() if end <= time.monotonic()]:
            self.keys.pop(key, None)
            del self.ends[key]
        commands: dict[str, Callable[[list[bytes]], Reply]] = {
            "DEL": lambda a: sum(self.keys.pop(key, None) is not None for key in a),
            "EXISTS": lambda a: sum(key in self.keys for key in a),
            "SET": self._set,
            "GET": lambda a: self._text(a[0]),
            "MSET": self._mset,
            "HSET": self._hset,
            "HMSET": lambda a: b"+OK" if self._hset(a) is not None else None,
            "HDEL": lambda a: sum(self._hash(a[0]).pop(field, None) is not None for field in a[1:]),
            "HGETALL": lambda a: [text for pair in self._hash(a[0]).items() for text in pair],
            "PTTL": lambda a: int((self.ends[a[0]] - time.monotonic()) * 1000) if a[0] in self.ends else -1,
            "PING": lambda a: b"+PONG",
            "ECHO": lambda a: a[0],
        }
        if name not in commands:
            raise CommandError(f"ERR unknown command '{name}'")
        return commands[name](arguments)

    def _set(self, a: list[bytes]) -> Reply:
        options = [option.upper() for option in a[2:]]
        if (b"NX" in options and a[0] in self.keys) or (b"XX" in options and a[0] not in self.keys):
            return None
        self.keys[a[0]] = a[1]
        self.ends.pop(a[0], None)
        for unit, scale in ((b"EX", 1.0), (b"PX", 0.001)):
            if unit in options:
                self.ends[a[0]] = time.monotonic() + int(options[options.index(unit) + 1]) * scale
        return b"+OK"

    def _mset(self, a: list[bytes]) -> Reply:
        self.keys.update(zip(a[::2], a[1::2], strict=True))
        return b"+OK"

    def _hset(self, a: list[bytes]) -> int:
        fields = self._hash(a[0])
        before = len(fields)
        fields.update(zip(a[1::2], a[2::2], strict=True))
        self.keys[a[0]] = fields
        return len(fields) - before

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        value = self.keys.get(key, {})
        if not isinstance(value, dict):
            raise CommandError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def _text(self, key: bytes) -> bytes | None:
        value = self.keys.get(key)
        if isinstance(value, dict):
            raise CommandError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value


class SmallRedis:
    """Serves one Store in native threads while the `with` block runs."""

    def __init__(self, password: str) -> None:
        store, lock, expected_password = Store(), threading.Lock(), password.encode()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                allowed = False
                while (line := self.rfile.readline()).startswith(b"*"):
                    words = [self._bulk() for _ in range(int(line[1:]))]
                    name = words[0].decode().upper()
                    if name == "AUTH":
                        allowed = words[-1] == expected_password
                        self.wfile.write(b"+OK\r\n" if allowed else b"-WRONGPASS invalid password\r\n")
                    elif not allowed:
                        self.wfile.write(b"-NOAUTH Authentication required.\r\n")
                    else:
                        self.wfile.write(self._answer(name, words[1:]))

            def _bulk(self) -> bytes:
                size = int(self.rfile.readline()[1:])
                return self.rfile.read(size + 2)[:-2]

            def _answer(self, name: str, arguments: list[bytes]) -> bytes:
                try:
                    with lock:
                        return encoded(store.run(name, arguments))
                except CommandError as error:
                    return b"-%b\r\n" % str(error).encode()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> SmallRedis:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def encoded(reply: Reply) -> bytes:
    """RESP2."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(encoded(one) for one in reply)
    return reply + b"\r\n" if reply.startswith(b"+") else b"$%d\r\n%b\r\n" % (len(reply), reply)
