"""The user at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct

_PEER = struct.Struct("3i")  # pid, uid, gid


def peer_uid(sock: socket.socket) -> int:
    """Return the user id of the process at the other end, as of when it connected or began to listen."""
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)
