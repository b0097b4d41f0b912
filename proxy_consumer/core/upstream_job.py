"""A job that needs state of its own: it failed or timed out at least once.

Messages that go well never become one; their lease is a run of offsets (leases.py).

    state      entered by                    left by
    RECORDED   loaded from group progress    delivered → LEASED
    LEASED     delivered                     ack → gone; fail, time-out → WAITING, READY or BURYING
    WAITING    failed, a retry interval on   time → READY; ack without lease → gone
    READY      interval over, or timed out   delivered → LEASED; ack without lease → gone
    BURYING    a counter is spent            stored in the dead-letter topic → gone

Fails and time-outs are counted apart, because each has its own limit. Progress keeps one number a
message: `packed`, which rises with either count.
"""

from __future__ import annotations

from enum import Enum

FAILS_MAX = (1 << 16) - 1


class JobState(Enum):
    """See the table above."""

    RECORDED = "recorded"
    LEASED = "leased"
    WAITING = "waiting"
    READY = "ready"
    BURYING = "burying"


class UpstreamJob:
    """One message travelling through one subscription for at least the second time."""

    __slots__ = ("due", "fails", "offset", "reason", "size", "state", "timeouts")

    def __init__(self, offset: int, fails: int = 0, timeouts: int = 0) -> None:
        self.offset = offset
        self.fails = fails
        self.timeouts = timeouts
        self.state = JobState.RECORDED
        self.due = 0.0  # monotonic seconds; while WAITING
        self.size = 0  # bytes, as accounted while leased
        self.reason = ""  # why it is buried

    @property
    def attempt(self) -> int:
        """The number of the next (or present) delivery, from 1."""
        return self.fails + self.timeouts + 1

    @property
    def packed(self) -> int:
        """Both counters in the one number that progress keeps."""
        return pack_attempts(self.fails, self.timeouts)


def pack_attempts(fails: int, timeouts: int) -> int:
    """What ProgressDelta.attempts holds: time-outs above 16 bits of fails, so that it only rises."""
    return timeouts << 16 | min(fails, FAILS_MAX)


def unpack_attempts(packed: int) -> tuple[int, int]:
    """(fails, time-outs)."""
    return packed & FAILS_MAX, packed >> 16
