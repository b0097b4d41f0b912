"""Counts of dead letters by reason, error class, topic and hour. Pure.

Clients write errors, so a facet lists a bounded number of values: those with the most dead letters, or the
latest hours. The dead letters of the other values are counted together.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ddmq.server.admin.search.error_classes import classify_error

VALUES_MAX = 100
HOURS_MAX = 720  # 30 days
HOUR_MS = 3_600_000


class FacetCounts:
    """The numbers of dead letters by each facet."""

    def __init__(self) -> None:
        self.total = 0
        self._reasons: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._topics: Counter[str] = Counter()
        self._hours: Counter[int] = Counter()

    def add(self, reason: str, error: str, topic: str, time_ms: int) -> None:
        """Count one dead letter. `error`: the text of its last error; `time_ms`: when it died."""
        self.total += 1
        self._reasons[reason] += 1
        self._errors[classify_error(error)] += 1
        self._topics[topic] += 1
        self._hours[time_ms - time_ms % HOUR_MS] += 1

    def as_rows(self) -> dict[str, Any]:
        """Return the values of each facet with their counts, and `others`: how many dead letters have values
        that are not listed.

        Values are sorted by their count, the largest first; hours by time.
        """
        latest = sorted(self._hours.items())[-HOURS_MAX:]
        rows = {
            "by_reason": _list_largest(self._reasons),
            "by_error": _list_largest(self._errors),
            "by_topic": _list_largest(self._topics),
            "by_hour": [{"value": hour, "letters": count} for hour, count in latest],
        }
        others = {name: self.total - sum(row["letters"] for row in listed) for name, listed in rows.items()}
        return {**rows, "others": others}


def _list_largest(counts: Counter[str]) -> list[dict[str, Any]]:
    largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:VALUES_MAX]
    return [{"value": value, "letters": count} for value, count in largest]
