"""Pages of the messages on a group's retry path: those that are due, then those that wait, level by level."""

from __future__ import annotations

from backend.port import Backend
from ddmq.server.admin.search.records import RecordScan, ScanPosition
from ddmq.server.admin.search.retries import collect_retries, list_ranges
from ddmq.server.http.paging import ItemPage, PageRequest
from ddmq_common.clock import Clock


def page_retries(
    backend: Backend, clock: Clock, group: str, topic: str | None, page: PageRequest
) -> ItemPage:
    """Return a page of the messages on the retry path of a group. A page has fewer than requested if its
    request has examined as many as it may."""
    position = page.decode_position(tuple[int, int, int])
    after = None if position is None else ScanPosition(*position)
    scan = RecordScan(backend, clock, list_ranges(backend, group), after)
    rows = collect_retries(scan, group, topic, page.size, page.text)
    return ItemPage(
        rows,
        None if scan.next is None else page.encode_position(tuple(scan.next)),
        len(rows) if scan.next is None and after is None else None,
        more={"scanned": scan.scanned},
    )
