"""Clients log in by a token from the application, a file or the environment.

The token is read again for each connection, so that it can be renewed without a restart. It is never part of
a repr, an error or a span, and it is not sent where others can read it: over a plain connection to another
machine, whose server would not accept it anyway.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from ddmq_client.callables import check_function
from ddmq_client.errors import OptionError

TOKEN_BYTES_MAX = 8192
TOKEN, TOKEN_FILE = "DDMQ_TOKEN", "DDMQ_TOKEN_FILE"
EXPOSED = (
    "a token is not sent in plain text to another machine, where others could read it; set tls, or DDMQ_CA"
)


class ExposedTokenError(OSError):
    """A token is not sent, because others could read it on this connection."""


TokenSource = str | Callable[[], str] | None


class ClientLogin:
    """Reads the token of one client. `token`: a text, or a function that returns one."""

    __slots__ = ("_file", "_token")

    def __init__(self, token: TokenSource, token_file: str | os.PathLike[str] | None) -> None:
        self._token = token
        self._file = token_file

    def __repr__(self) -> str:
        return "ClientLogin(…)"

    def read_token(self) -> bytes:
        """Return the token for a new connection; b"" for none. Raises OptionError, without the token."""
        if self._file is not None:
            return _check(_read_file(Path(self._file)), f"token_file={str(self._file)!r}")
        if self._token is not None:
            return _check(self._token if isinstance(self._token, str) else self._token(), "token")
        return read_environment_token(os.environ).encode()


def make_login(token: TokenSource = None, token_file: str | os.PathLike[str] | None = None) -> ClientLogin:
    """Return the login of a client with these options. Raises OptionError."""
    if token is not None and token_file is not None:
        raise OptionError("token and token_file are both set; allowed: one of them")
    if token is not None and not isinstance(token, str) and not callable(token):
        raise OptionError(f"token is of type {type(token).__name__}; allowed: a text, or a function")
    if callable(token):
        check_function("token", token)
    return ClientLogin(token, token_file)


def check_channel(connected: socket.socket) -> None:
    """Raise ExposedTokenError if others could read a token on this connection."""
    check_peer(connected.getpeername(), has_tls=isinstance(connected, ssl.SSLSocket))


def check_peer(peer: object, *, has_tls: bool) -> None:
    """Raise ExposedTokenError if others could read a token on a connection. `peer`: the socket address of its
    other end; that of a Unix socket is no tuple."""
    if has_tls or not isinstance(peer, tuple):
        return
    address = ip_address(str(peer[0]).partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if not (mapped or address).is_loopback:
        raise ExposedTokenError(EXPOSED)


def read_environment_token(environment: Mapping[str, str]) -> str:
    """Return the token in the file that DDMQ_TOKEN_FILE names, else the one in DDMQ_TOKEN, else "". Raises
    OptionError."""
    if path := environment.get(TOKEN_FILE):
        return _check(_read_file(Path(path)), f"{TOKEN_FILE}={path}").decode()
    return _check(environment.get(TOKEN, ""), TOKEN).decode()


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise OptionError(
                    f"{path} has mode {mode:04o}: others may read the token; run: chmod 600 {path}"
                )
            return file.read(TOKEN_BYTES_MAX + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise OptionError(f"the token in {path} cannot be read: {error.strerror}") from error


def _check(token: object, source: str) -> bytes:
    """Return a token as it is sent. Raises OptionError that names the source, and not the token."""
    if not isinstance(token, str) or len(token) > TOKEN_BYTES_MAX:
        raise OptionError(f"{source} is no token; allowed: a text of up to {TOKEN_BYTES_MAX} characters")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise OptionError(f"{source} is no token; allowed: printable ASCII without spaces")
    return token.encode()
