"""Offsets that are over in the store before the log has it on record.

Most of them the next owner finds again: it reads a command that was not committed once more, and the states
of the ids say what it ended. What no command names are the earlier move of a message that a cancel or the
next move ended, and a message that was passed over to its end. They are noted in the store, in the write that
ends them, until the commit that finishes them; who opens the store finishes those that are still noted. To
finish an offset twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from delay_service.store.port import DelayStore, StoreChanges

UNRECORDED = "unrecorded"  # meta: these offsets, in decimal, with commas


class Unrecorded:
    """Of one store."""

    __slots__ = ("_noted", "_offsets")

    def __init__(self, store: DelayStore) -> None:
        text = store.meta(UNRECORDED) or b""
        self._offsets = {int(offset) for offset in text.split(b",") if offset.isdigit()}
        self._noted = bool(text)

    @property
    def offsets(self) -> list[int]:
        """Over, and not on record as far as is known here."""
        return sorted(self._offsets)

    def note(self, offsets: Collection[int], changes: StoreChanges) -> None:
        """These end with `changes`; to be called for every write, which also takes an old note away."""
        self._offsets.update(offsets)
        if offsets:
            changes.meta[UNRECORDED] = b",".join(b"%d" % offset for offset in sorted(self._offsets))
            self._noted = True
        elif self._noted and not self._offsets:
            changes.meta[UNRECORDED] = None
            self._noted = False

    def recorded(self, offsets: Iterable[int]) -> None:
        """The log has these as finished, durably."""
        if self._offsets:
            self._offsets.difference_update(offsets)
