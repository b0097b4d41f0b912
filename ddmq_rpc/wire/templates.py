"""Answers that are always the same, encoded once.

`ready = constant_result(producer, "ProducerService", "sendSync", success=OK)` at start, then
`call.reply_encoded(ready[call.wire])` for each call: only the header with its sequence id is built.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from ddmq_rpc.api import Wire
from ddmq_rpc.wire.codec import encode_result
from ddmq_rpc.wire.structs import methods


class Encoded(NamedTuple):
    """One result struct in both protocols; index it with `call.wire`."""

    compact: bytes
    binary: bytes


def constant_result(idl: ModuleType, service: str, method: str, **field: Any) -> Encoded:
    """Encode `success=value`, or a declared exception by its name. KeyError for an unknown method."""
    described = methods(idl, service)[method]
    return Encoded(
        encode_result(described, Wire.COMPACT, **field), encode_result(described, Wire.BINARY, **field)
    )
