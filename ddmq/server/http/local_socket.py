"""The Unix socket of the admin API, for this machine alone.

The kernel tells who connects (SO_PEERCRED), so that a client needs no token. Who may connect at all is up to
the mode of the socket's file and of its folder.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from gevent.socket import socket as gevent_socket

from ddmq_common.errors import ConfigError

PATH_BYTES_MAX = 107  # of the address of a Unix socket
BACKLOG = 128
PROBE_S = 1.0


def open_local_socket(path: Path, mode: int) -> gevent_socket:
    """Listen at a path; the new file has this mode. A socket file that no process listens on is replaced.
    Raises ConfigError."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise ConfigError(
            f"admin_socket {path} has {len(os.fsencode(path))} bytes; allowed: up to {PATH_BYTES_MAX}"
        )
    try:
        _remove_stale(path)
        listener = gevent_socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), mode)  # before it is bound, so that the file never has another mode
            mask = os.umask(0)
            try:
                listener.bind(str(path))
            finally:
                os.umask(mask)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"admin_socket {path} cannot be opened: {error.strerror or error}") from error
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a process that has ended. Raises ConfigError for any other file."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise ConfigError(f"admin_socket {path} is a file that is no socket; allowed: a new path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                path.unlink()
            return
    raise ConfigError(f"admin_socket {path} belongs to another server that runs")
