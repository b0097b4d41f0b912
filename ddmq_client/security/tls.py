"""TLS of the client library: which certificates are used, and why a connection was not made.

Without `tls=`, the environment decides: DDMQ_CA turns TLS on. Files are read again when they change, so that
a renewed certificate needs no restart.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddmq_client.core.nodes import ProxyAddress, SecureAddress, UnixAddress
from ddmq_client.errors import OptionError

CA, CERTIFICATE, KEY = "DDMQ_CA", "DDMQ_CERT", "DDMQ_KEY"
SYSTEM = "system"  # as the value of DDMQ_CA: the CAs that the operating system trusts
_UNTRUSTED = (18, 19, 20, 21)  # X509_V_ERR_…: self-signed, no issuer, no signature to verify
_EXPIRED, _NOT_YET_VALID = 10, 9


@dataclass(frozen=True)
class TlsOptions:
    """The TLS options of a client.

    ca           PEM file of the CAs that may sign the servers' certificates; None: those that the operating
                 system trusts
    certificate  PEM file of the client's own certificate, for servers that ask for one
    key          PEM file of its private key, if it is not in `certificate`
    server_name  the name that the servers' certificates must state; None: the host name or address to which
                 the client connects
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise OptionError("tls: key is set and certificate is not; allowed: both, or neither")

    def list_files(self) -> list[str | os.PathLike[str]]:
        """Return the files that these options name."""
        return [path for path in (self.ca, self.certificate, self.key) if path is not None]


class ClientTls:
    """The TLS context of one client, made again when its files have changed."""

    def __init__(self, options: TlsOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._states: list[tuple[int, int, int]] | None = None
        self._context: ssl.SSLContext | None = None

    def get_context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Raises OSError if a file cannot be used."""
        with self._lock:
            states = [_read_state(path) for path in self.options.list_files()]
            if self._context is None or states != self._states:
                self._context, self._states = _build_context(self.options), states
            return self._context


def choose_tls(
    tls: bool | TlsOptions | None, environment: Mapping[str, str] = os.environ
) -> ClientTls | None:
    """Return the TLS of a client with this argument; None for plain text. Raises OptionError."""
    if isinstance(tls, TlsOptions):
        return ClientTls(tls)
    if tls is not None and not isinstance(tls, bool):
        raise OptionError(f"tls={tls!r}; allowed: True, False, a TlsOptions, or None for the environment")
    if not (environment.get(CA) if tls is None else tls):
        return None
    ca = environment.get(CA)
    return ClientTls(
        TlsOptions(
            ca=None if ca in (None, "", SYSTEM) else ca,
            certificate=environment.get(CERTIFICATE) or None,
            key=environment.get(KEY) or None,
        )
    )


def secure_addresses(
    addresses: tuple[ProxyAddress, ...], tls: bool | TlsOptions | None
) -> tuple[ProxyAddress, ...]:
    """Return the addresses with the TLS of a client that has this argument. Raises OptionError."""
    client_tls = choose_tls(tls)
    if client_tls is None:
        return addresses
    name = client_tls.options.server_name
    return tuple(
        address
        if isinstance(address, UnixAddress)
        else SecureAddress.build(address, client_tls, name or address.host)
        for address in addresses
    )


def secure_socket(address: ProxyAddress, connected: socket.socket) -> socket.socket:
    """Return the connected socket with TLS, if the address has it. Raises OSError."""
    if not isinstance(address, SecureAddress):
        return connected
    try:
        return address.tls.get_context().wrap_socket(connected, server_hostname=address.server_name)
    except BaseException:
        connected.close()
        raise


def asyncio_options(address: ProxyAddress) -> dict[str, Any]:
    """Return the arguments of asyncio that make a connection to the address use TLS, if it has it. Raises
    OSError."""
    if not isinstance(address, SecureAddress):
        return {}
    return {"ssl": address.tls.get_context(), "server_hostname": address.server_name}


def has_unread(connected: socket.socket) -> bool:
    """Return whether an idle connection was closed by the peer, or holds bytes that were not requested."""
    connected.settimeout(0.0)
    try:
        if isinstance(connected, ssl.SSLSocket):  # there may be a session ticket, which is none of both
            connected.recv(1)
        else:
            connected.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True


def is_rejected_certificate(error: BaseException) -> bool:
    """Return whether the server rejected the client's certificate, so that it has handled no request.

    With TLS 1.3, the client learns it only when it waits for the first answer."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def describe_error(error: BaseException, address: ProxyAddress) -> str:
    """Return why no connection was made, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _describe_certificate_error(error, address)
    if isinstance(address, SecureAddress) and isinstance(error, ssl.SSLEOFError | ConnectionResetError):
        return (
            f"{error}: the server ended the TLS handshake; it may speak plain text (then leave out tls), or "
            "be overloaded"
        )
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason == "WRONG_VERSION_NUMBER":
            return "the server speaks plain text, not TLS; leave out tls, or name the port that has TLS"
        if "ALERT" in reason:
            alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
            return f"the server rejected the TLS connection: {alert}{_advise(alert)}"
    return str(error)


def _advise(alert: str) -> str:
    if "certificate" in alert or alert == "unknown ca":
        return "; check the client's own certificate (DDMQ_CERT, TlsOptions.certificate)"
    return ""


def _describe_certificate_error(error: ssl.SSLCertVerificationError, address: ProxyAddress) -> str:
    code = error.verify_code
    if code in _UNTRUSTED:
        return (
            f"the server's certificate is not trusted ({error.verify_message}); give the CA that signed it "
            f"({CA}, TlsOptions.ca)"
        )
    if code == _EXPIRED:
        return "the server's certificate has expired; renew it"
    if code == _NOT_YET_VALID:
        return "the server's certificate is not valid yet; check the clock of this machine"
    if "mismatch" in error.verify_message.lower():
        name = address.server_name if isinstance(address, SecureAddress) else address.host
        return (
            f"the server's certificate is not for {name} ({error.verify_message}); connect to a name that it "
            "states, or give that name as TlsOptions.server_name"
        )
    return f"the server's certificate is not valid: {error.verify_message}"


def _build_context(options: TlsOptions) -> ssl.SSLContext:
    for path in options.list_files():
        open(path, "rb").close()  # an error of ssl would not name the file
    try:
        context = ssl.create_default_context(cafile=options.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if options.certificate is not None:
            context.load_cert_chain(options.certificate, options.key)
    except ssl.SSLError as error:
        names = ", ".join(map(str, options.list_files()))
        raise OSError(f"tls: a file is no PEM file of its kind, of {names} ({error.reason})") from error
    return context


def _read_state(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    status = os.stat(path)
    return (status.st_ino, status.st_size, status.st_mtime_ns)
