"""Rate limits: token buckets with reservations, and the gates of one topic made of them.

A bucket may be overdrawn: whoever draws is told how long to wait until its tokens have come. Later
callers wait longer, so those who wait go in the order in which they came. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence


class TokenBucket:
    """`rate` tokens per second, at most `burst` of them saved up; starts full."""

    __slots__ = ("at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = max(burst, 1.0)
        self.tokens = self.burst
        self.at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may go; takes nothing. From a full bucket any amount may."""
        if now > self.at:
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
            self.at = now
        missing = min(amount, self.burst) - self.tokens
        return missing / self.rate if missing > 0 else 0.0

    def take(self, amount: float) -> None:
        """Draw, also what has not come yet; call `wait_s` first."""
        self.tokens -= amount


class Gate:
    """One rate limit: who it guards, and its buckets for messages and bytes (None: no such limit)."""

    __slots__ = ("body_bytes", "messages", "what")

    def __init__(
        self, what: str, messages_per_s: float, bytes_per_s: float, burst_s: float, now: float
    ) -> None:
        self.what = what
        self.messages = TokenBucket(messages_per_s, messages_per_s * burst_s, now) if messages_per_s else None
        self.body_bytes = TokenBucket(bytes_per_s, bytes_per_s * burst_s, now) if bytes_per_s else None

    @property
    def open_always(self) -> bool:
        return self.messages is None and self.body_bytes is None

    def wait_s(self, messages: int, body_bytes: int, now: float) -> float:
        """Seconds until this many may go."""
        wait = self.messages.wait_s(messages, now) if self.messages else 0.0
        return max(wait, self.body_bytes.wait_s(body_bytes, now)) if self.body_bytes else wait

    def take(self, messages: int, body_bytes: int) -> None:
        if self.messages:
            self.messages.take(messages)
        if self.body_bytes:
            self.body_bytes.take(body_bytes)

    def shown(self) -> str:
        """The limit in words, for a refusal."""
        parts = [f"{self.messages.rate:g} messages/s"] if self.messages else []
        parts += [f"{self.body_bytes.rate:g} bytes/s"] if self.body_bytes else []
        return f"{self.what} is limited to {' and '.join(parts)}"


def longest(gates: Sequence[Gate], messages: int, body_bytes: int, now: float) -> tuple[float, Gate | None]:
    """How long this many have to wait for all gates, and the gate that makes them wait longest."""
    worst, by = 0.0, None
    for gate in gates:
        wait = gate.wait_s(messages, body_bytes, now)
        if wait > worst:
            worst, by = wait, gate
    return worst, by
