"""Trace events: what happened to one message at one process; their bytes (docs/formats-trace.md). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec

from ddmq_common.errors import DamagedError

VERSION = 1
TEXT_MAX = 200  # characters of one fact
WAITS_MAX = 16
WALL_MS_MAX = 253_370_764_800_000  # the year 9999, which calendars end with


class TraceKind(IntEnum):
    """The kinds of trace events. Their numbers are stored on disk."""

    SENT = 1
    STORED = 2
    INGESTED = 3
    READ = 4
    RELEASED = 5
    HANDED_OUT = 6
    EXTENDED = 7
    ACKED = 8
    FAILED = 9
    TIMED_OUT = 10
    RETURNED = 11
    PARKED = 12
    SPENT = 13
    LEFT = 14
    PASSED = 15


Moment = Annotated[int, msgspec.Meta(ge=0, le=WALL_MS_MAX)]
Wait = tuple[str, Moment, Moment]
"""Why a message was not handed out, from when, until when."""
Fact = str | Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | list[Wait]


class TraceEvent(msgspec.Struct, array_like=True, frozen=True):
    """One trace event. `number` ascends within the process. `at_ms`: on the store's clock.

    `group`: "" if none.
    """

    number: int
    kind: int
    at_ms: Moment
    group: str
    facts: dict[str, Fact]

    def number_of(self, name: str, otherwise: int = 0) -> int:
        """Return the fact `name` if it is a number, else `otherwise`."""
        fact = self.facts.get(name, otherwise)
        return fact if isinstance(fact, int) else otherwise

    def text_of(self, name: str) -> str:
        """Return the fact `name` if it is a text, else ""."""
        fact = self.facts.get(name, "")
        return fact if isinstance(fact, str) else ""

    def waits(self) -> list[Wait]:
        """Return the waits, with their reasons, that delayed a delivery."""
        fact = self.facts.get("waits", [])
        return fact if isinstance(fact, list) else []


class TraceBatch(NamedTuple):
    """Trace events of one message from one process. `instance` identifies the start of the process."""

    process: str
    instance: str
    events: Sequence[TraceEvent]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, str, list[TraceEvent]]).decode


def encode_batch(batch: TraceBatch) -> bytes:
    """Encode the body of a trace record."""
    return bytes((VERSION,)) + _encode(tuple(batch))


def decode_batch(body: bytes) -> TraceBatch:
    """Decode the body of a trace record. Raises DamagedError for bytes `encode_batch` did not write."""
    if body[:1] != bytes((VERSION,)):
        raise DamagedError(f"a trace record has version {body[:1].hex() or 'none'}; known: {VERSION}")
    try:
        return TraceBatch(*_decode(memoryview(body)[1:]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"a trace record does not parse: {error}") from error
