"""Who holds bytes that have not moved on, oldest first: half-arrived frames, unread answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

H = TypeVar("H")


class Backlog(Generic[H]):
    """Holders with their bytes and since when; `total` is the sum of their bytes."""

    __slots__ = ("_entries", "total")

    def __init__(self) -> None:
        self._entries: dict[H, tuple[float, int]] = {}  # insertion order is age
        self.total = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, holder: H) -> bool:
        return holder in self._entries

    def put(self, holder: H, held_bytes: int, now: float) -> None:
        """The holder has `held_bytes` now; its age counts from its first `put`."""
        since, before = self._entries.get(holder, (now, 0))
        self._entries[holder] = (since, held_bytes)
        self.total += held_bytes - before

    def discard(self, holder: H) -> bool:
        """The holder has nothing any more; False when it had nothing."""
        entry = self._entries.pop(holder, None)
        if entry is None:
            return False
        self.total -= entry[1]
        return True

    def oldest(self) -> H | None:
        return next(iter(self._entries), None)

    def since_before(self, moment: float) -> Iterator[H]:
        """Holders older than `moment`, oldest first; they may be discarded while iterating."""
        for holder, (since, _) in list(self._entries.items()):
            if since >= moment:
                return
            yield holder
