"""Merges what the owners of shards answer: pages of delayed messages, by due time, and overviews. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

from ddmq.server.delays.choice import Cursor

Row = Mapping[str, Any]


class DelayPage(NamedTuple):
    """A page of delayed messages of some shards, by position.

    `last`: the list is complete up to this position; None: to its end. `total`: the number of all that match;
    None if it is not known. `orders_waiting`: commands that these shards have not ingested yet. `not_open`,
    `elsewhere`: the shards whose messages are missing.
    """

    rows: Sequence[Row] = ()
    last: Cursor | None = None
    total: int | None = 0
    orders_waiting: int = 0
    not_open: Sequence[int] = ()
    elsewhere: Sequence[int] = ()

    def with_passed(self, shards: Collection[int]) -> DelayPage:
        """Return the page as the next one of a list whose earlier pages lack the messages of `shards`."""
        return self._replace(elsewhere=sorted({*self.elsewhere, *shards}.difference(self.not_open)))

    @property
    def is_exact(self) -> bool:
        """Whether no message is missing up to `last`."""
        return not (self.orders_waiting or self.not_open or self.elsewhere)


def position_of(row: Row) -> Cursor:
    """Return the position of a row in the listing of all shards."""
    return Cursor(row["due_ms"], row["shard"], row["offset"])


class Coverage(NamedTuple):
    """Which shards the answers of all owners cover. `missing`: those that none covers. `is_single`: no shard
    has moved meanwhile, so that two cover it."""

    missing: list[int]
    is_single: bool


def find_coverage(shards: int, lists: Iterable[Collection[int]]) -> Coverage:
    """Return which of so many shards are covered. `lists`: for each answer, the shards that it does not
    cover."""
    counts = Counter(number for missing in lists for number in range(shards) if number not in missing)
    return Coverage(
        [number for number in range(shards) if not counts[number]], max(counts.values(), default=0) < 2
    )


def merge_pages(pages: Sequence[DelayPage], size: int, elsewhere: Sequence[int]) -> DelayPage:
    """Make one page of at most `size` messages out of pages that begin behind the same position.

    A shard that has moved meanwhile may be on two of them; its messages are listed once. `elsewhere`: the
    shards that are on none.
    """
    complete_until = min((page.last for page in pages if page.last is not None), default=None)
    rows = list[Row]()
    last = complete_until
    for row in merge(*(page.rows for page in pages), key=position_of):
        position = position_of(row)
        if complete_until is not None and position > complete_until:
            break
        if rows and position == position_of(rows[-1]):
            continue
        if len(rows) == size:
            last = position_of(rows[-1])
            break
        rows.append(row)
    totals = [page.total for page in pages if page.total is not None]
    return DelayPage(
        rows,
        last,
        sum(totals) if len(totals) == len(pages) else None,
        sum(page.orders_waiting for page in pages),
        sorted({number for page in pages for number in page.not_open}),
        elsewhere,
    )


def merge_overviews(
    overviews: Sequence[Mapping[str, Any]], holds: Mapping[str, int], elsewhere: Sequence[int]
) -> dict[str, Any]:
    """Make one overview of those of all owners. A shard that has moved meanwhile is described once, by its
    newest owner; `topics` counts its messages twice until the next request. `elsewhere`: the shards that no
    overview describes."""
    topics, shards = Counter[str](), dict[int, Row]()
    set_aside = dict[str, str]()
    for overview in overviews:
        topics.update(overview["topics"])
        set_aside |= overview["set_aside"]
        for row in overview["shards"]:
            before = shards.get(row["shard"])
            if before is None or before["epoch"] < row["epoch"]:
                shards[row["shard"]] = row
    standbys = [row for overview in overviews for row in overview["standbys"]]
    healths = [overview["health"] for overview in overviews]
    return {
        "health": next((health for health in healths if not health["ready"]), {"ready": True, "reason": ""}),
        "topics": dict(sorted(topics.items())),
        "shards": [shards[number] for number in sorted(shards)],
        "standbys": sorted(standbys, key=itemgetter("shard")),
        "set_aside": dict(sorted(set_aside.items())),
        "held": dict(holds),
        "pending": topics.total(),
        "elsewhere": list(elsewhere),
        "not_open": sorted({number for overview in overviews for number in overview["not_open"]}),
    }
