"""Ports that stay a test's own while nobody listens on them."""

from __future__ import annotations

import socket


def reserved(port: int = 0) -> socket.socket:
    """A socket that has this port (0: a free one) and does not listen.

    Until it is closed connections to the port are refused unless somebody listens there, who may; and no
    other program, nor the kernel for a connection's own end, is given the port by chance. A server that is
    killed and started again needs this: clients of other tests would reach whoever got its port meanwhile.
    """
    placeholder = socket.socket()
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    placeholder.bind(("127.0.0.1", port))
    return placeholder


def port_of(placeholder: socket.socket) -> int:
    """Return the port of the socket."""
    number: int = placeholder.getsockname()[1]
    return number
