"""Reasons that hold up the deliveries of one subscription, noted some hundred times a second. Pure.

Only changes are kept. A reason is what was the case when it was looked at, and is taken to last until another
one is seen: it may be a few milliseconds off. Reasons are those of docs/story.md.

Each hand-out looks through all of them, so they are few: of older ones the longest stay, and what was between
those is not known any more.
"""

from __future__ import annotations

from heapq import nlargest

from ddmq_common.trace.events import WAITS_MAX, Wait

CHANGES_MAX = 256
LONGEST = 2 * WAITS_MAX  # of the older half
FORGOTTEN = ""
NO_PULL = "no_pull"  # nobody asks for messages
TURN = "turn"  # somebody asks: it is being read, or others go first
CONCURRENCY = "concurrency"
BYTES = "bytes"
RATE = "rate"
RETRYING = "retrying"
BETWEEN = "between"  # queues are on their way to this proxy
ANEW = "anew"  # they are loaded anew, for settings changed
CLOSED = "closed"  # the topic is not readable
EVERYWHERE = (NO_PULL, CLOSED)  # what a proxy knows also of queues that it does not have


class WaitLog:
    """Begins when the subscription is traced; before that nothing is known."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._changes)

    def note_reason(self, reason: str, at_ms: int) -> None:
        """Note the reason at `at_ms` of the store's clock."""
        if not self._changes or self._changes[-1][1] != reason:
            self._changes.append((at_ms, reason))
            if len(self._changes) > CHANGES_MAX:
                self._thin_out()

    def _thin_out(self) -> None:
        """Keep only the longest reasons of the older half."""
        half = len(self._changes) // 2
        old, newer = self._changes[:half], self._changes[half:]
        lengths = [until - at_ms for (at_ms, _), (until, _) in zip(old, self._changes[1:], strict=False)]
        places = [place for place, (_, reason) in enumerate(old) if reason != FORGOTTEN]
        longest = set(nlargest(LONGEST, places, key=lengths.__getitem__))
        retained = list[tuple[int, str]]()
        for place, (at_ms, reason) in enumerate(old):
            if place in longest:
                retained.append((at_ms, reason))
            elif not retained or retained[-1][1] != FORGOTTEN:
                retained.append((at_ms, FORGOTTEN))
        self._changes = retained + newer

    def waits_between(self, start_ms: int, end_ms: int) -> list[Wait]:
        """Return the waits noted in `[start_ms, end_ms)`, ascending; the longest where they are many."""
        spans, until = list[Wait](), end_ms
        for at_ms, reason in reversed(self._changes):
            if until <= start_ms:
                break
            if at_ms < until:
                if reason != FORGOTTEN:
                    spans.append((reason, max(at_ms, start_ms), until))
                until = at_ms
        if len(spans) > WAITS_MAX:
            spans = nlargest(WAITS_MAX, spans, key=lambda wait: wait[2] - wait[1])
        return sorted(spans, key=lambda wait: wait[1])
