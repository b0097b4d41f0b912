"""Counts changes of the lists that pages show, so that a page reads a list again only when it has changed.

A version is compared for equality only. It begins with the start time of the process, so that a restart
changes it. Settings and topics are watched in the backend, and so include the changes of other servers; the
other lists change with counters of this process and with requests to its admin API.
"""

from __future__ import annotations

from collections.abc import Iterable

from backend.port import Backend
from ddmq.server.http.pace import yield_if_long
from ddmq.server.live.core.snapshot import VERSIONS
from ddmq_common.clock import Clock
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.metric import Metric
from ddmq_common.metrics.registry import Registry

SETTINGS = {
    "topic": "topics", "trace": "topics", "group": "groups", "subscription": "groups", "reset": "groups",
    "parked": "keys", "exhausted": "keys",
}  # fmt: skip
REQUESTS = {
    "topics": ("topics",), "groups": ("groups", "keys"), "dlq": ("dead_letters",), "delay": ("delays",),
    "messages": ("delays",), "transactions": ("transactions",),
}  # fmt: skip
COUNTERS: dict[str, tuple[Metric, ...]] = {
    "keys": (catalogue.FAILED, catalogue.LEASE_TIMEOUTS, catalogue.REDELIVERED),
    "dead_letters": (catalogue.DEAD_LETTERS, catalogue.LEVELS_DEAD, catalogue.DELAY_DEAD),
    "delays": (catalogue.DELAY_ORDERS, catalogue.DELAY_FIRED),
    "retries": (catalogue.RETRY_STEPS, catalogue.LEVELS_FIRED),
    # A transaction that ends is one open less and two ended more, so that the sum always grows.
    "transactions": (
        catalogue.TRANSACTIONS_OPEN, catalogue.TRANSACTIONS_ENDED, catalogue.TRANSACTIONS_ENDED,
        catalogue.TRANSACTIONS_CHECKS,
    ),
}  # fmt: skip


class ListVersions:
    """The versions of the lists, as this process knows them."""

    def __init__(self, backend: Backend, metrics: Registry, clock: Clock) -> None:
        self._metrics = metrics
        self._changes = dict.fromkeys(VERSIONS, clock.wall_ms())
        self._unwatch = backend.watch_settings(self._on_setting_changed)

    def close(self) -> None:
        """Watch no settings any longer."""
        self._unwatch()

    def _on_setting_changed(self, key: str) -> None:
        self._add(filter(None, [SETTINGS.get(key.partition("/")[0])]))

    def note_request(self, path: str) -> None:
        """Count a request that may have changed something. `path`: of its route."""
        self._add(REQUESTS.get(path.split("/")[1], ()))

    def _add(self, lists: Iterable[str]) -> None:
        for name in lists:
            self._changes[name] += 1

    def read(self) -> dict[str, int]:
        """Return the present version of each list. Other greenlets run between the lists, but not between the
        counters of one list, because a sum of counters of different moments could come again."""
        versions = dict(self._changes)
        for name, metrics in COUNTERS.items():
            for metric in metrics:
                versions[name] += int(sum(cell.value for cell in self._metrics.cells_of(metric).values()))
            yield_if_long()
        return versions
