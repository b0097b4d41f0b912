"""Pages of a group's open dead letters, in the order of their offsets, queue by queue."""

from __future__ import annotations

from typing import Any

from backend.port import Backend
from ddmq.server.admin.dlq import DeadLetterFilter
from ddmq.server.admin.search.dead_letters import DeadLetterScan, SearchOrder, collect_letters
from ddmq.server.http.paging import ItemPage, PageRequest
from ddmq_common.clock import Clock


def page_dead_letters(
    backend: Backend, clock: Clock, group: str, choice: DeadLetterFilter, page: PageRequest
) -> ItemPage:
    """Return a page of the open dead letters that match. A page has fewer than requested if its request has
    examined as many as it may."""
    position = page.decode_position(tuple[int, int])
    queue_id, start = (None, None) if position is None else position
    scan = DeadLetterScan(backend, clock, group, SearchOrder(page.descending, start, queue_id))
    rows = collect_letters(scan, choice, page.size)
    total: int | None = scan.open
    if choice != DeadLetterFilter():
        total = len(rows) if position is None and scan.position is None else None
    more: dict[str, Any] = {"group": group, "letters": scan.open, "scanned": scan.scanned}
    cursor = None if scan.position is None else page.encode_position(scan.position)
    return ItemPage(rows, cursor, total, more=more)
