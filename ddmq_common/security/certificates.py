"""The TLS contexts of a process, from its certificate files, which may change while it runs.

A context is never changed: after a change of the files there is a new one, which new connections use, and
open connections keep theirs. A file that is damaged, missing or for others to read changes nothing: the
contexts in force stay, and the gauge ddmq_tls_files_invalid is 1 until the files are good.

TLS 1.2 or newer, no renegotiation, no compression, one session ticket.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ddmq_common.errors import ConfigError
from ddmq_common.private_files import find_file_error
from ddmq_common.security.settings import TlsConfig

log = logging.getLogger("ddmq.security")
CHECK_S = 10.0  # between two looks at the files
_FileState = tuple[int, int, int]


class TlsContexts(NamedTuple):
    """The contexts of new connections. `server`: of connections that this process accepts; None without a
    certificate. `client`: of its connections to other processes. `loopback`: of those on this machine, whose
    certificate may have any name."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    loopback: ssl.SSLContext


def build_contexts(config: TlsConfig) -> TlsContexts:
    """Read the certificate files. Raises ConfigError that names the file and the remedy."""
    server = None
    if config.certificate is not None:
        server = _build_context(ssl.PROTOCOL_TLS_SERVER)
        server.num_tickets = 1
        _load_certificate(server, config)
        if config.client_ca is not None:
            _load_authorities(server, "client_ca", config.client_ca)
            server.verify_mode = ssl.CERT_OPTIONAL
    client, loopback = _build_client(config), _build_client(config)
    loopback.check_hostname = False
    return TlsContexts(server, client, loopback)


def _build_client(config: TlsConfig) -> ssl.SSLContext:
    client = _build_context(ssl.PROTOCOL_TLS_CLIENT)
    if config.server_authority is None:
        client.load_default_certs()
    else:
        name = "server_ca" if config.server_ca is not None else "client_ca"
        _load_authorities(client, name, config.server_authority)
    if config.certificate is not None:
        _load_certificate(client, config)
    return client


def _build_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def _load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    certificate, key = config.certificate, config.key
    assert certificate is not None
    assert key is not None
    try:
        if why := find_file_error(key, key.stat()):
            raise ConfigError(f"key: {why}")
        certificate.open("rb").close()
        # without a function, OpenSSL would ask the terminal for the passphrase
        context.load_cert_chain(certificate, key, password=_reject_passphrase)
    except ssl.SSLError as error:
        raise ConfigError(_describe_pair_error(certificate, key, error)) from error
    except OSError as error:
        name, path = ("key", key) if error.filename == str(key) else ("certificate", certificate)
        raise ConfigError(f"{name}: {path}: cannot be read: {error.strerror or error}") from error


def _reject_passphrase() -> str:
    raise ConfigError("key: the file is encrypted with a passphrase; allowed: a PEM file without one")


def _describe_pair_error(certificate: Path, key: Path, error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if reason == "KEY_VALUES_MISMATCH":
        return (
            f"key: {key} is not the key of the certificate in {certificate}; give the key that belongs to it"
        )
    if reason == "EE_KEY_TOO_SMALL":
        return f"certificate: the key of {certificate} is too short; allowed: EC P-256, or RSA of 2048 bits"
    return f"certificate: {certificate} or key {key} is no PEM file of its kind ({reason or error})"


def _load_authorities(context: ssl.SSLContext, name: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{name}: {path} is no PEM file of certificates ({error.reason or error})"
        ) from error
    except OSError as error:
        raise ConfigError(f"{name}: {path}: cannot be read: {error.strerror or error}") from error


class CertificateFiles:
    """The contexts in force, and the files from which they come.

    `on_checked(invalid)`: called with the outcome of each reload. Raises ConfigError if the files are not
    valid at the start.
    """

    def __init__(self, config: TlsConfig, on_checked: Callable[[bool], None] = lambda invalid: None) -> None:
        self._config = config
        self._on_checked = on_checked
        self._paths = [
            path
            for path in (config.certificate, config.key, config.client_ca, config.server_ca)
            if path is not None
        ]
        self._states = _read_states(self._paths)
        self.contexts = build_contexts(config)
        on_checked(False)

    @property
    def server_context(self) -> ssl.SSLContext:
        """The context for the next connection that is accepted."""
        assert self.contexts.server is not None
        return self.contexts.server

    def reload_changed(self) -> None:
        """Reload the files if one of them has changed since the last reload."""
        if _read_states(self._paths) != self._states:
            self.reload_files()

    def reload_files(self) -> None:
        """Reload the files. If one is not valid, the contexts in force stay, and the error is logged."""
        self._states = _read_states(self._paths)
        try:
            self.contexts = build_contexts(self._config)
        except ConfigError as error:
            log.error("certificates not reloaded; those in force stay", extra={"error": str(error)})
            self._on_checked(True)
            return
        log.info("certificates reloaded")
        self._on_checked(False)


def _read_states(paths: Iterable[Path]) -> list[_FileState | None]:
    return [_read_state(path) for path in paths]


def _read_state(path: Path) -> _FileState | None:
    """Return what changes when a file is written or replaced; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)
