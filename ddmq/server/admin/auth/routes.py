"""The routes about identities, rights, tokens and the audit log."""

from __future__ import annotations

from ddmq.server.admin.contract import bodies, queries
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.contract.structs import answers, auth_answers

AUTH_ROUTES = (
    Route("GET", "/auth", "whether rights are checked, and which identity the caller is",
          lambda api, r: api.auth.show_caller(r), right="none", answer=auth_answers.AuthAnswer),
    Route("GET", "/auth/identities",
          "identities with their rules, quotas and networks: all for administrators, for others their own",
          lambda api, r: api.auth.list_identities(r), queries.IdentitiesQuery,
          right="none", answer=auth_answers.IdentitiesAnswer),
    Route("GET", "/auth/tokens",
          "tokens without their secrets, the newest first: all for administrators, for others their own",
          lambda api, r: api.auth.list_tokens(r), queries.TokensQuery,
          right="none", answer=auth_answers.TokensAnswer),
    Route("POST", "/auth/tokens",
          "makes a token of `identity` in the table of this server's folder; only this answer has its text",
          lambda api, r: api.auth.create_token(r), body=bodies.TokenCreateBody,
          right="admin", answer=auth_answers.TokenCreatedAnswer),
    Route("DELETE", "/auth/tokens/{id}", "revokes the token; connections that use it are closed",
          lambda api, r: api.auth.revoke_token(r.path["id"]), right="admin", answer=answers.EmptyAnswer),
    Route("GET", "/auth/explain", "whether `identity` has `right` on `name`: the rule, or what is missing",
          lambda api, r: api.auth.explain_right(r.query), queries.RightQuery,
          right="admin", answer=auth_answers.RightExplainedAnswer),
    Route("GET", "/auth/audit",
          "the [audit log](security.md#audit) of all processes on this data directory, newest first",
          lambda api, r: api.auth.list_audit(r.query), queries.AuditQuery,
          right="admin", answer=auth_answers.AuditAnswer),
)  # fmt: skip
