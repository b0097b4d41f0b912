"""What a server counts, and its log of faults of ours."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ddmq_common.metrics.catalogue import RPC_ABANDONED, RPC_CONNECTIONS, RPC_FAULTS, RPC_REFUSED
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Fault

log = logging.getLogger("ddmq.rpc")
LOGGED_FAULTS_MAX = 10  # in LOGGED_FAULTS_S; the counts go on
LOGGED_FAULTS_S = 10.0


class FaultLog:
    """Logs faults of ours with their traceback, a few per interval: clients cannot fill the disk."""

    __slots__ = ("_logged", "_now", "_since")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()
        self._logged = 0

    def report(self, text: str, *args: object) -> None:
        """Log the exception under way."""
        now = self._now()
        if now - self._since >= LOGGED_FAULTS_S:
            self._since, self._logged = now, 0
        self._logged += 1
        if self._logged <= LOGGED_FAULTS_MAX:
            log.exception(text, *args)


class RpcCounts:
    """The server's metric cells, looked up once."""

    __slots__ = ("_registry", "_service", "abandoned", "connections", "faults")

    def __init__(self, registry: Registry, service: str) -> None:
        self._registry = registry
        self._service = service
        self.connections = registry.cell(RPC_CONNECTIONS, service)
        self.abandoned = registry.cell(RPC_ABANDONED, service)
        self.faults = {kind: registry.cell(RPC_FAULTS, service, kind.name.lower()) for kind in Fault}

    def refused(self, reason: str) -> None:
        """One frame or connection refused. `reason` is one of a fixed few."""
        self._registry.cell(RPC_REFUSED, self._service, reason).value += 1
