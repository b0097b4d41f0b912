"""The hash of a message's tags that stands beside its offset, so that filtering reads no properties.

CRC-32C, as everywhere in this project, so every engine and every process says the same. Two tags may
share a hash: a match is checked again on the text.
"""

from __future__ import annotations

import google_crc32c

PASSED_MAX = 1 << 16  # records that one read may pass over because of their tags


def tag_hash(tags: bytes) -> int:
    """0 for no tags, else a number from 1 to 2**32 - 1."""
    return google_crc32c.value(tags) or 1 if tags else 0
