"""The files of a secured installation: certificates, security.yaml, ddmq.yaml, an administrator's profile.

Nothing is written before all files are known to be new (or `force` is given), and each file is replaced
atomically. Private files have mode 0600.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddmq.address import ADMIN_PORT, CONSUMER_PORT, PRODUCER_PORT, HostPort, parse
from ddmq.secure.authority import (
    CLIENT_USES,
    SERVER_USES,
    KeyPair,
    issue_certificate,
    make_authority,
    name_identity,
    parse_host,
    renew_certificate,
)
from ddmq_common.errors import ConfigError
from ddmq_common.private_files import make_private
from ddmq_common.security.files import SECURITY_FILE, TOKENS_FILE, read_tokens, write_tokens
from ddmq_common.security.tokens import NEVER_EXPIRES, RANDOM_BYTES, make_token

ADMIN, NODE = "admin", "node"
AUTHORITY, SERVER = "ca", "server"
RENEWED = (SERVER, ADMIN)
SERVE_FILE = "ddmq.yaml"
HOSTS_MAX = 100
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_*]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63})*\Z")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
SECURITY_TEXT = """\
# Made by `ddmq secure init`; docs/security.md explains each key. Whatever no rule allows is denied. Running
# servers apply a change of identities, roles and legacy within a second.

tls:
  certificate: server.crt     # valid for 90 days; `ddmq secure renew` renews it
  key: server.key
  client_ca: ca.crt
  producer: required
  consumer: required
  admin: required

identities:
  admin: {kind: admin}        # may do everything
  node: {kind: node}          # the processes of this installation; server.crt logs in as node
# billing: {roles: [orders-reader], allow: [consume billing, create billing]}

roles:
  # an example, which nobody has yet
  orders-reader: {allow: ["consume orders*", "describe orders*"]}

# Clients that can neither log in nor use TLS, by their address. Set producer and consumer above to `optional`
# for them, and add an identity that has only the rights that they need.
legacy: {}
# 10.1.0.0/16: old-app
"""


class Installation(NamedTuple):
    """The result of `make_installation`. `profile`: the name of the administrator's profile."""

    folder: Path
    profile: str
    profile_path: Path
    written: tuple[Path, ...]
    listens: Mapping[str, HostPort]


class _InstalledFile(NamedTuple):
    path: Path
    content: bytes
    is_private: bool


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise ConfigError for a text that is no host name or IP address."""
    if not 1 <= len(hosts) <= HOSTS_MAX:
        raise ConfigError(f"--host is given {len(hosts)} times; allowed: 1 to {HOSTS_MAX} times")
    for host in hosts:
        if not _is_ip(host) and not _HOST_NAME.match(host):
            raise ConfigError(
                f"--host {host!r} is no host; allowed: a host name or an IP address, without a port"
            )


def make_installation(
    folder: Path, profiles: Path, hosts: Sequence[str], profile: str, now: datetime.datetime, *, force: bool
) -> Installation:
    """Make the files of a secured installation in `folder`, and the administrator's profile in `profiles`.

    `hosts`: the names and addresses by which clients reach the servers. Raises ConfigError if a file exists,
    unless `force` is set.
    """
    check_hosts(hosts)
    token = make_token(
        os.urandom(RANDOM_BYTES), ADMIN, f"profile {profile}", int(now.timestamp() * 1000), NEVER_EXPIRES
    )
    files = _build_certificates(folder, hosts, now)
    files.append(_InstalledFile(folder / SECURITY_FILE, SECURITY_TEXT.encode(), True))
    serve_path = folder / SERVE_FILE
    if serve_path.exists():
        listens = _read_listens(folder)
    else:
        listens = _choose_listens(hosts)
        files.append(_InstalledFile(serve_path, _describe_serve(listens, hosts), False))
    files += _build_profile(profiles, profile, hosts[0], listens, files[0].content, token.text)
    if not force and (existing := [file.path for file in files if file.path.exists()]):
        raise ConfigError(
            f"{existing[0]} exists, and nothing was written; allowed: another folder or profile, or --force, "
            "which replaces the CA, so that certificates and profiles from before are worthless"
        )
    for directory in (folder, profiles):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_private(profiles)
    tokens = dict(read_tokens(folder / TOKENS_FILE))
    tokens[token.id] = token.entry
    for file in files:
        replace_file(file.path, file.content, is_private=file.is_private)
    write_tokens(folder / TOKENS_FILE, tokens)
    paths = (*(file.path for file in files), folder / TOKENS_FILE)
    return Installation(folder, profile, profiles / f"{profile}.yaml", paths, listens)


def renew_certificates(folder: Path, hosts: Sequence[str], now: datetime.datetime) -> list[Path]:
    """Renew the certificates that `make_installation` made in `folder`; keys and the CA stay. `hosts`: names
    that the server's certificate states from now on, too. Raises ConfigError."""
    if hosts:
        check_hosts(hosts)
    authority = KeyPair(
        _read_file(folder / f"{AUTHORITY}.crt"),
        _read_file(folder / f"{AUTHORITY}.key", "; copy it back for the renewal"),
    )
    renewed: dict[Path, bytes] = {}
    for name in RENEWED:
        path = folder / f"{name}.crt"
        if name != SERVER and not path.exists():
            continue
        further = map(parse_host, hosts) if name == SERVER else ()
        try:
            renewed[path] = renew_certificate(authority, _read_file(path), further, now)
        except ValueError as error:
            raise ConfigError(
                f"{path}: cannot be renewed: {error}; allowed: a certificate of {folder / 'ca.crt'}"
            ) from error
    for path, content in renewed.items():
        replace_file(path, content, is_private=False)
    return list(renewed)


def replace_file(path: Path, content: bytes, *, is_private: bool) -> None:
    """Replace a file atomically. Its mode is 0600 if it is private, else 0644; its owner is that of its
    folder if this process may give it away. Raises ConfigError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600 if is_private else 0o644)
            if os.geteuid() == 0:
                owner = path.stat() if path.exists() else path.parent.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _build_certificates(folder: Path, hosts: Sequence[str], now: datetime.datetime) -> list[_InstalledFile]:
    """Return the CA, the servers' certificate, which is also that of the identity node, and that of an
    administrator."""
    authority = make_authority(f"ddmq CA of {hosts[0]}", now)
    names = [parse_host(host) for host in dict.fromkeys((*hosts, *LOOPBACK_NAMES))]
    pairs = {
        AUTHORITY: authority,
        SERVER: issue_certificate(authority, hosts[0], [*names, name_identity(NODE)], SERVER_USES, now),
        ADMIN: issue_certificate(authority, ADMIN, [name_identity(ADMIN)], CLIENT_USES, now),
    }
    return [
        file
        for name, pair in pairs.items()
        for file in (
            _InstalledFile(folder / f"{name}.crt", pair.certificate, False),
            _InstalledFile(folder / f"{name}.key", pair.key, True),
        )
    ]


def _build_profile(
    profiles: Path, name: str, host: str, listens: Mapping[str, HostPort], authority: bytes, token: str
) -> list[_InstalledFile]:
    addresses = "".join(
        f"{component}: '{HostPort(host, address.port)}'\n" for component, address in listens.items()
    )
    text = (
        "# A profile of ddmq's commands and clients (docs/security.md); paths are relative to this file.\n"
        f"{addresses}ca: {name}.crt\ntoken_file: {name}.token\n"
    )
    return [
        _InstalledFile(profiles / f"{name}.yaml", text.encode(), True),
        _InstalledFile(profiles / f"{name}.crt", authority, False),
        _InstalledFile(profiles / f"{name}.token", token.encode() + b"\n", True),
    ]


def _choose_listens(hosts: Sequence[str]) -> dict[str, HostPort]:
    """Return where each component listens: at a loopback address if that is the first host, else at all
    addresses of the machine."""
    is_local = _is_ip(hosts[0]) and ipaddress.ip_address(hosts[0]).is_loopback
    listen = hosts[0] if is_local else "0.0.0.0"
    ports = {"producer": PRODUCER_PORT, "consumer": CONSUMER_PORT, "admin": ADMIN_PORT}
    return {component: HostPort(listen, port) for component, port in ports.items()}


def _describe_serve(listens: Mapping[str, HostPort], hosts: Sequence[str]) -> bytes:
    lines = ["# Made by `ddmq secure init`; docs/configuration.md has the other keys."]
    lines += [f"{component}: '{address}'" for component, address in listens.items()]
    lines.append("admin_names: [" + ", ".join(f"'{host}'" for host in hosts) + "]")
    return ("\n".join(lines) + "\n").encode()


def _read_listens(folder: Path) -> dict[str, HostPort]:
    from ddmq.server.config import ServeConfig
    from ddmq_common.config import load

    serve = load(folder / SERVE_FILE, ServeConfig)
    return {name: parse(getattr(serve, name)) for name in ("producer", "consumer", "admin")}


def _read_file(path: Path, advice: str = "; run: ddmq secure init") -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{advice}") from error


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
