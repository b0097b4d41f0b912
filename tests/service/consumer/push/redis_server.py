"""A real redis-server for the tests, started on a free port; gone afterwards.

Debian's package is used. Where it is missing it is installed if this user may; where even that is not
possible a small server of the tests' own stands in, which knows the commands of the sink. `Server.real` says
which it was.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.service.consumer.push.small_redis import SmallRedis

START_S = 20.0
INSTALL_S = 120.0
PASSWORD = "open sesame"


class Server(NamedTuple):
    """Where it listens. It wants PASSWORD."""

    port: int
    real: bool


@contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    """The server, real where that can be."""
    if not _there():
        with SmallRedis(PASSWORD) as small:
            yield Server(small.port, False)
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(
        ["redis-server", *settings, "--appendonly", "no", "--requirepass", PASSWORD],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(port)
        yield Server(port, True)
    finally:
        process.terminate()
        process.wait(START_S)


def _there() -> bool:
    if shutil.which("redis-server") is not None:
        return True
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", "redis-server"],
    ):
        try:
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(command, env=environment, capture_output=True, timeout=INSTALL_S, check=True)
        except (OSError, subprocess.SubprocessError):
            break
    return shutil.which("redis-server") is not None


def _await(port: int) -> None:
    give_up = time.monotonic() + START_S
    while True:
        try:
            execute(port, "PING")
            return
        except OSError:
            if time.monotonic() > give_up:
                raise


def execute(port: int, *command: str) -> bytes:
    """One command over a connection of its own; the whole reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(_packed("AUTH", PASSWORD) + _packed(*command) + _packed("ECHO", "the end"))
        reply = b""
        while not reply.endswith(b"the end\r\n"):
            chunk = connection.recv(65536)
            if not chunk:
                raise ConnectionError("redis closed the connection")
            reply += chunk
    return reply.removeprefix(b"+OK\r\n").removesuffix(b"$7\r\nthe end\r\n")


def _packed(*arguments: str) -> bytes:
    raw = [argument.encode() for argument in arguments]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in raw)
