"""Rates over the last few seconds: two samples of the counters are kept, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PERIOD_S = 5.0


class Rates:
    """Rates over 5 to 10 seconds, by (group, topic). `sample` comes every PERIOD_S; times are monotonic."""

    def __init__(self) -> None:
        self._older: tuple[float, Mapping[tuple[str, str], Sequence[float]]] = (0.0, {})
        self._newer: tuple[float, Mapping[tuple[str, str], Sequence[float]]] = (0.0, {})

    def sample(self, now: float, counts: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """Note the counters as they stand."""
        self._older, self._newer = self._newer, (now, counts)

    def rates(self, now: float, key: tuple[str, str], counts: Sequence[float]) -> list[float] | None:
        """Return the rates per second, counter by counter; None until a sample is at least a second old."""
        for at, sampled in (self._older, self._newer):
            before = sampled.get(key)
            if before is not None and now - at >= 1.0:
                return [
                    max(0.0, (count - was) / (now - at)) for count, was in zip(counts, before, strict=True)
                ]
        return None
