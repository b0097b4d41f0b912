"""Variants of a test: `make test` runs some of them, `make test-long` the others."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


def mark_others_long(values: Iterable[T], common: Container[T]) -> list[T | object]:
    """Return the values as parameters, with the mark `long` on those that are not `common`."""
    return [each if each in common else pytest.param(each, marks=pytest.mark.long) for each in values]
