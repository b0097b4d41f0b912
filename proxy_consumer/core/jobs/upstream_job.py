"""A job that needs state of its own: it failed or timed out, or waited in a chain, at least once.

Messages that go well never become one; their lease is a run of offsets (leases.py).

    state      entered by                          left by
    RECORDED   loaded from group progress, or      delivered → LEASED; its chain came to it → RELEASED;
               sent back into its chain            ack without lease → gone
    RELEASED   its chain came to it                delivered → LEASED; parked → HELD; ack without lease → gone
    LEASED     delivered                           ack → gone; fail, time-out → WAITING, READY or BURYING
    WAITING    failed, a retry interval on         time → READY; parked → HELD; ack without lease → gone
    READY      interval over, or timed out         delivered → LEASED; parked → HELD; ack without lease → gone
    HELD       its key is parked by an operator    replayed → READY; ack without lease → gone
    BURYING    spent, given up or skipped          stored in its next topic → gone

Fails and time-outs are counted apart, because each has its own limit. Progress keeps one number a
message: `packed`, which rises with either count.
"""

from __future__ import annotations

from enum import Enum

FAILS_MAX = (1 << 16) - 1


class JobState(Enum):
    """See the table above."""

    RECORDED = "recorded"
    RELEASED = "released"
    LEASED = "leased"
    WAITING = "waiting"
    READY = "ready"
    HELD = "held"
    BURYING = "burying"


class UpstreamJob:
    """One message travelling through one subscription whose way is not the plain one."""

    __slots__ = ("due", "error", "fails", "final", "offset", "reason", "since", "size", "state", "timeouts")

    def __init__(self, offset: int, fails: int = 0, timeouts: int = 0) -> None:
        self.offset = offset
        self.fails = fails
        self.timeouts = timeouts
        self.state = JobState.RECORDED
        self.due = 0.0  # monotonic seconds; while WAITING
        self.since = 0.0  # monotonic seconds of the first failure seen here; 0: none yet
        self.size = 0  # bytes, as accounted while leased
        self.reason = ""  # why it is buried
        self.error = ""  # what the client said last
        self.final = False  # dead letter at once, no further retry

    @property
    def tried(self) -> bool:
        """Whether it was delivered, and came back, at least once."""
        return bool(self.fails or self.timeouts)

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
