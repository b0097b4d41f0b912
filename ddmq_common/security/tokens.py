"""Tokens: `ddmq_ID_SECRET`, and the table of their hashes. Pure; random bytes and times are arguments.

A secret has 256 random bits, so one SHA-256 is enough to store it: nobody can try them all. The table has no
secrets, and is a JSON object from token id to hash, identity, name and times.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

ID_BYTES = 12
SECRET_BYTES = 32
RANDOM_BYTES = ID_BYTES + SECRET_BYTES
TOKEN_BYTES_MAX = 128
TOKENS_MAX = 100_000
NEVER_EXPIRES = 0
_TOKEN = re.compile(rb"ddmq_([0-9a-f]{24})_[0-9a-f]{64}\Z")


class StoredToken(msgspec.Struct, frozen=True, gc=False):
    """A token as it is stored: its hash and its facts. Times are epoch milliseconds; `expires_ms` 0: it does
    not expire."""

    sha256: str
    identity: str
    name: str
    created_ms: int
    expires_ms: int = NEVER_EXPIRES

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms != NEVER_EXPIRES and self.expires_ms <= now_ms


class NewToken(NamedTuple):
    """A token that was just made. `text` is shown once and never stored."""

    id: str
    text: str
    entry: StoredToken

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r})"


Tokens = Mapping[str, StoredToken]


def make_token(random: bytes, identity: str, name: str, now_ms: int, expires_ms: int) -> NewToken:
    """Make a token of `RANDOM_BYTES` random bytes."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a token is made of {RANDOM_BYTES} random bytes, not {len(random)}")
    token_id = random[:ID_BYTES].hex()
    text = f"ddmq_{token_id}_{random[ID_BYTES:].hex()}"
    return NewToken(
        token_id, text, StoredToken(_hash_token(text.encode()), identity, name, now_ms, expires_ms)
    )


def parse_token_id(text: bytes) -> str | None:
    """Return the id in a token's text; None if it has not the form of a token."""
    match = _TOKEN.match(text) if len(text) <= TOKEN_BYTES_MAX else None
    return None if match is None else match[1].decode()


def check_token(tokens: Tokens, text: bytes, now_ms: int) -> tuple[str, StoredToken] | None:
    """Return the id and entry of a valid token, or None. Compares in constant time."""
    token_id = parse_token_id(text)
    entry = None if token_id is None else tokens.get(token_id)
    if token_id is None or entry is None or entry.is_expired(now_ms):
        return None
    return (token_id, entry) if hmac.compare_digest(_hash_token(text), entry.sha256) else None


def encode_tokens(tokens: Tokens) -> bytes:
    """Encode the table of tokens as it is stored."""
    return msgspec.json.format(msgspec.json.encode(dict(sorted(tokens.items()))), indent=1) + b"\n"


def decode_tokens(data: bytes) -> dict[str, StoredToken]:
    """Decode a stored table of tokens. Raises ValueError."""
    try:
        tokens = msgspec.json.decode(data, type=dict[str, StoredToken]) if data.strip() else {}
    except msgspec.DecodeError as error:
        raise ValueError(f"is not a table of tokens: {error}") from None
    if len(tokens) > TOKENS_MAX:
        raise ValueError(f"has {len(tokens)} tokens; allowed: at most {TOKENS_MAX}")
    return tokens


def _hash_token(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
