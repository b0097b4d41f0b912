"""Which messages are traced: by their id, so that all processes choose the same ones. Pure.

One in `one_in`: those of a thinner sample are among those of a denser one.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

ONE_IN_MAX = 1_000_000
OFF = 0  # a limit that no message is under
_HASH_COUNT = 1 << 32


def limit_of(one_in: int) -> int:
    """Return the limit below which the hash of a message id must be for the message to be traced, so that one
    in `one_in` messages is; OFF if `one_in` is 0."""
    return -(-_HASH_COUNT // one_in) if one_in > 0 else OFF


def sampled_indexes(message_ids: Sequence[bytes], limit: int) -> list[int]:
    """Return the indexes of the ids to trace. It must be fast, because all messages of a traced subscription
    pass here."""
    return [at for at, message_id in enumerate(message_ids) if crc32(message_id) < limit]


def is_sampled(message_id: bytes, limit: int) -> bool:
    """Return whether a message with this id is traced."""
    return crc32(message_id) < limit
