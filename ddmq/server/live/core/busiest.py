"""Chooses the busiest names for which a history is recorded, so that memory is bounded.

A name's score is the sum of its activity, in which what is an hour ago counts little. A newcomer replaces the
least busy name only if it is clearly busier, because the history of the replaced one is lost.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from heapq import nlargest
from typing import Generic, TypeVar

DECAY = 0.99  # of a score, from one update to the next; with updates each 10 s it halves in 11 minutes
CLEARLY = 2.0  # times the score of the name that is replaced
SCORE_MIN = 0.01  # a lower score is forgotten
K = TypeVar("K", bound=Hashable)


class Busiest(Generic[K]):
    """At most `most` names, the busiest ones. `names`: those, in no particular order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._scores: dict[K, float] = {}
        self.names: set[K] = set()

    def update(self, activity: Mapping[K, float]) -> None:
        """Add the activity since the last update, and choose the names again."""
        scores = {name: score * DECAY for name, score in self._scores.items()}
        for name, amount in activity.items():
            scores[name] = scores.get(name, 0.0) + amount
        self._scores = {name: score for name, score in scores.items() if score >= SCORE_MIN}
        newcomers = nlargest(self._most, self._scores.keys() - self.names, key=self._score_of)
        for newcomer in newcomers:
            if len(self.names) < self._most:
                self.names.add(newcomer)
                continue
            least = min(self.names, key=self._score_of)
            if self._score_of(newcomer) <= CLEARLY * self._score_of(least):
                return
            self.names.remove(least)
            self.names.add(newcomer)

    def _score_of(self, name: K) -> float:
        return self._scores.get(name, 0.0)
