"""What was broken in a run, and how often. Pure: no sockets, no clock."""

from __future__ import annotations

SHOWN_MAX = 20


class Violations:
    """Broken promises, each a sentence: the first are kept, all are counted."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.violations_count = 0

    def violated(self, text: str) -> None:
        """One more. Whoever calls from several threads has a lock of its own, or can do without."""
        self.violations_count += 1
        if len(self.violations) < SHOWN_MAX:
            self.violations.append(text)
