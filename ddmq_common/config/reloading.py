"""The values of a configuration that take effect while the process runs."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple


class Reloaded(NamedTuple):
    """`config` is in force now; `changed` keys took effect, `waiting` ones do so at the next start."""

    config: Any
    changed: tuple[str, ...]
    waiting: tuple[str, ...]


def reloaded(current: Any, fresh: Any, live: frozenset[str]) -> Reloaded:
    """`current` with those values of `fresh` (of the same dataclass) whose keys are in `live`."""
    differing = [
        field.name
        for field in dataclasses.fields(current)
        if getattr(current, field.name) != getattr(fresh, field.name)
    ]
    changed = tuple(name for name in differing if name in live)
    values = {name: getattr(fresh, name) for name in changed}
    return Reloaded(
        dataclasses.replace(current, **values),
        changed,
        tuple(name for name in differing if name not in live),
    )
