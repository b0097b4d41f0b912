"""The answers of requests about identities, rights and tokens. Times are epoch milliseconds."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ddmq.server.admin.contract.forms import OptionalText
from ddmq.server.http.parameters import Answer

Next = Annotated[str | None, Meta(description="`after` of the next page; null at the end")]


class AuthAnswer(Answer):
    """Whether rights are checked, and who the caller is. `identity`, `kind`: empty if it has no identity.
    `error`: why the newest security files are not in force; empty if they are."""

    enabled: bool
    identity: OptionalText
    kind: OptionalText
    error: OptionalText


class GrantedRuleRow(Answer):
    """A rule of an identity. `role`: the role that has it; empty for the identity's own rule."""

    rule: str
    role: OptionalText


class QuotasRow(Answer):
    """The quotas of an identity at each process; 0: no limit."""

    requests_per_s: int
    bytes_per_s: int
    connections: int
    created_per_hour: int
    waiting_calls: int
    in_flight: int
    open_transactions: int
    pending_delays: int
    idempotency_keys: int
    producers: int


class IdentityRow(Answer):
    """An identity. `networks`: whose clients are this identity without a login. `tokens`: the valid ones."""

    identity: str
    kind: Literal["client", "node", "admin"]
    rules: list[GrantedRuleRow]
    rules_more: Annotated[int, Meta(description="the number of rules that are not listed")]
    certificates: list[str]
    networks: list[str]
    quotas: QuotasRow
    tokens: int


class IdentitiesAnswer(Answer):
    """A page of the identities that the caller may see; empty if rights are off."""

    items: list[IdentityRow]
    next: Next
    total: int


class TokenRow(Answer):
    """A token, without its secret. `expires_ms`: null: it does not expire. `used_ms`: to the hour; null: it
    was not used, or the use was not recorded."""

    id: str
    identity: str
    name: str
    created_ms: int
    expires_ms: int | None
    expired: bool
    used_ms: int | None


class TokensAnswer(Answer):
    """A page of the tokens that the caller may see, the newest first; empty if rights are off."""

    items: list[TokenRow]
    next: Next
    total: int


class TokenCreatedAnswer(TokenRow, kw_only=True):
    """A new token. `token`: its text, which no other answer has."""

    token: str


class RightExplainedAnswer(Answer):
    """Whether an identity has a right on a name. `reason`: the rule that allows it, or the missing right."""

    identity: str
    right: str
    name: str
    allowed: bool
    reason: str


class AuditRow(Answer):
    """A line of the audit log of a process (docs/security.md). Texts that do not apply are empty."""

    process: str
    at_ms: int
    event: str
    who: OptionalText
    address: OptionalText
    client: OptionalText
    action: OptionalText
    object: OptionalText
    reason: OptionalText
    count: Annotated[int, Meta(description="how often it happened since the line before")]


class AuditAnswer(Answer):
    """A page of the audit log, the newest lines first. A page with a `next` can have fewer lines than
    requested, or none."""

    items: list[AuditRow]
    next: Next
