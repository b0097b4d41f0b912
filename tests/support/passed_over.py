"""A dict that counts how often it is gone through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class PassedOver(dict[K, V]):
    """`passes`: each begins at the front, and costs what was deleted there since the dict grew last."""

    passes = 0

    def __iter__(self) -> Iterator[K]:
        self.passes += 1
        return super().__iter__()
