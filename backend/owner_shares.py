"""OwnerShares: how much of a shared bound each owner uses, and which owner uses the most of it. Pure.

Owners are kept in classes by the binary magnitude of what they use, so that a change costs the same however
many owners there are. Among the owners of the largest class, the one that uses the most is chosen exactly
while there are up to COMPARED_MAX; beyond that, any of them: each uses more than half as much as the largest.
"""

from __future__ import annotations

COMPARED_MAX = 64
_CLASSES = 64  # magnitudes of a count


class OwnerShares:
    """Counts by owner. An owner that uses nothing is not remembered."""

    __slots__ = ("_classes", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._classes: list[dict[str, None]] = [{} for _ in range(_CLASSES)]

    def add(self, owner: str, amount: int) -> None:
        """Add to what an owner uses; `amount` may be negative."""
        before = self.counts.get(owner, 0)
        after = before + amount
        if after:
            self.counts[owner] = after
        elif before:
            del self.counts[owner]
        magnitude = before.bit_length()
        if magnitude != after.bit_length():
            if before:
                del self._classes[magnitude][owner]
            if after:
                self._classes[after.bit_length()][owner] = None

    def find_largest(self) -> str:
        """Return the owner that uses the most. Raises LookupError if there is none."""
        for owners in reversed(self._classes):
            if owners:
                if len(owners) > COMPARED_MAX:
                    return next(iter(owners))
                return max(owners, key=self.counts.__getitem__)
        raise LookupError("no owner uses anything")
