"""What every engine refuses, in the same words: bounds and arguments. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ddmq_common.errors import BoundReachedError


def check_settings(
    there: Mapping[str, bytes], changes: Mapping[str, bytes | None], settings_max: int
) -> None:
    """Raises BoundReachedError for more than there may be; changing and deleting is always possible."""
    fresh = sum(value is not None and key not in there for key, value in changes.items())
    if fresh and len(there) + fresh > settings_max:
        raise BoundReachedError(f"{settings_max} settings are the bound")
