"""What holds up the deliveries of one subscription, looked at some hundred times a second. Pure.

Only changes are kept. A reason is what was the case when it was looked at, and is taken to last until another
one is seen: it may be a few milliseconds off. Reasons are those of docs/story.md.
"""

from __future__ import annotations

from collections import deque

from ddmq_common.trace.events import WAITS_MAX, Wait

CHANGES_MAX = 4_096
NO_PULL = "no_pull"  # nobody asks for messages
TURN = "turn"  # somebody asks: it is being read, or others go first
CONCURRENCY = "concurrency"
BYTES = "bytes"
RATE = "rate"
RETRYING = "retrying"
BETWEEN = "between"  # queues are on their way to this proxy
ANEW = "anew"  # they are loaded anew, for settings changed
CLOSED = "closed"  # the topic is not readable


class WaitLog:
    """Begins when the subscription is traced; before that nothing is known."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, str]] = deque(maxlen=CHANGES_MAX)

    def note(self, reason: str, at_ms: int) -> None:
        """What the case is at `at_ms` of the store's clock."""
        if not self._changes or self._changes[-1][1] != reason:
            self._changes.append((at_ms, reason))

    def between(self, start_ms: int, end_ms: int) -> list[Wait]:
        """What was noted of `[start_ms, end_ms)`, ascending; the longest where it is much."""
        found, until = list[Wait](), end_ms
        for at_ms, reason in reversed(self._changes):
            if until <= start_ms:
                break
            if at_ms < until:
                found.append((reason, max(at_ms, start_ms), until))
                until = at_ms
        if len(found) > WAITS_MAX:
            found = sorted(found, key=lambda wait: wait[1] - wait[2])[:WAITS_MAX]
        return sorted(found, key=lambda wait: wait[1])
