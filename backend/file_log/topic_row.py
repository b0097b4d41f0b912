"""The settings of a topic as JSON, in the form that log records and checkpoints hold."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from backend.records import Durability, TopicInfo
from ddmq_common.errors import DamagedError


class _TopicRow(msgspec.Struct, forbid_unknown_fields=False):
    """The stored fields of a TopicInfo, in its order.

    They are listed here and not derived from TopicInfo, because they are an on-disk format.
    """

    queues: int
    durability: Durability = Durability.DURABLE
    readable: bool = True
    writable: bool = True
    delay: str = "both"
    body_bytes_max: int | None = None
    source: str = "log"
    delay_dialects: tuple[str, ...] = ()


_decode_row: Any = msgspec.json.Decoder(_TopicRow).decode
_settings_of = attrgetter(*_TopicRow.__struct_fields__)


def encode_topic(info: TopicInfo) -> bytes:
    """Encode a topic's settings for a topic record."""
    return msgspec.json.encode(_TopicRow(*_settings_of(info)))


def decode_topic(name: str, incarnation: int, data: bytes) -> TopicInfo:
    """Decode a topic's settings from a topic record. Raises DamagedError."""
    try:
        row = _decode_row(data)
    except msgspec.MsgspecError as error:
        raise DamagedError(f"the record of topic {name} does not parse: {error}") from error
    return TopicInfo(name, incarnation, *msgspec.structs.astuple(row))
