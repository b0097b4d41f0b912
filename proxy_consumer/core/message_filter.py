"""The seam for everything that decides about a message before it is delivered: filters, actions.

A filter is pure and quick; it sees the stored delivery bytes (ddmq_common.delivery) and nothing else.
"""

from __future__ import annotations

from typing import Protocol


class Refusal:
    """A message that is not delivered. `fault` empty: filtered, it counts as finished.

    Otherwise it is a failed job with that reason: it is retried like any other and ends as a dead letter.
    """

    __slots__ = ("fault",)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault


FILTERED = Refusal()


class Filter(Protocol):
    """Decides message by message. `tags`: the only tag hashes worth reading, None = all."""

    tags: frozenset[int] | None

    def judge(self, delivery: bytes) -> Refusal | None:
        """None: deliver it. Never raises."""
