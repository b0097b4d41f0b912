"""Connections of this process to the ports of other processes of its installation, with TLS or without.

All processes of an installation have the same conf/security.yaml. So if a port of this process offers TLS,
that port of another process does, too. `use_certificates` is called once, at the start of a server process.

A token is sent over TLS and on this machine alone. Others could read it on a plain connection to another
machine, whose process would not accept it anyway.

On loopback the other process is on this machine; its certificate must be valid, but need not have the name
of loopback.
"""

from __future__ import annotations

import select
import socket
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from ddmq_common.security.certificates import CertificateFiles
from ddmq_common.security.settings import TlsConfig, TlsMode


@dataclass
class _State:
    files: CertificateFiles | None = None
    config: TlsConfig = TlsConfig()  # noqa: RUF009  # frozen


_state = _State()


def use_certificates(config: TlsConfig, files: CertificateFiles | None) -> None:
    """Use these settings for all connections that follow. `files`: None without any certificates."""
    _state.config, _state.files = config, files


def secure_connection(connection: Any, port: str, host: str) -> Any:
    """Return the connection to `port` (one of settings.PORTS) with TLS, if that port has it.

    `connection`: a socket of gevent's, or one of Python's in a native thread. `host`: a name or address; the
    certificate must be valid for it. Raises OSError, ssl.SSLError.
    """
    if _state.config.mode_of(port) is TlsMode.OFF or _state.files is None:
        return connection
    contexts = _state.files.contexts
    context: ssl.SSLContext = contexts.loopback if _is_loopback(host) else contexts.client
    try:
        if isinstance(connection, socket.socket):
            return context.wrap_socket(connection, server_hostname=host)
        from gevent.ssl import SSLSocket

        return SSLSocket(sock=connection, server_hostname=host, _context=context)
    except BaseException:
        connection.close()
        raise


def check_channel(connection: Any) -> None:
    """Raise OSError if others could read a token on a connection to another process."""
    if hasattr(connection, "pending"):  # TLS
        return
    host, port = connection.getpeername()[:2]
    if not _is_loopback(host.partition("%")[0]):
        raise OSError(f"node_token is not sent in plain text to {host}:{port}; set TLS in security.yaml")


def is_closed(connection: Any) -> bool:
    """Return whether the peer has closed an idle connection, or sent bytes that nobody expects."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if not poll.poll(0):
        return False
    if not hasattr(connection, "pending"):
        return True
    before = connection.gettimeout()  # with TLS, it may be a session ticket
    connection.settimeout(0.0)
    try:
        connection.recv(1)
    except ssl.SSLWantReadError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(before)
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
