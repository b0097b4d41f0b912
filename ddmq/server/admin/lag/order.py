"""The lags by which GET /lag is sorted.

To find the largest lag, the lags of all subscriptions must be known. With many subscriptions that takes
longer than a page may take. Therefore they are refreshed in the background, and a page waits only a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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


class LagOrder:
    """The lags of all subscriptions, as far as they are known. `read_group`: returns the statistics of a
    group's subscriptions."""

    def __init__(self, read_group: Callable[[str], Sequence[SubscriptionStats]], clock: Clock) -> None:
        self._read_group = read_group
        self._clock = clock
        self._lags: dict[Name, int] = {}
        self._refreshed_at = float("-inf")
        self._refresh: gevent.Greenlet | None = None

    def read_lags(self, names: Sequence[Name]) -> tuple[dict[Name, int], bool]:
        """Return the known lags, and whether they are those of all these subscriptions and at most FRESH_S
        old."""
        if self._is_fresh(names):
            return self._lags, True
        if self._refresh is None or self._refresh.ready():
            self._refresh = gevent.spawn(self._refresh_lags, sorted({group for group, _ in names}))
        self._refresh.join(WAIT_S if len(names) <= FEW else PAGE_WAIT_S)
        return self._lags, self._is_fresh(names)

    def _is_fresh(self, names: Iterable[Name]) -> bool:
        if self._clock.monotonic() - self._refreshed_at >= FRESH_S:
            return False
        return all(name in self._lags for name in names)

    def _refresh_lags(self, groups: Sequence[str]) -> None:
        lags: dict[Name, int] = {}
        for group in iterate_sliced(groups):
            try:
                each_lag = {(each.group, each.topic): each.lag for each in self._read_group(group)}
            except (DdmqError, TimeoutError):
                continue  # it was deleted meanwhile, or the backend does not answer: it keeps its last lag
            lags |= each_lag
            self._lags |= each_lag
        self._lags = lags
        self._refreshed_at = self._clock.monotonic()
