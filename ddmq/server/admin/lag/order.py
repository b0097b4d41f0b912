"""The lags by which GET /lag is sorted.

To find the largest lag, the lags of all subscriptions must be known. With many subscriptions that takes
longer than a page may take. Therefore they are refreshed in the background, and a page waits only a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gevent

from ddmq.server.admin.topics import WAIT_S
from ddmq.server.findings.watch import iterate_sliced
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from proxy_consumer.groups.stats import SubscriptionStats

FRESH_S = 5.0  # for so long, lags are not refreshed
FEW = 200  # subscriptions for whose lags a page waits
PAGE_WAIT_S = 0.01  # for the lags of more
Name = tuple[str, str]  # group, topic
LagPosition = tuple[int, str, str]  # lag, group, topic


class LagOrder:
    """The lags of all subscriptions, as far as they are known. `read_group`: returns the statistics of a
    group's subscriptions."""

    def __init__(self, read_group: Callable[[str], Sequence[SubscriptionStats]], clock: Clock) -> None:
        self._read_group = read_group
        self._clock = clock
        self._lags: dict[Name, int] = {}
        self._names: Sequence[Name] = ()  # of the last refresh
        self._order: list[LagPosition] = []  # of these names
        self._is_complete = False  # the last refresh read all of these lags
        self._refreshed_at = float("-inf")
        self._refresh: gevent.Greenlet | None = None

    def read_order(self, names: Sequence[Name]) -> tuple[Sequence[LagPosition], bool]:
        """Return all subscriptions by lag, the smallest first, and whether each lag is known and at most
        FRESH_S old. A lag that is not known counts as 0.

        `names`: of all subscriptions; the same object as before, unless one was added or removed.
        """
        if not self._is_fresh(names):
            if self._refresh is None or self._refresh.ready():
                self._refresh = gevent.spawn(self._refresh_lags, names)
            self._refresh.join(WAIT_S if len(names) <= FEW else PAGE_WAIT_S)
        if names is self._names:
            return self._order, self._is_fresh(names)
        return self._sort_names(names), False

    def read_order_of_group(self, group: str, names: Sequence[Name]) -> tuple[Sequence[LagPosition], bool]:
        """Return the subscriptions of one group like `read_order`, with the lags of this moment."""
        is_read = self._read_lags(group)
        return self._sort_names(names), is_read

    def _is_fresh(self, names: Sequence[Name]) -> bool:
        age_s = self._clock.monotonic() - self._refreshed_at
        return names is self._names and self._is_complete and age_s < FRESH_S

    def _sort_names(self, names: Sequence[Name]) -> list[LagPosition]:
        return sorted((self._lags.get(name, 0), *name) for name in names)

    def _refresh_lags(self, names: Sequence[Name]) -> None:
        groups = sorted({group for group, _ in names})
        unread = [group for group in iterate_sliced(groups) if not self._read_lags(group)]
        existing = set(names)
        self._lags = {name: lag for name, lag in self._lags.items() if name in existing}
        self._order, self._names = self._sort_names(names), names
        self._is_complete = not unread
        self._refreshed_at = self._clock.monotonic()

    def _read_lags(self, group: str) -> bool:
        """Read the lags of a group; return False if it was deleted, or the backend does not answer: its last
        lags stay."""
        try:
            self._lags |= {(each.group, each.topic): each.lag for each in self._read_group(group)}
        except (DdmqError, TimeoutError):
            return False
        return True
