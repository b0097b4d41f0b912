"""How many examples a property is tried with, where Hypothesis's own number does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

Whatever = TypeVar("Whatever")

FULL = 100  # of the profile that tries every example


def examples(full: int) -> int:
    """All of `full`, or as many of them as the run's profile allows."""
    return max(1, full * min(settings.default.max_examples, FULL) // FULL)


def some_of(every: Sequence[Whatever]) -> Sequence[Whatever]:
    """All, or as large a share of them: every fifth, say."""
    return every[:: max(1, len(every) // examples(len(every)))]
