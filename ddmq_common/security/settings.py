"""The settings of conf/security.yaml. Without that file nothing is secured.

Each section is a frozen dataclass here. Paths in the file are relative to its folder (`resolve_paths`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ddmq_common.security.policy import IdentityEntry, Policy, RoleEntry

PORTS = ("producer", "consumer", "admin")


class TlsMode(StrEnum):
    """Whether clients of a port use TLS.

    OPTIONAL: the first byte of a connection tells TLS from plain text. REQUIRED: plain text is rejected.
    """

    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True)
class TlsConfig:
    """The section `tls`: the certificate of this installation, the CAs that it trusts, and the mode of each
    port. `client_ca` signs clients' certificates, `server_ca` those of the other processes' ports (None:
    `client_ca`, or the system's CAs)."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    server_ca: Path | None = None
    producer: TlsMode = TlsMode.OFF
    consumer: TlsMode = TlsMode.OFF
    admin: TlsMode = TlsMode.OFF

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            stated, missing = ("key", "certificate") if self.certificate is None else ("certificate", "key")
            raise ValueError(f"{stated} is set and {missing} is not; allowed: both, or neither")
        secured = [port for port in PORTS if self.mode_of(port) is not TlsMode.OFF]
        if secured and self.certificate is None:
            raise ValueError(
                f"{secured[0]} is {self.mode_of(secured[0])}, which needs certificate and key; "
                "allowed: the paths of both, or off"
            )

    def mode_of(self, port: str) -> TlsMode:
        """Return the mode of a port of PORTS."""
        mode: TlsMode = getattr(self, port)
        return mode

    @property
    def is_used(self) -> bool:
        """Whether a port offers TLS."""
        return any(self.mode_of(port) is not TlsMode.OFF for port in PORTS)

    @property
    def server_authority(self) -> Path | None:
        """The CAs that the certificates of the other processes' ports must come from; None: the system's."""
        return self.server_ca or self.client_ca


@dataclass(frozen=True)
class SecurityConfig:
    """The settings of conf/security.yaml.

    `legacy`: address or network → the identity of clients that connect from there without logging in.
    `users`: user id → the identity of that user over the Unix socket of the admin API.
    `node_token`: the file with the token with which this installation's processes log in at each other.
    """

    tls: TlsConfig = field(default_factory=TlsConfig)
    identities: Mapping[str, IdentityEntry] | None = None
    roles: Mapping[str, RoleEntry] = field(default_factory=dict)
    legacy: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict)
    node_token: Path | None = None

    def __post_init__(self) -> None:
        self.build_policy()

    def build_policy(self) -> Policy | None:
        """Return the rules, or None if there are no identities: then everybody may do everything. Raises
        ValueError."""
        if self.identities is None:
            if self.roles or self.legacy or self.users or self.node_token:
                raise ValueError(
                    "identities is missing; allowed: the identities that the other sections name"
                )
            return None
        return Policy(self.identities, self.roles, self.legacy, self.users)

    def resolve_paths(self, folder_of: Callable[[str], Path]) -> SecurityConfig:
        """Return these settings with each relative path below a folder. `folder_of`: returns that folder for
        a key such as `tls.key`."""
        paths: dict[str, Any] = {
            entry.name: folder_of(f"tls.{entry.name}") / value
            for entry in dataclasses.fields(self.tls)
            if isinstance(value := getattr(self.tls, entry.name), Path)
        }
        token = self.node_token
        return dataclasses.replace(
            self,
            tls=dataclasses.replace(self.tls, **paths),
            node_token=None if token is None else folder_of("node_token") / token,
        )
