"""`ddmq auth …`: identities, rights and tokens, in the files of a configuration folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.options import combine_options
from ddmq.cli.output import hint, json_option, print_json, print_line, print_table, print_verdict
from ddmq.moments import format_moment, read_duration

if TYPE_CHECKING:
    from ddmq_common.security.files import LoadedRights

config_option = combine_options(
    click.option(
        "--config",
        "folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        required=True,
        help="Folder with security.yaml, as for `ddmq serve`.",
    ),
)


@click.group("auth")
def auth() -> None:
    """Identities, rights and tokens.

    The commands read and write files of the server's configuration folder; running servers apply a change
    within a second. `ddmq serve` checks rights if security.yaml has `identities` (docs/security.md).
    """


def _load(folder: Path) -> LoadedRights:
    from ddmq_common.security.files import SECURITY_FILE, load_rights

    rights = load_rights(folder)
    if rights is None:
        raise click.ClickException(
            f"{folder / SECURITY_FILE} has no identities: rights are off, and everybody may do everything"
        )
    return rights


@auth.command("explain")
@click.argument("who")
@click.argument("right")
@click.argument("name", default="")
@config_option
@json_option
def explain_right(who: str, right: str, name: str, folder: Path, as_json: bool) -> None:
    """Explain whether the identity WHO has a RIGHT on NAME: the rule that allows it, or what is missing.

    NAME is a topic, a consumer group or a producer group; rights on the whole installation, such as metrics,
    have none.

    \b
    Exit code:
      0  it is allowed
      1  it is not

    \b
    Examples:
      ddmq auth explain billing consume orders --config conf
      ddmq auth explain billing metrics --config conf
    """
    from ddmq_common.security.policy import explain_right as explain_decision

    try:
        decision = explain_decision(_load(folder).policy, who, right, name)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json({"identity": who, "right": right, "name": name, **decision._asdict()})
    else:
        action = f"{who} may {right} {name}".rstrip() if decision.allowed else "not allowed"
        print_verdict(decision.allowed, f"{action}: {decision.reason}")
    if not decision.allowed:
        raise click.exceptions.Exit(1)


@auth.command("identities")
@config_option
@json_option
def list_identities(folder: Path, as_json: bool) -> None:
    """List the identities with their kind, rules and number of valid tokens.

    \b
    Example:
      ddmq auth identities --config conf
    """
    rights, now_ms = _load(folder), _now_ms()
    rows: list[dict[str, Any]] = [
        {
            "identity": identity.name,
            "kind": identity.kind,
            "rules": [str(rule) for rule, _ in identity.rules],
            "certificates": list(identity.certificates),
            "tokens": sum(
                token.identity == identity.name and not token.is_expired(now_ms)
                for token in rights.tokens.values()
            ),
        }
        for _, identity in sorted(rights.policy.identities.items())
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        "",
        ("identity", "kind", "tokens", "rules"),
        [[row["identity"], row["kind"], row["tokens"], ", ".join(row["rules"])] for row in rows],
    )


@auth.group("token")
def token() -> None:
    """Make, list and revoke tokens."""


@token.command("create")
@click.argument("identity")
@click.option("--name", default="", help="What the token is for; shown by `ddmq auth token list`.")
@click.option("--expires", metavar="DURATION", help="After how long it expires, such as 90d; default: never.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A new file for the token, with mode 0600; default: standard output.",
)
@config_option
def create_token(identity: str, name: str, expires: str | None, out: Path | None, folder: Path) -> None:
    """Make a token for IDENTITY. It is shown once: the server's files have only its hash.

    \b
    Examples:
      ddmq auth token create billing --name laptop --expires 90d --config conf
      ddmq auth token create server --out conf/node.token --config conf
    """
    from ddmq_common.security.files import SECURITY_FILE, change_tokens
    from ddmq_common.security.policy import list_names
    from ddmq_common.security.tokens import NEVER_EXPIRES, RANDOM_BYTES, make_token

    rights = _load(folder)
    if identity not in rights.policy.identities:
        allowed = list_names(rights.policy.identities)
        raise click.ClickException(
            f"there is no identity {identity!r}; allowed: {allowed}; to make a new one, add it below "
            f"`identities:` in {folder / SECURITY_FILE}"
        )
    now_ms = _now_ms()
    try:
        expires_ms = NEVER_EXPIRES if expires is None else now_ms + read_duration(expires)
    except ValueError as error:
        raise click.ClickException(f"--expires: {error}") from error
    token = make_token(os.urandom(RANDOM_BYTES), identity, name, now_ms, expires_ms)
    with change_tokens(folder) as tokens:
        if out is not None:
            _write_private(out, token.text)
        tokens[token.id] = token.entry
    if out is None:
        print_line(token.text)
    hint(
        f"token {token.id} of {identity}: it is not shown again; `ddmq auth token revoke {token.id}` ends it"
    )


@token.command("list")
@config_option
@json_option
def list_tokens(folder: Path, as_json: bool) -> None:
    """List the tokens: whose they are, when they expire and were last used (to the hour).

    \b
    Example:
      ddmq auth token list --config conf
    """
    from ddmq_common.security.files import last_uses_ms

    rights, now_ms = _load(folder), _now_ms()
    uses = last_uses_ms(folder, rights.tokens)
    rows: list[dict[str, Any]] = [
        {
            "id": token_id,
            "identity": entry.identity,
            "name": entry.name,
            "created_ms": entry.created_ms,
            "expires_ms": entry.expires_ms or None,
            "expired": entry.is_expired(now_ms),
            "used_ms": uses.get(token_id),
        }
        for token_id, entry in sorted(rights.tokens.items(), key=lambda item: item[1].created_ms)
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        "",
        ("id", "identity", "name", "expires", "last used"),
        [
            [
                row["id"],
                row["identity"],
                row["name"],
                "expired" if row["expired"] else _format_optional(row["expires_ms"]),
                _format_optional(row["used_ms"]),
            ]
            for row in rows
        ],
    )  # fmt: skip


@token.command("revoke")
@click.argument("token_ids", metavar="ID...", nargs=-1, required=True)
@config_option
def revoke_tokens(token_ids: tuple[str, ...], folder: Path) -> None:
    """Revoke tokens by their ids. Running servers close their connections within a second.

    \b
    Example:
      ddmq auth token revoke 0f1e2d3c4b5a69788796a5b4 --config conf
    """
    from ddmq_common.security.files import change_tokens

    with change_tokens(folder) as tokens:
        for token_id in token_ids:
            if tokens.pop(token_id, None) is None:
                raise click.ClickException(
                    f"there is no token {token_id!r}; `ddmq auth token list` has the ids; nothing was revoked"
                )
    print_verdict(True, f"revoked: {', '.join(token_ids)}")


@auth.command("usage")
@admin_options
def show_usage(admin: AdminClient, as_json: bool) -> None:
    """Show what each identity uses of the server, and what its quotas have rejected.

    The numbers are those of all processes of the server, and count since the start of each. Identities that
    have not used it are not listed.
    """
    rows = admin.get("usage")
    if as_json:
        print_json(rows)
        return
    columns = (
        "identity", "connections", "requests", "bytes", "created", "waiting_calls", "in_flight",
        "open_transactions", "pending_delays", "idempotency_keys", "producers",
    )  # fmt: skip
    print_table(
        "usage",
        (*(name.replace("_", " ") for name in columns), "rejected"),
        [
            (
                row["identity"] or "(none)",
                *(row[name] for name in columns[1:]),
                ", ".join(f"{quota} {count}" for quota, count in row["rejected"].items()) or "-",
            )
            for row in rows
        ],
    )


def _write_private(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise click.ClickException(f"--out {path}: {error.strerror}; allowed: a new file") from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _format_optional(wall_ms: int | None) -> str:
    return "-" if wall_ms is None else format_moment(wall_ms)
