"""Rate limits: token buckets with reservations.

A bucket may be overdrawn: whoever draws is told how long to wait until its tokens have come. Later
callers wait longer, so those who wait go in the order in which they came. Time is an argument.
"""

from __future__ import annotations

CREATIONS_AT_ONCE = 1_000
CREATIONS_PER_S = 20


class TokenBucket:
    """A token bucket that gains `rate` tokens per second up to `burst`, and starts full."""

    __slots__ = ("at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = max(burst, 1.0)
        self.tokens = self.burst
        self.at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` is available, without taking it.

        A full bucket serves any amount.
        """
        if now > self.at:
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
            self.at = now
        missing = min(amount, self.burst) - self.tokens
        return missing / self.rate if missing > 0 else 0.0

    def take_tokens(self, amount: float) -> None:
        """Take tokens, even those that are not there yet. Call `wait_s` first."""
        self.tokens -= amount


def creations_bucket(now: float) -> TokenBucket:
    """Return the bucket that limits how fast clients create topics or subscriptions by using new names."""
    return TokenBucket(CREATIONS_PER_S, CREATIONS_AT_ONCE, now)
