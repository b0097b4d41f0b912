"""The usage of this process by each identity, for GET /usage and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from backend.port import Backend
from ddmq_common.metrics.catalogue import IDENTITY_USAGE
from ddmq_common.metrics.registry import Registry
from ddmq_common.security.callers import CallerTable
from ddmq_common.send_identity import make_owner
from delay_service.service import DelayService
from proxy_producer.service import ProducerService

SHOWN_MAX = 500  # identities with metrics: those with most requests
LEVELS = (
    "connections", "waiting_calls", "in_flight", "open_transactions", "pending_delays", "idempotency_keys",
    "producers",
)  # fmt: skip


class UsedParts(NamedTuple):
    """The parts of a process that count by identity. `callers` None: rights are off."""

    callers: CallerTable | None
    backend: Backend
    producer: ProducerService | None = None
    delays: DelayService | None = None


def list_usage(parts: UsedParts) -> list[dict[str, Any]]:
    """Return one row for each identity that has used this process, the one with most requests first."""
    if parts.callers is None:
        return []
    transactions = {} if parts.producer is None else parts.producer.transactions.count_senders()
    delays = {} if parts.delays is None else parts.delays.sender_counts()
    sends = parts.backend.count_owned_sends()
    figures = parts.callers.list_usage({*transactions, *delays})
    rows: list[dict[str, Any]] = [
        {
            "identity": name,
            **each._asdict(),
            "open_transactions": transactions.get(name, 0),
            "pending_delays": delays.get(name, 0),
            **_count_sends(sends, name),
        }
        for name, each in figures.items()
    ]
    return sorted(rows, key=lambda row: (-row["requests"], row["identity"]))


def _count_sends(sends: Mapping[str, Any], name: str) -> dict[str, Any]:
    owned = sends.get(make_owner(name)) if name else None
    return {"idempotency_keys": 0, "producers": 0} if owned is None else owned._asdict()


def publish_usage(metrics: Registry, rows: Iterable[Mapping[str, Any]]) -> None:
    """Set the gauges of the first identities of `list_usage`."""
    for index, row in enumerate(rows):
        for quota in LEVELS if index < SHOWN_MAX else ():
            if row["identity"]:
                metrics.cell(IDENTITY_USAGE, row["identity"], quota).value = row[quota]
