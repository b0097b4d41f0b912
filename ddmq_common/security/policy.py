"""The identities, roles and address rules of conf/security.yaml, and the decisions that follow from them.
Pure.

Everything that no rule allows is denied. An identity of kind `admin` may do everything. An identity of kind
`node` is a process of this installation: it may act for others, and what is in its own rules.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ddmq_common.config import rules
from ddmq_common.names import HEARTBEAT_TOPIC
from ddmq_common.security.certificate_names import CertificateNames
from ddmq_common.security.quotas import DEFAULTS, UNLIMITED, QuotaEntry, Quotas, combine_quotas
from ddmq_common.security.rights import (
    CLUSTER_RIGHTS,
    RightRule,
    describe_right,
    find_granted_name,
    parse_rule,
)

CLIENT, NODE, ADMIN = "client", "node", "admin"
IDENTITIES_MAX = 100_000
NAME_MAX = 100
UID_MAX = (1 << 32) - 2
CERTIFICATE_URI = "ddmq:"  # in a certificate, before the name of an identity
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}\Z")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class IdentityEntry:
    """One entry of `identities` in conf/security.yaml. `certificates`: `DNS:NAME` or `CN:NAME` of
    certificates that log in as this identity, besides those with the URI `ddmq:IDENTITY`."""

    kind: str = field(default=CLIENT, metadata=rules(choices=(CLIENT, NODE, ADMIN)))
    roles: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    quotas: QuotaEntry = field(default_factory=QuotaEntry)


@dataclass(frozen=True)
class RoleEntry:
    """One entry of `roles` in conf/security.yaml."""

    allow: tuple[str, ...] = ()
    quotas: QuotaEntry = field(default_factory=QuotaEntry)


class GrantedRule(NamedTuple):
    """A rule of an identity. `source`: "" for the identity's own rule, else its role."""

    rule: RightRule
    source: str


class Identity(NamedTuple):
    """An identity with its rules, those of its roles included."""

    name: str
    kind: str
    rules: tuple[GrantedRule, ...] = ()
    certificates: tuple[str, ...] = ()
    quotas: Quotas = DEFAULTS


class RightDecision(NamedTuple):
    """Whether an action is allowed. `reason`: the rule that allows it, or the right that is missing."""

    allowed: bool
    reason: str


# All who have not logged in yet are one identity, so a quota would let some of them keep the others out.
NOBODY = Identity("", CLIENT, quotas=UNLIMITED)


class Policy:
    """The checked contents of conf/security.yaml. Raises ValueError that names the wrong entry."""

    def __init__(
        self,
        identities: Mapping[str, IdentityEntry],
        roles: Mapping[str, RoleEntry] | None = None,
        legacy: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        if len(identities) > IDENTITIES_MAX:
            raise ValueError(f"identities: {len(identities)} entries; allowed: at most {IDENTITIES_MAX}")
        role_rules = {
            name: _parse_rules(f"roles.{name}", entry.allow, name) for name, entry in (roles or {}).items()
        }
        self.identities = {
            name: _build_identity(name, entry, role_rules, roles or {}) for name, entry in identities.items()
        }
        self._networks = _parse_networks(legacy or {}, self.identities)
        self._users = _parse_users(users or {}, self.identities)
        self._certificates = _index_certificates(self.identities.values())

    def find_identity(self, name: str) -> Identity | None:
        return self.identities.get(name)

    def find_by_address(self, address: str) -> Identity | None:
        """Return the identity of clients that connect from an IP address without logging in: that of the most
        specific network. None if no address rule covers it."""
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return None
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        for network, name in self._networks:
            if ip in network:
                return self.identities[name]
        return None

    def list_networks(self) -> dict[str, list[str]]:
        """Return the networks of address rules by the identity that their clients have."""
        networks: dict[str, list[str]] = {}
        for network, name in self._networks:
            networks.setdefault(name, []).append(str(network))
        return networks

    def find_by_user(self, uid: int) -> Identity | None:
        """Return the identity of a local user who connects over a Unix socket; None without a rule."""
        name = self._users.get(uid)
        return None if name is None else self.identities[name]

    def find_by_certificate(self, names: CertificateNames) -> Identity | None:
        """Return the identity that a verified client certificate states: by the URI `ddmq:NAME`, else by a
        DNS name or common name that an identity lists."""
        for uri in names.uris:
            if uri.startswith(CERTIFICATE_URI):
                return self.identities.get(uri.removeprefix(CERTIFICATE_URI))
        for name in (*map("DNS:{}".format, names.dns_names), *map("CN:{}".format, names.common_names)):
            if name in self._certificates:
                return self.identities[self._certificates[name]]
        return None


def decide_right(identity: Identity, right: str, name: str = "") -> RightDecision:
    """Decide whether an identity has a right on a name; `name` is "" for a right on the installation."""
    if right == "none":
        return RightDecision(True, "no right is needed")
    if identity.kind == ADMIN:
        return RightDecision(True, "its kind is admin")
    if right in CLUSTER_RIGHTS:
        if right == "node" and identity.kind == NODE:
            return RightDecision(True, "its kind is node")
        granted_name: str | None = ""
    elif right == "send" and name == HEARTBEAT_TOPIC and identity.name:
        return RightDecision(True, "every identity may send heartbeats")
    else:
        granted_name = find_granted_name(name)
    if granted_name is not None:
        for rule, source in identity.rules:
            if rule.is_granting(right, granted_name):
                return RightDecision(True, f"rule `{rule}`" + (f" of role {source}" if source else ""))
    missing = describe_right(right, name if granted_name is None else granted_name)
    who = f"identity {identity.name!r}" if identity.name else "a connection without an identity"
    return RightDecision(False, f"{who} lacks the right `{missing}`")


def explain_right(policy: Policy, who: str, right: str, name: str) -> RightDecision:
    """Explain whether the identity `who` has a right on a name. Raises ValueError for an unknown identity or
    right."""
    identity = policy.find_identity(who)
    if identity is None:
        raise ValueError(f"there is no identity {who!r}; allowed: {list_names(policy.identities)}")
    parse_rule(right if right in CLUSTER_RIGHTS else f"{right} *")
    if right not in CLUSTER_RIGHTS and not name:
        raise ValueError(f"{right} is a right on a name; state the topic or group")
    return decide_right(identity, right, name)


def list_names(names: Iterable[str], most: int = 10) -> str:
    """Return the first names for an error message."""
    ordered = sorted(names)
    rest = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + rest if ordered else "none"


def _build_identity(
    name: str,
    entry: IdentityEntry,
    role_rules: Mapping[str, tuple[GrantedRule, ...]],
    roles: Mapping[str, RoleEntry],
) -> Identity:
    if not _NAME.match(name):
        raise ValueError(
            f"identities: {name[:NAME_MAX]!r} is no name; allowed: up to {NAME_MAX} letters, digits, _ . @ -"
        )
    granted = list(_parse_rules(f"identities.{name}", entry.allow, ""))
    for role in entry.roles:
        if role not in role_rules:
            raise ValueError(
                f"identities.{name}.roles: there is no role {role!r}; allowed: {list_names(role_rules)}"
            )
        granted += role_rules[role]
    for certificate in entry.certificates:
        if not certificate.startswith(("DNS:", "CN:")) or certificate.endswith(":"):
            raise ValueError(
                f"identities.{name}.certificates: {certificate!r} is not a certificate's name; "
                "allowed: DNS:NAME, CN:NAME"
            )
    quotas = combine_quotas(entry.quotas, [roles[role].quotas for role in entry.roles], entry.kind == CLIENT)
    return Identity(name, entry.kind, tuple(granted), entry.certificates, quotas)


def _parse_rules(where: str, texts: Iterable[str], source: str) -> tuple[GrantedRule, ...]:
    try:
        return tuple(GrantedRule(parse_rule(text), source) for text in texts)
    except ValueError as error:
        raise ValueError(f"{where}.allow: {error}") from None


def _parse_networks(
    legacy: Mapping[str, str], identities: Mapping[str, Identity]
) -> list[tuple[Network, str]]:
    """Return the networks and their identities, the most specific network first."""
    networks: list[tuple[Network, str]] = []
    for text, name in legacy.items():
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise ValueError(f"legacy: {text!r} is no address or network: {error}") from None
        if name not in identities:
            raise ValueError(
                f"legacy.{text}: there is no identity {name!r}; allowed: {list_names(identities)}"
            )
        networks.append((network, name))
    return sorted(networks, key=lambda entry: -entry[0].prefixlen)


def _parse_users(users: Mapping[str, str], identities: Mapping[str, Identity]) -> dict[int, str]:
    for text, name in users.items():
        if not (text.isascii() and text.isdigit() and int(text) <= UID_MAX):
            raise ValueError(
                f'users: {text[:40]!r} is no user id; allowed: a number in quotes, such as "1000"'
            )
        if name not in identities:
            raise ValueError(
                f"users.{text}: there is no identity {name!r}; allowed: {list_names(identities)}"
            )
    return {int(text): name for text, name in users.items()}


def _index_certificates(identities: Iterable[Identity]) -> dict[str, str]:
    owners: dict[str, str] = {}
    for identity in identities:
        for name in identity.certificates:
            if name in owners:
                raise ValueError(
                    f"identities.{identity.name}.certificates: {name} belongs to {owners[name]} already"
                )
            owners[name] = identity.name
    return owners
