"""Callers: what a process knows of each identity while it decides requests.

A connection holds the Caller of its identity. There is one Caller for each identity, and it stays the same
object when the rules change: it then forgets what it had decided. Allowed names are remembered, so that an
allowed request costs two look-ups. Not thread-safe: used on one hub.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ddmq_common.errors import CallerError
from ddmq_common.security.audit import AuditLog
from ddmq_common.security.certificate_names import CertificateNames
from ddmq_common.security.policy import ADMIN, NOBODY, Identity, Policy, decide_right
from ddmq_common.security.quotas import UNLIMITED, Usage, UsageFigures
from ddmq_common.security.tokens import StoredToken, Tokens, check_token

ALLOWED_NAMES_MAX = 10_000  # remembered names of one caller and right; then it begins again
NAME_BYTES_MAX = 256  # no longer name can exist
TOKEN_MECHANISM = b"token"
# Root and the server's own user over a Unix socket. No identity in security.yaml can have the name.
LOCAL = Identity("@local", ADMIN, quotas=UNLIMITED)
REJECTED = "the token is not known, or it has expired or was revoked"


class LoginRejectedError(CallerError):
    """The credentials are not accepted. The text does not say more to an attacker than that."""


class AcceptedLogin(NamedTuple):
    """An accepted login. `token_id`: to find out later whether it is still valid."""

    caller: Caller
    token_id: str
    expires_ms: int


class Caller:
    """The rights of one identity, and what it uses. `name` is "" for connections without an identity."""

    __slots__ = ("_allowed", "_identity", "kind", "name", "usage")

    def __init__(self, identity: Identity) -> None:
        self.name = identity.name
        self.usage = Usage()
        self.use_identity(identity)

    def use_identity(self, identity: Identity) -> None:
        """Decide by these rules from now on."""
        self._identity = identity
        self.kind = identity.kind
        self.usage.use_quotas(identity.quotas)
        self._allowed: dict[str, set[bytes]] = {}

    @property
    def is_admin(self) -> bool:
        return self.kind == ADMIN

    def has_right(self, right: str, name: bytes | None = b"") -> bool:
        """Return whether the identity has a right on a name as it comes from the wire."""
        allowed = self._allowed.get(right)
        if allowed is not None and name in allowed:
            return True
        return self._check_rules(right, name or b"")

    def find_missing(self, right: str, name: bytes | None = b"") -> str | None:
        """Return the sentence about a missing right, or None if the identity has it."""
        if self.has_right(right, name):
            return None
        return decide_right(self._identity, right, _as_text(name or b"")).reason

    def _check_rules(self, right: str, name: bytes) -> bool:
        if len(name) > NAME_BYTES_MAX or not decide_right(self._identity, right, _as_text(name)).allowed:
            return False
        allowed = self._allowed.setdefault(right, set())
        if len(allowed) >= ALLOWED_NAMES_MAX:
            allowed.clear()
        allowed.add(name)
        return True


def _as_text(name: bytes) -> str:
    return name[:NAME_BYTES_MAX].decode("utf-8", "backslashreplace")


class CallerTable:
    """The callers of one process, by identity. `on_change`: called after each change of rules or tokens."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self.policy = Policy({})
        self.tokens: Tokens = {}  # by their ids
        self._callers: dict[str, Caller] = {}
        self.anonymous = Caller(NOBODY)
        self._local = Caller(LOCAL)
        self.audit: AuditLog | None = None  # set at the start of a server
        self.used_tokens: set[str] = set()  # since somebody last took them
        self.on_change: list[Callable[[], None]] = []
        self._next_expiry = 0

    def apply(self, policy: Policy, tokens: Tokens) -> None:
        """Use other rules and tokens from now on, also for existing callers."""
        self.policy, self.tokens = policy, tokens
        for name, caller in list(self._callers.items()):
            identity = policy.find_identity(name)
            if identity is None:
                caller.use_identity(NOBODY._replace(name=name))  # its connections hold it
                del self._callers[name]
            else:
                caller.use_identity(identity)
        self._publish_change()

    def expire_tokens(self) -> None:
        """Publish a change if a token has expired since the last call."""
        if self._next_expiry and self._next_expiry <= self._wall_ms():
            self._publish_change()

    def _publish_change(self) -> None:
        now_ms = self._wall_ms()
        times = [token.expires_ms for token in self.tokens.values() if token.expires_ms > now_ms]
        self._next_expiry = min(times, default=0)
        for listener in self.on_change:
            listener()

    def at_address(self, address: str) -> Caller:
        """Return the caller of a connection from an IP address that has not logged in."""
        return self._caller_of(self.policy.find_by_address(address))

    def at_name(self, name: str) -> Caller:
        """Return the caller of an identity for which a node acts; without rights if there is none."""
        return self._local if name == LOCAL.name else self._caller_of(self.policy.find_identity(name))

    def of_user(self, uid: int) -> Caller | None:
        """Return the caller of a local user who connects over a Unix socket: by the rules, else the
        administrator for root and for the user of this process, who may change the rules anyway."""
        identity = self.policy.find_by_user(uid)
        if identity is not None:
            return self._caller_of(identity)
        return self._local if uid in (0, os.geteuid()) else None

    def of_certificate(self, names: CertificateNames) -> Caller | None:
        """Return the caller of a verified client certificate; None if no identity has one of its names."""
        identity = self.policy.find_by_certificate(names)
        return None if identity is None else self._caller_of(identity)

    def log_in(self, mechanism: bytes, credentials: bytes) -> AcceptedLogin:
        """Check credentials. Raises LoginRejectedError."""
        if mechanism != TOKEN_MECHANISM:
            raise LoginRejectedError(f"mechanism is {_as_text(mechanism[:40])!r}; allowed: token")
        checked = check_token(self.tokens, credentials, self._wall_ms())
        identity = None if checked is None else self.policy.find_identity(checked[1].identity)
        if checked is None or identity is None:
            raise LoginRejectedError(REJECTED)
        self.used_tokens.add(checked[0])
        return AcceptedLogin(self._caller_of(identity), checked[0], checked[1].expires_ms)

    def is_valid(self, token_id: str) -> bool:
        """Return whether a token that was accepted once is still valid."""
        token: StoredToken | None = self.tokens.get(token_id)
        if token is None or token.is_expired(self._wall_ms()):
            return False
        return self.policy.find_identity(token.identity) is not None

    @property
    def all_identities(self) -> Collection[Identity]:
        """The identities of the rules in force."""
        return self.policy.identities.values()

    def list_usage(self, names: Iterable[str] = ()) -> dict[str, UsageFigures]:
        """Return what each identity that has used this process uses of it, by name; also these `names`, if
        there are such identities."""
        callers = {self.anonymous: None, self._local: None, **dict.fromkeys(self._callers.values())}
        callers |= dict.fromkeys(self.at_name(name) for name in names)
        return {caller.name: caller.usage.read_figures() for caller in callers}

    def _caller_of(self, identity: Identity | None) -> Caller:
        if identity is None:
            return self.anonymous
        caller = self._callers.get(identity.name)
        if caller is None:
            caller = self._callers[identity.name] = Caller(identity)
        return caller
