"""Rate limiters of topics and of a whole proxy, made of token buckets. Time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

from ddmq_common.token_bucket import TokenBucket


class RateLimiter:
    """One rate limit: whom it guards, and its buckets for messages and bytes (None: no such limit)."""

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


def longest(
    limiters: Sequence[RateLimiter], messages: int, body_bytes: int, now: float
) -> tuple[float, RateLimiter | None]:
    """How long this many have to wait for all rate limiters, and the one that makes them wait longest."""
    worst, by = 0.0, None
    for limiter in limiters:
        wait = limiter.wait_s(messages, body_bytes, now)
        if wait > worst:
            worst, by = wait, limiter
    return worst, by
