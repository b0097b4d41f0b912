"""Pages of the processes of a server, and of the clients that are connected to them."""

from __future__ import annotations

import msgspec

from ddmq.server.admin.contract.structs.process_answers import ClientRow, ProcessRow
from ddmq.server.admin.processes.views import ProcessViews, position_of_client
from ddmq.server.http.paging import ItemPage, PageRequest, select_page
from ddmq.server.http.routing import AdminRequest


def page_processes(views: ProcessViews, request: AdminRequest, page: PageRequest) -> ItemPage:
    """Return a page of the processes, by name."""
    rows, silent = views.collect_processes(request)
    matches = [
        row
        for row in rows
        if page.matches(row.name, row.host, row.version, *row.parts, *row.addresses.values())
    ]
    selected = select_page(matches, _position_of_process, tuple[str, str], page)
    items = [msgspec.to_builtins(row) for row in selected.items]
    return selected._replace(items=items, exact=not silent, missing=silent)


def _position_of_process(row: ProcessRow) -> tuple[str, str]:
    return row.name, row.instance


def page_clients(views: ProcessViews, request: AdminRequest, page: PageRequest) -> ItemPage:
    """Return a page of the clients that the caller may see, by group. Each other process answers with the
    part of the page that it would return alone."""
    clients = views.collect_clients(request, lambda row: page.matches(*_texts_of(row)))
    selected = select_page(clients.rows, position_of_client, tuple[str, str, str, str], page)
    following = selected.next
    if following is None and clients.has_more and selected.items:
        following = page.encode_position(position_of_client(selected.items[-1]))
    return ItemPage(
        [msgspec.to_builtins(row) for row in selected.items],
        following,
        clients.total,
        exact=not clients.silent,
        missing=clients.silent,
    )


def _texts_of(row: ClientRow) -> tuple[str, ...]:
    return row.group or "", row.client_id or "", row.process, row.address, *(row.topics or ())
