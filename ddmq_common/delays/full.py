"""The setting by which a delay service says which topics have as many delayed messages waiting as they may:
one for each shard, names.DELAY_FULL_PREFIX and its number, a JSON list of topic names; absent: none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


def encode_full(topics: Sequence[str]) -> bytes:
    """The setting's value."""
    return msgspec.json.encode(topics)


def decode_full(value: bytes | None) -> list[str]:
    """Return the topics; none where the value does not parse, since who wrote it will write it again."""
    if value is None:
        return []
    try:
        return msgspec.json.decode(value, type=list[str])
    except msgspec.DecodeError:
        return []
