"""Where the writer's socket lies: DIR/writer.sock, also where that path is longer than a socket takes.

A Unix socket's address holds 107 bytes. A longer path is reached through /proc/self/fd/N/writer.sock,
N being an open descriptor of the directory: the same file, at the same place, by a short name. Only
the holder of the writer's lock may replace the file.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddmq_common.errors import ConfigError, StorageError

SOCKET_FILE = "writer.sock"
ADDRESS_BYTES_MAX = 107
BACKLOG = 128
_PEER = struct.Struct("3i")  # pid, uid, gid
log = logging.getLogger(__name__)


@contextmanager
def socket_address(directory: Path) -> Iterator[str]:
    """The address to bind or connect; valid inside the `with` block only.

    Raises ConfigError when the path is too long and the system has no /proc to shorten it.
    """
    path = str(directory / SOCKET_FILE)
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield path
        return
    if not os.path.isdir("/proc/self/fd"):
        raise ConfigError(
            f"the path {path} has {len(os.fsencode(path))} bytes; a socket takes {ADDRESS_BYTES_MAX}:"
            " use a data directory with a shorter path"
        )
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_FILE}"
    finally:
        os.close(fd)


def listen(directory: Path) -> socket.socket:
    """A listening socket in place of whatever a dead writer left; for the holder of the lock only.

    Only the owner of the directory's files may connect (mode 0600). Raises StorageError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        (directory / SOCKET_FILE).unlink(missing_ok=True)
        with socket_address(directory) as address:
            listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StorageError(f"cannot listen on {directory / SOCKET_FILE}: {error}") from error
    finally:
        os.umask(mask)
    return listener


def connect(directory: Path) -> socket.socket | None:
    """A connected, non-blocking socket to the writer; None when nobody listens there now.

    Who listens there without being the directory's owner is not spoken to: an error in the log, and None.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        with socket_address(directory) as address:
            sock.connect(address)
    except OSError:  # no such file, nobody listening, or its backlog is full: the caller tries again
        sock.close()
        return None
    owner, peer = directory.stat().st_uid, peer_uid(sock)
    if peer not in (owner, os.geteuid()):
        log.error(
            "the writer's socket is not served by the owner of the directory and is not used",
            extra={"directory": directory, "owner_uid": owner, "served_by_uid": peer},
        )
        sock.close()
        return None
    return sock


def peer_uid(sock: socket.socket) -> int:
    """The user of the process at the other end, as it was when that end connected or began to listen."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(found)
    return int(uid)
