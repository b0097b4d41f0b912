"""Counts the settings in each folder as they change. Pure.

A folder is the part of a setting's key up to a slash: `group/`, `subscription/`, `subscription/billing/`. The
root is "", so its count is that of all settings. Folders below the second level are not counted, because the
rest of a key may contain any number of slashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from backend.records import SettingsLimit
from ddmq_common.errors import BoundReachedError

ROOT = ""
_LEVELS = 2


class SettingCounts:
    """The counts of a set of settings, or the changes that a set of commits makes to them."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add_change(self, key: str, by: int) -> None:
        """Count a setting that was created (1) or deleted (−1)."""
        counts = self._counts
        counts[ROOT] += by
        start = 0
        for _ in range(_LEVELS):
            start = key.find("/", start) + 1
            if not start:
                return
            folder = key[:start]
            counts[folder] += by
            if not counts[folder]:
                del counts[folder]

    def count_settings(self, folder: str) -> int:
        """Return the number of settings below `folder`, one of the counted folders."""
        return self._counts[folder]


def check_limits(
    limits: Sequence[SettingsLimit],
    changes: Mapping[str, bytes | None],
    is_there: Callable[[str], bool],
    count_settings: Callable[[str], int],
) -> None:
    """Raise BoundReachedError if `changes` create a setting beyond one of `limits`.

    `is_there` of a key and `count_settings` of a folder describe the settings before `changes`.
    """
    for limit in limits:
        additions = deletions = 0
        for key, value in changes.items():
            if key.startswith(limit.folder):
                additions += value is not None and not is_there(key)
                deletions += value is None and is_there(key)
        if additions and count_settings(limit.folder) + additions - deletions > limit.count_max:
            raise BoundReachedError(limit.rejection)
