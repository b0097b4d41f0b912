"""Profiles: the addresses of an installation, and how a client connects and logs in there, in one file.

    # ~/.config/ddmq/prod.yaml, mode 0600; paths are relative to this file
    producer: mq.example:9613
    consumer: mq.example:9713
    admin: mq.example:9813
    ca: prod.crt
    token_file: prod.token

A profile is selected by an argument or by DDMQ_PROFILE. It replaces the other variables of the environment
(DDMQ_CA, DDMQ_TOKEN_FILE, …), so that a token never goes to another installation than its own. Arguments
override single values of it. The file is a list of `key: value`, so that the library needs no YAML parser.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from ddmq_client.errors import OptionError
from ddmq_client.security.login import ClientLogin, TokenSource, make_login
from ddmq_client.security.tls import SYSTEM, TlsOptions

VARIABLE = "DDMQ_PROFILE"
PROFILE_BYTES_MAX = 65_536
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}\Z")
_LINE = re.compile(
    r"""([a-z_]+)\s*:\s*(?:'((?:[^']|'')*)'|"([^"\\]*)"|([^\s'"\[\]{}#&*!|>%@`][^#]*?))?\s*(?:\#.*)?\Z"""
)
PATHS = ("ca", "certificate", "key", "token_file")
Proxies = str | Sequence[str]


@dataclass(frozen=True)
class ClientProfile:
    """The contents of a profile. Each address is "host:port", or several with commas; "" if it is missing.

    `ca`: turns TLS on; the word system stands for the CAs that the operating system trusts.
    """

    admin: str = ""
    producer: str = ""
    consumer: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""

    def choose_tls(self) -> bool | TlsOptions:
        """Return the argument `tls` that this profile stands for."""
        if not self.ca:
            return False
        ca = None if self.ca == SYSTEM else self.ca
        return TlsOptions(ca=ca, certificate=self.certificate or None, key=self.key or None)

    def make_login(self) -> ClientLogin:
        """Return the login of this profile, which may be none."""
        return make_login(None, self.token_file) if self.token_file else make_login("")


class ClientConnection(NamedTuple):
    """The servers, TLS and login of a client, from its arguments and its profile."""

    proxies: Proxies
    tls: bool | TlsOptions | None
    login: ClientLogin


def find_profile_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's profiles."""
    base = environment.get("XDG_CONFIG_HOME") or ""
    return Path(base if base.startswith("/") else Path.home() / ".config") / "ddmq"


def find_profile(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file of a profile: a name, or the path of a file with a slash. Raises OptionError."""
    if "/" in name:
        return Path(name)
    if not _NAME.match(name):
        raise OptionError(
            f"profile {name[:100]!r} is no name; allowed: up to 100 letters, digits, _ . @ -, or the path of "
            "a file with a slash"
        )
    return find_profile_folder(environment) / f"{name}.yaml"


def read_profile(name: str, environment: Mapping[str, str] = os.environ) -> ClientProfile:
    """Read a profile. Raises OptionError if others may read the file, or if it is wrong."""
    path = find_profile(name, environment)
    values = _parse_lines(path, _read_private(path))
    allowed = [field.name for field in fields(ClientProfile)]
    for key in values:
        if key not in allowed:
            raise OptionError(f"{path}: there is no key {key!r}; allowed: {', '.join(allowed)}")
    profile = ClientProfile(**values)
    if profile.key and not profile.certificate:
        raise OptionError(f"{path}: key is set and certificate is not; allowed: both, or neither")
    if profile.certificate and not profile.ca:
        raise OptionError(f"{path}: certificate is set and ca is not; allowed: both (ca: system), or neither")
    resolved = {
        key: str(path.absolute().parent / Path(value).expanduser())
        for key in PATHS
        if (value := values.get(key)) and (key, value) != ("ca", SYSTEM)
    }
    return replace(profile, **resolved)


def choose_connection(
    component: str,
    profile: str | None,
    proxies: Proxies | None,
    tls: bool | TlsOptions | None,
    token: TokenSource,
    token_file: str | os.PathLike[str] | None,
) -> ClientConnection:
    """Return how a client of `component` (producer, consumer or admin) connects. Raises OptionError."""
    login = make_login(token, token_file)
    name = profile if profile is not None else os.environ.get(VARIABLE, "")
    if not name:
        if proxies is None:
            raise OptionError(
                f"the address of the {component} is missing; allowed: 'host:port', several with commas, a "
                f"list, or a profile (profile=, {VARIABLE})"
            )
        return ClientConnection(proxies, tls, login)
    settings = read_profile(name)
    if proxies is None:
        proxies = getattr(settings, component)
        if not proxies:
            raise OptionError(f"{find_profile(name)} has no {component}; allowed: {component}: HOST:PORT")
    if token is None and token_file is None:
        login = settings.make_login()
    return ClientConnection(proxies, settings.choose_tls() if tls is None else tls, login)


def _read_private(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0):
                raise OptionError(f"{path} belongs to user {status.st_uid}; allowed: {os.geteuid()}, or root")
            if status.st_mode & 0o077:
                raise OptionError(
                    f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: others may read it; "
                    f"run: chmod 600 {path}"
                )
            content = file.read(PROFILE_BYTES_MAX + 1)
    except OSError as error:
        raise OptionError(f"the profile {path} cannot be read: {error.strerror}") from error
    if len(content) > PROFILE_BYTES_MAX:
        raise OptionError(f"{path} is larger than {PROFILE_BYTES_MAX} bytes")
    return content.decode("utf-8", "replace")


def _parse_lines(path: Path, text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        match = _LINE.match(line)
        if match is None:
            raise OptionError(f"{path}, line {number}: allowed: `key: value`, with quotes or without")
        key, quoted, double, plain = match.groups()
        if key in values:
            raise OptionError(f"{path}, line {number}: {key} is set twice")
        values[key] = quoted.replace("''", "'") if quoted is not None else double or plain or ""
    return values
