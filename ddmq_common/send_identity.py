"""The identity of a send that is stored once: the text of the system property IDENTITY. Pure.

Two kinds (docs/wire-additions.md, "Sends that are stored once"). A key: once per topic and key, so the text
is a digest of both, and the checksum of the body. A sequence: once per producer and number; what is sent
again also says for how long it has been under way (ms). All numbers are hexadecimal:

    k DIGEST(32) CHECKSUM(8)                                    k8a3f…
    s PRODUCER . SEQUENCE . ANSWERED_BELOW [. UNDER_WAY_MS]      s5be1….2a.29
"""

from __future__ import annotations

from hashlib import blake2b

import google_crc32c

IDENTITY = "IDENTITY"  # system property
KEY_CHARACTERS_MAX = 255
PRODUCER_BYTES_MAX = 32
SEQUENCE_MAX = (1 << 63) - 1
DIGEST_BYTES = 16
_DIGEST_END = 1 + 2 * DIGEST_BYTES


def key_identity(topic: bytes, key: bytes, body: bytes) -> str:
    """Return the identity of a message with an idempotency key.

    A topic name has no byte 0, so different pairs of topic and key have different identities.
    """
    digest = blake2b(topic + b"\x00" + key, digest_size=DIGEST_BYTES).hexdigest()
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
    digest, checksum = bytes.fromhex(text[1:_DIGEST_END]), int(text[_DIGEST_END:], 16)
    if len(digest) != DIGEST_BYTES or not 0 <= checksum < 1 << 32:
        raise ValueError("a key's digest and checksum are wanted")
    return digest, checksum


def parse_sequence(text: str) -> tuple[tuple[str, int], int, int | None]:
    """Parse a sequence identity to ((producer, sequence), answered_below, under_way_ms).

    Raises ValueError.
    """
    under_way_ms = None
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
