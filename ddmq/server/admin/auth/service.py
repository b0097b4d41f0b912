"""Answers requests about identities, rights and tokens: what the files of the configuration folder say.

An identity sees itself; administrators see all, and make and revoke tokens. A token that is made here is in
the table of this server's folder, as if made by `ddmq auth token create`. Its text is in one answer only.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from ddmq.server.admin.auth.audit import list_lines
from ddmq.server.admin.contract.bodies import TokenCreateBody
from ddmq.server.admin.contract.queries import AuditQuery, IdentitiesQuery, RightQuery, TokensQuery
from ddmq.server.http.pace import paced
from ddmq.server.http.paging import PageRequest, select_page
from ddmq.server.http.routing import AdminRequest, NoSuchTokenError
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, UnsupportedError
from ddmq_common.native_threads import in_thread
from ddmq_common.security import policy
from ddmq_common.security.callers import CallerTable
from ddmq_common.security.files import SECURITY_FILE, SecurityFiles, change_tokens, last_uses_ms
from ddmq_common.security.policy import Identity, list_names
from ddmq_common.security.tokens import (
    NEVER_EXPIRES,
    RANDOM_BYTES,
    TOKENS_MAX,
    NewToken,
    StoredToken,
    make_token,
)
from ddmq_rpc.addresses import is_loopback

ITEMS_MAX = 200  # of a page
RULES_MAX = 100  # of an identity, in an answer
OFF = "rights are off: security.yaml has no identities; `ddmq secure init` makes it"


class AccessControl:
    """Answers for one process. `callers`, `files`: None if rights are off."""

    def __init__(self, clock: Clock, callers: CallerTable | None, files: SecurityFiles | None) -> None:
        self._clock = clock
        self._callers = callers
        self._files = files

    def show_caller(self, request: AdminRequest) -> dict[str, Any]:
        """Return whether rights are checked, and the identity of the caller."""
        caller = request.caller
        return {
            "enabled": self._callers is not None,
            "identity": "" if caller is None else caller.name,
            "kind": "" if caller is None else caller.kind,
            "error": "" if self._files is None else self._files.error,
        }

    def list_identities(self, request: AdminRequest) -> dict[str, Any]:
        """Return a page of the identities that the caller may see, by name. Raises CallerError."""
        query: IdentitiesQuery = request.query
        if self._callers is None:
            return _EMPTY_PAGE
        identities = self._callers.policy.identities
        visible = list(identities.values()) if _sees_all(request) else _find_own(identities, request)
        page = PageRequest(min(query.count, ITEMS_MAX), "identity", after=query.after or "", text=query.text)
        matches = (each for each in paced(visible) if page.matches(each.name))
        selected = select_page(matches, lambda each: each.name, str, page)
        names = {each.name for each in selected.items}
        counts, networks = self._count_tokens(names), self._callers.policy.list_networks()
        rows = [
            _identity_row(each, counts[each.name], networks.get(each.name, [])) for each in selected.items
        ]
        return {"items": rows, "next": selected.next, "total": selected.total}

    def list_tokens(self, request: AdminRequest) -> dict[str, Any]:
        """Return a page of the tokens that the caller may see, the newest first. Raises CallerError."""
        query: TokensQuery = request.query
        if self._callers is None or self._files is None:
            return _EMPTY_PAGE
        identity = query.identity if _sees_all(request) else _caller_name(request)
        page = PageRequest(min(query.count, ITEMS_MAX), "created_ms", True, query.after or "")
        matches = [
            (token.created_ms, token_id, token)
            for token_id, token in paced(self._callers.tokens.items())
            if identity is None or token.identity == identity
        ]
        selected = select_page(matches, lambda each: each[:2], tuple[int, str], page)
        uses = in_thread(last_uses_ms, self._files.folder, [token_id for _, token_id, _ in selected.items])
        now_ms = self._clock.wall_ms()
        rows = [
            _token_row(token_id, token, now_ms, uses.get(token_id)) for _, token_id, token in selected.items
        ]
        return {"items": rows, "next": selected.next, "total": selected.total}

    def explain_right(self, query: RightQuery) -> dict[str, Any]:
        """Return whether an identity has a right, and why. Raises CallerError for an unknown one."""
        question = {"identity": query.identity, "right": query.right, "name": query.name}
        if self._callers is None:
            return {**question, "allowed": True, "reason": OFF}
        try:
            decision = policy.explain_right(self._callers.policy, query.identity, query.right, query.name)
        except ValueError as error:
            raise CallerError(str(error)) from error
        return {**question, **decision._asdict()}

    def create_token(self, request: AdminRequest) -> dict[str, Any]:
        """Make a token. Its text is in the answer, and nowhere else. Raises CallerError, ConfigError."""
        body: TokenCreateBody = request.body
        callers, files = self._require_files()
        if not request.is_encrypted and not is_loopback(request.address):
            raise CallerError("a token is shown over TLS or to this machine alone")
        if body.identity not in callers.policy.identities:
            allowed = list_names(callers.policy.identities)
            raise CallerError(
                f"there is no identity {body.identity!r}; allowed: {allowed}; to make a new one, add it "
                f"below `identities:` in {files.folder / SECURITY_FILE} on the server"
            )
        now_ms = self._clock.wall_ms()
        if body.expires_ms is not None and body.expires_ms <= now_ms:
            raise CallerError(f"expires_ms is {body.expires_ms}; allowed: a time after now, or null")
        expires_ms = NEVER_EXPIRES if body.expires_ms is None else body.expires_ms
        token = make_token(os.urandom(RANDOM_BYTES), body.identity, body.name, now_ms, expires_ms)
        in_thread(_store_token, files, token)
        files.check()
        return {**_token_row(token.id, token.entry, now_ms, None), "token": token.text}

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token: connections that logged in with it are closed. Raises NoSuchTokenError."""
        _, files = self._require_files()
        in_thread(_delete_token, files, token_id)
        files.check()

    def list_audit(self, query: AuditQuery) -> dict[str, Any]:
        """Return a page of the audit log of all processes on this data directory, the newest first."""
        audit = None if self._callers is None else self._callers.audit
        if audit is None:
            return {"items": [], "next": None}
        return in_thread(list_lines, audit.folder, query)

    def _count_tokens(self, names: set[str]) -> Counter[str]:
        """Return how many valid tokens each of these identities has."""
        assert self._callers is not None
        now_ms = self._clock.wall_ms()
        tokens = paced(self._callers.tokens.values())
        return Counter(
            each.identity for each in tokens if each.identity in names and not each.is_expired(now_ms)
        )

    def _require_files(self) -> tuple[CallerTable, SecurityFiles]:
        if self._callers is None or self._files is None:
            raise UnsupportedError(OFF)
        return self._callers, self._files


_EMPTY_PAGE: dict[str, Any] = {"items": [], "next": None, "total": 0}


def _sees_all(request: AdminRequest) -> bool:
    return request.caller is None or request.caller.is_admin


def _caller_name(request: AdminRequest) -> str:
    return "" if request.caller is None else request.caller.name


def _find_own(identities: dict[str, Identity], request: AdminRequest) -> list[Identity]:
    own = identities.get(_caller_name(request))
    return [] if own is None else [own]


def _identity_row(identity: Identity, tokens: int, networks: list[str]) -> dict[str, Any]:
    rules = [{"rule": str(each.rule), "role": each.source} for each in identity.rules[:RULES_MAX]]
    return {
        "identity": identity.name,
        "kind": identity.kind,
        "rules": rules,
        "rules_more": len(identity.rules) - len(rules),
        "certificates": list(identity.certificates),
        "networks": networks[:RULES_MAX],
        "quotas": identity.quotas._asdict(),
        "tokens": tokens,
    }


def _token_row(token_id: str, token: StoredToken, now_ms: int, used_ms: int | None) -> dict[str, Any]:
    return {
        "id": token_id,
        "identity": token.identity,
        "name": token.name,
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms or None,
        "expired": token.is_expired(now_ms),
        "used_ms": used_ms,
    }


def _store_token(files: SecurityFiles, token: NewToken) -> None:
    with change_tokens(files.folder) as tokens:
        if len(tokens) >= TOKENS_MAX:
            raise CallerError(f"there are {len(tokens)} tokens; allowed: {TOKENS_MAX}; revoke some first")
        tokens[token.id] = token.entry


def _delete_token(files: SecurityFiles, token_id: str) -> None:
    with change_tokens(files.folder) as tokens:
        if tokens.pop(token_id, None) is None:
            raise NoSuchTokenError(f"there is no token {token_id[:80]!r}; GET /auth/tokens lists the ids")
