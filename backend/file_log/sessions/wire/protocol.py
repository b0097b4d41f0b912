"""The session protocol's frames, kinds and bounds; docs/formats-sessions.md describes every byte.

A frame is a 9-byte head (body length, kind, id; little-endian) and a MessagePack body. `id` ties an
answer to its request, or names a membership; 0 where there is nothing to tie.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = "ddmq-session"
VERSION = 3
HEAD = struct.Struct("<IBI")
IDENT_MAX = 0xFFFF_FFFF
TIMEOUT_MS_MAX = 86_400_000  # what a deadline further away is cut to


class FrameKind(IntEnum):
    """What a frame is. Below 64: member to writer; from 64 on: writer to member."""

    HELLO = 1
    PING = 2
    APPEND = 3
    COMMIT = 4
    PUT_TOPIC = 5
    DELETE_TOPIC = 6
    READ = 7
    WAIT = 8
    UNWAIT = 9
    BOUNDS = 10
    OFFSET_FOR_TIME = 11
    FIND = 12
    PROGRESS = 13
    JOIN = 14
    RELEASE = 15
    LEAVE = 16
    READS_FILES = 17
    HOLDERS = 18
    WELCOME = 64
    READY = 65
    PONG = 66
    ANSWER = 67
    FAULT = 68
    TOPICS = 69
    SETTINGS = 70
    ASSIGNED = 71
    REVOKED = 72
    LOST = 73
    GOING = 74


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of the writer's socket. What happens at each stands in docs/formats-sessions.md."""

    sessions_max: int = 64
    frame_bytes_max: int = 32 << 20  # of one body
    in_flight_bytes_max: int = 64 << 20  # requests not answered yet, per session
    out_bytes_max: int = 64 << 20  # answers and pushes not yet taken by the other side
    requests_max: int = 65_536  # outstanding per session, parked waits included
    memberships_max: int = 16_384  # per session
    silence_s: float = 10.0  # a side not heard for so long is gone
    request_timeout_s: float = 10.0  # for requests whose call has no deadline of its own
    batch_bytes: int = 256 << 10  # appends of one hub turn are joined up to here

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: above 0")

    @property
    def ping_s(self) -> float:
        """How often a member says that it lives."""
        return self.silence_s / 4


def frame(kind: FrameKind, ident: int, body: bytes) -> bytes:
    """One frame, ready to send."""
    return HEAD.pack(len(body), kind, ident) + body


def timeout_ms(deadline: float, now: float) -> int:
    """A deadline as it travels: milliseconds left, rounded up, never below 0."""
    return math.ceil(min(max(deadline - now, 0.0) * 1000, TIMEOUT_MS_MAX))


def deadline_of(left_ms: int, now: float) -> float:
    """The deadline that `left_ms` on the wire stands for, on this side's monotonic clock."""
    return now + min(max(left_ms, 0), TIMEOUT_MS_MAX) / 1000


class ProtocolError(Exception):
    """The other side sent what the protocol does not allow; the session ends."""
