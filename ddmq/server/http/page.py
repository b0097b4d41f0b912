"""A part of a long listing, by name: those behind one name, so many at most.

Who reads on names the last one that came, so nothing is told twice or passed over when others come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

COUNT_MAX = 1 << 30
T = TypeVar("T")


class Page(NamedTuple):
    """`after`: a name, which need not be there any more; "": from the first on."""

    after: str = ""
    most: int = COUNT_MAX

    def of(self, items: Iterable[T], name: Callable[[T], str]) -> list[T]:
        """Return the items that stand on this page, by name."""
        return sorted((each for each in items if name(each) > self.after), key=name)[: self.most]


WHOLE = Page()
