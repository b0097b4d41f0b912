"""Pages of lists: the part of a list that a request asks for, and the page that answers it. Pure.

A cursor contains the position of the last item of a page in the order of the list, not its index. Therefore
items that appear or disappear between two requests neither move nor hide others.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from ddmq.server.http.parameters import VALUE_CHARS
from ddmq_common.errors import CallerError

ITEMS_DEFAULT = 100  # of a page, if the request states no number
ITEMS_MAX = 1_000  # of a page
T = TypeVar("T")
K = TypeVar("K")


class PageRequest(NamedTuple):
    """The page that a request asks for: up to `size` items behind the position `after`, with `text` in a
    name.

    `sort`: the name of the order; `descending`: from its end. `after` "": from the beginning. `allows`:
    whether the caller may see a topic or group; None: it may see all.
    """

    size: int = ITEMS_DEFAULT
    sort: str = ""
    descending: bool = False
    after: str = ""
    text: str | None = None
    allows: Callable[[str], bool] | None = None

    @property
    def order(self) -> str:
        """The order as a query states it."""
        return f"-{self.sort}" if self.descending else self.sort

    def decode_position(self, kind: type[K]) -> K | None:
        """Return the position behind which the page begins, None for the first page. Raises CallerError."""
        if not self.after:
            return None
        try:
            payload = base64.b64decode(
                self.after + "=" * (-len(self.after) % 4), altchars=b"-_", validate=True
            )
            order, position = msgspec.json.decode(payload, type=tuple[str, kind])  # type: ignore[valid-type]
        except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
            raise CallerError(
                f"after is {self.after[:VALUE_CHARS]!r}; allowed: `next` of an earlier answer to this request"
            ) from error
        if order != self.order:
            raise CallerError(f"after is of a page with sort={order[:VALUE_CHARS]}; here sort={self.order}")
        return position

    def encode_position(self, position: Any) -> str:
        """Encode a position as the opaque text that `after` of the next request takes."""
        payload = msgspec.json.encode((self.order, position))
        return base64.urlsafe_b64encode(payload).decode().rstrip("=")

    @property
    def is_filtered(self) -> bool:
        """Whether some of the names may not be selected."""
        return self.allows is not None or self.text is not None

    def matches(self, *names: str) -> bool:
        """Return whether one of the names contains the requested text."""
        return self.text is None or any(self.text in name for name in names)

    def select_names(self, names: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """Return the (group, topic) of this list: those that the caller may see, and that contain the
        requested text."""
        if not self.is_filtered:
            return names
        return [name for name in names if self.selects(*name)]

    def selects(self, name: str, *others: str) -> bool:
        """Return whether the caller may see the topic or group `name`, and one of the names contains the
        requested text."""
        return (self.allows is None or self.allows(name)) and self.matches(name, *others)


class ItemPage(NamedTuple):
    """One page of a list.

    `next`: the cursor of the next page; None at the end. `total`: the number of all items that match; None if
    it is not known. `exact`: nothing is missing, and `total` is the number at this moment. `missing`: the
    processes that did not answer, with their addresses. `more`: further keys of the answer.
    """

    items: Sequence[Any]
    next: str | None = None
    total: int | None = None
    exact: bool = True
    missing: Mapping[str, str] = MappingProxyType({})
    more: Mapping[str, Any] = MappingProxyType({})


def slice_page(positions: Sequence[Any], kind: Any, page: PageRequest) -> ItemPage:
    """Select the page from items that are their own positions, each once and in ascending order.

    Unlike `select_page`, this does not examine the items of other pages. `kind`: the type of positions.
    """
    after = page.decode_position(kind)
    if page.descending:
        end = len(positions) if after is None else bisect_left(positions, after)
        start = max(0, end - page.size)
        items = list(reversed(positions[start:end]))
        has_more = start > 0
    else:
        start = 0 if after is None else bisect_right(positions, after)
        items = list(positions[start : start + page.size])
        has_more = start + page.size < len(positions)
    following = page.encode_position(items[-1]) if has_more and items else None
    return ItemPage(items, following, len(positions))


def select_page(
    items: Iterable[T], position_of: Callable[[T], K], kind: type[K], page: PageRequest
) -> ItemPage:
    """Select the page from all matching items, in any order, without sorting them all.

    `position_of`: the position of an item, which no other item has; `kind`: the type of positions.
    """
    after: Any = page.decode_position(kind)
    behind: list[tuple[Any, T]] = [(position_of(item), item) for item in items]
    total = len(behind)
    if after is not None:
        behind = [each for each in behind if (each[0] < after if page.descending else each[0] > after)]
    first = heapq.nlargest if page.descending else heapq.nsmallest
    nearest = first(page.size + 1, behind, key=itemgetter(0))
    has_more = len(nearest) > page.size
    nearest = nearest[: page.size]
    return ItemPage(
        [item for _, item in nearest],
        page.encode_position(nearest[-1][0]) if has_more and nearest else None,
        total,
    )
