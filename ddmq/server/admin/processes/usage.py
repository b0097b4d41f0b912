"""The usage of the server by each identity, for GET /usage, and of this process, for the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from backend.port import Backend
from ddmq.server.admin.processes.views import ProcessViews
from ddmq.server.http.paging import ItemPage, PageRequest, select_page
from ddmq.server.http.routing import AdminRequest
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


def collect_usage(
    parts: UsedParts, views: ProcessViews, request: AdminRequest
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows of all processes, added up by identity, and the addresses of those that did not answer;
    to another process, the rows of this one."""
    rows = list_usage(parts)
    if request.is_forwarded or parts.callers is None:
        return rows, {}
    others = views.fetch_answers("/usage", "items", query={"form": "2"})
    return merge_usage([rows, *(answer["items"] for answer in others.answers)]), others.silent


def merge_usage(lists: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Add up the rows of several processes by identity; the one with most requests comes first. Rows of form
    2 lack an empty identity."""
    merged: dict[str, dict[str, Any]] = {}
    for row in chain.from_iterable(lists):
        identity = row.get("identity", "")
        total = merged.get(identity)
        if total is None:
            merged[identity] = {**row, "identity": identity, "rejected": dict(row["rejected"])}
            continue
        for name in row.keys() - {"identity", "rejected"}:
            total[name] += row[name]
        for quota, number in row["rejected"].items():
            total["rejected"][quota] = total["rejected"].get(quota, 0) + number
    return sorted(merged.values(), key=lambda row: (-row["requests"], row["identity"]))


def page_usage(parts: UsedParts, views: ProcessViews, request: AdminRequest, page: PageRequest) -> ItemPage:
    """Return a page of the usage, by identity: the numbers of requests change from page to page. Another
    process gets all rows, to add them up."""
    rows, silent = collect_usage(parts, views, request)
    if request.is_forwarded:
        return ItemPage(rows, total=len(rows))
    matches = [row for row in rows if page.matches(row["identity"])]
    selected = select_page(matches, itemgetter("identity"), str, page)
    return selected._replace(exact=not silent, missing=silent)


def _count_sends(sends: Mapping[str, Any], name: str) -> dict[str, Any]:
    owned = sends.get(make_owner(name)) if name else None
    return {"idempotency_keys": 0, "producers": 0} if owned is None else owned._asdict()


def publish_usage(metrics: Registry, rows: Iterable[Mapping[str, Any]]) -> None:
    """Set the gauges of the first identities of `list_usage`."""
    for index, row in enumerate(rows):
        for quota in LEVELS if index < SHOWN_MAX else ():
            if row["identity"]:
                metrics.cell(IDENTITY_USAGE, row["identity"], quota).value = row[quota]
