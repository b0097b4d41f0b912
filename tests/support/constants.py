"""Options of the product with other constants than its own.

A constant of an options class is a class attribute, which no configuration sets. A test that needs another
value takes a subclass.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")


def build_options(kind: type[T], **values: Any) -> T:
    """Return an instance of an options class. `values` are settings, and constants that differ."""
    settings = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    constants = {name: value for name, value in values.items() if name not in settings}
    for name in constants:
        assert hasattr(kind, name), f"{kind.__name__} has no constant {name}"
    changed = type(kind.__name__, (kind,), {"__slots__": (), **constants}) if constants else kind
    return changed(**{name: value for name, value in values.items() if name in settings})


def replace_options(options: T, **values: Any) -> T:
    """Return a copy of an options object with other settings and constants."""
    settings = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return build_options(type(options), **{**settings, **values})
