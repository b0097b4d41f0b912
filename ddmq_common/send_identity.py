"""The identity of a send that is stored once: the text of the system property IDENTITY. Pure.

Two kinds (docs/wire-additions.md, "Sends that are stored once"). A key: once per topic and key, so the text
is a digest of both, and the checksum of the body. A sequence: once per producer and number; what is sent
again also says for how long it has been under way (ms). All numbers are hexadecimal:

    k DIGEST(32) CHECKSUM(8) [@ OWNER(8)]                                  k8a3f…
    s PRODUCER . SEQUENCE . ANSWERED_BELOW [. UNDER_WAY_MS] [@ OWNER(8)]    s5be1….2a.29@90c1d3f2

OWNER identifies who sent it: the identity that is logged in, else the address. It is ignored when identities
are compared.
The bounds on remembered sends are shared out by owner (backend/idempotency.py).
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import google_crc32c

IDENTITY = "IDENTITY"  # system property
KEY_CHARACTERS_MAX = 255
PRODUCER_BYTES_MAX = 32
SEQUENCE_MAX = (1 << 63) - 1
DIGEST_BYTES = 16
OWNER_BYTES = 4
NO_OWNER = ""
_DIGEST_END = 1 + 2 * DIGEST_BYTES
_OWNER_MARK = "@"


@lru_cache(maxsize=4_096)
def make_owner(name: str) -> str:
    """Return the OWNER for the name of an identity, or for an address."""
    return blake2b(
        name.encode("utf-8", "surrogateescape"), digest_size=OWNER_BYTES, person=b"owner"
    ).hexdigest()


def add_owner(identity: str, owner: str) -> str:
    """Return the identity with its owner; it must not have one yet."""
    return f"{identity}{_OWNER_MARK}{owner}"


def owner_of(identity: str) -> str:
    """Return the owner that an identity states, or NO_OWNER."""
    return identity.partition(_OWNER_MARK)[2]


def key_identity(topic: bytes, key: bytes, body: bytes, sender: str = "") -> str:
    """Return the identity of a message with an idempotency key.

    A topic name has no byte 0, so different pairs of topic and key have different identities. `sender`: the
    identity that is logged in; the keys of two senders are different ones.
    """
    name = topic + b"\x00" + key
    if sender:
        name = blake2b(name, digest_size=DIGEST_BYTES).digest() + sender.encode()
    digest = blake2b(name, digest_size=DIGEST_BYTES, key=b"sender" if sender else b"").hexdigest()
    return f"k{digest}{google_crc32c.value(body):08x}"


def sequence_identity(
    producer: bytes, sequence: int, answered_below: int, under_way_ms: int | None = None
) -> str:
    """Return the identity of a message with a producer's sequence number.

    `answered_below`: all lower numbers have been answered. `under_way_ms`: the age of a send that may be
    stored already; None: a first attempt.
    """
    text = f"s{producer.hex()}.{sequence:x}.{answered_below:x}"
    return text if under_way_ms is None else f"{text}.{under_way_ms:x}"


def is_key(text: str) -> bool:
    """Return whether an identity is that of a key, not that of a sequence."""
    return text.startswith("k")


def parse_key(text: str) -> tuple[bytes, int]:
    """Parse a key identity to (digest, checksum of the body). Raises ValueError."""
    text = text.partition(_OWNER_MARK)[0]
    digest, checksum = bytes.fromhex(text[1:_DIGEST_END]), int(text[_DIGEST_END:], 16)
    if len(digest) != DIGEST_BYTES or not 0 <= checksum < 1 << 32:
        raise ValueError("a key's digest and checksum are wanted")
    return digest, checksum


def parse_sequence(text: str) -> tuple[tuple[str, int], int, int | None]:
    """Parse a sequence identity to ((producer, sequence), answered_below, under_way_ms).

    Raises ValueError.
    """
    under_way_ms, text = None, text.partition(_OWNER_MARK)[0]
    try:
        producer, first, second = text.split(".")
    except ValueError:
        producer, first, second, last = text.split(".")
        under_way_ms = int(last, 16)
    sequence, below = int(first, 16), int(second, 16)
    if producer[:1] != "s" or not 0 <= below <= sequence:
        raise ValueError("a producer, a sequence and what it has answers below are wanted")
    return (producer[1:], sequence), below, under_way_ms


def sequence_name(text: str) -> str:
    """Return the part of a sequence identity that is the same in every resend; "" for an empty text."""
    return ".".join(text.split(".", 2)[:2])
