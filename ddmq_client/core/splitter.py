"""Cuts a list of encoded messages into batches that a proxy takes. Pure.

Order is kept. A batch has at most `messages_max` members and `bytes_max` encoded bytes (which is an upper
bound of their bodies). A message that is alone over `bytes_max` gets a batch of its own: whether
the frame can take it was checked when it was encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BATCH_BYTES_MAX = 4 * 1024 * 1024
BATCH_MESSAGES_MAX = 500


def split(sizes: Sequence[int], bytes_max: int, messages_max: int) -> Iterator[range]:
    """Ranges of indexes [start, end), one per batch, that cover all of `sizes` in order."""
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > bytes_max or at - start >= messages_max):
            yield range(start, at)
            start, total = at, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))
