"""The reasons that hold up the deliveries of one subscription, recorded some hundred times a second. Pure.

Only changes are stored. A reason is the state at one moment, and is assumed to last until another one is
recorded: it may be a few milliseconds off. The reasons are those of docs/story.md. Every delivery searches
all of them, so they are few: of the older ones only the longest are kept, and the time between those counts
as unknown.
"""

from __future__ import annotations

from heapq import nlargest

from ddmq_common.trace.events import WAITS_MAX, Wait

CHANGES_MAX = 256
LONGEST = 2 * WAITS_MAX  # reasons kept of the older half
FORGOTTEN = ""
NO_PULL = "no_pull"  # no client requests messages
CLIENT_WAITS = "turn"  # a client waits: the message is being read, or others come first
CONCURRENCY = "concurrency"
BYTES = "bytes"
RATE = "rate"
RETRYING = "retrying"
BETWEEN = "between"  # queues are moving to this proxy
RELOAD = "anew"  # queues are reloaded after a change of settings
CLOSED = "closed"  # the topic is not readable
PAUSED = "paused"  # an operator has paused the subscription
EVERYWHERE = (NO_PULL, CLOSED, PAUSED)  # reasons that also apply to queues that the proxy does not own


class WaitLog:
    """The recorded reasons of one subscription, from the time when it is traced."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._changes)

    def record_reason(self, reason: str, at_ms: int) -> None:
        """Record the reason at `at_ms` of the store's clock."""
        if not self._changes or self._changes[-1][1] != reason:
            self._changes.append((at_ms, reason))
            if len(self._changes) > CHANGES_MAX:
                self._thin_out()

    def _thin_out(self) -> None:
        """Keep only the longest reasons of the older half."""
        half = len(self._changes) // 2
        old, newer = self._changes[:half], self._changes[half:]
        lengths = [until - at_ms for (at_ms, _), (until, _) in zip(old, self._changes[1:], strict=False)]
        indexes = [index for index, (_, reason) in enumerate(old) if reason != FORGOTTEN]
        longest = set(nlargest(LONGEST, indexes, key=lengths.__getitem__))
        retained = list[tuple[int, str]]()
        for index, (at_ms, reason) in enumerate(old):
            if index in longest:
                retained.append((at_ms, reason))
            elif not retained or retained[-1][1] != FORGOTTEN:
                retained.append((at_ms, FORGOTTEN))
        self._changes = retained + newer

    def waits_between(self, start_ms: int, end_ms: int) -> list[Wait]:
        """Return the waits recorded in `[start_ms, end_ms)`, ascending; only the longest if there are
        many."""
        waits, until = list[Wait](), end_ms
        for at_ms, reason in reversed(self._changes):
            if until <= start_ms:
                break
            if at_ms < until:
                if reason != FORGOTTEN:
                    waits.append((reason, max(at_ms, start_ms), until))
                until = at_ms
        if len(waits) > WAITS_MAX:
            waits = nlargest(WAITS_MAX, waits, key=lambda wait: wait[2] - wait[1])
        return sorted(waits, key=lambda wait: wait[1])
