"""A job that needs a state of its own (job_states.py). Messages that go well never become one.

Fails and time-outs are counted apart, because each has its own limit. Progress keeps one number a
message: `packed`, which rises with either count.
"""

from __future__ import annotations

from proxy_consumer.core.jobs.job_states import JobState

FAILS_MAX = (1 << 16) - 1


class UpstreamJob:
    """One message travelling through one subscription whose way is not the plain one."""

    __slots__ = ("due", "error", "fails", "final", "offset", "reason", "since", "size", "state", "timeouts")

    def __init__(self, offset: int, state: JobState, fails: int = 0, timeouts: int = 0) -> None:
        self.offset = offset
        self.fails = fails
        self.timeouts = timeouts
        self.state = state
        self.due = 0.0  # monotonic seconds; while WAITING
        self.since = 0.0  # monotonic seconds of the first failure seen here; 0: none yet
        self.size = 0  # bytes, as accounted while leased
        self.reason = ""  # why it is spent
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
