"""Pages of the blocked and parked keys of one group, or of all groups at this process's consumer proxy."""

from __future__ import annotations

from typing import Any

from backend.port import Backend
from ddmq.server.admin import keys
from ddmq.server.admin.search.keys import (
    KEYS_STEP,
    MISSING_MAX,
    KeyPosition,
    KeySelection,
    collect_page,
    complete_rows,
    find_missing,
    walk_keys,
)
from ddmq.server.http.pace import paced
from ddmq.server.http.paging import ItemPage, PageRequest
from ddmq_common.clock import Clock
from proxy_consumer.service import ConsumerService

_POSITION: Any = tuple[str, int, str, int, int, str]  # the types of a KeyPosition


def page_keys(
    backend: Backend, consumer: ConsumerService, clock: Clock, selection: KeySelection, page: PageRequest
) -> ItemPage:
    """Return a page of the keys that match, by group and position, with the counts of those behind its
    beginning by error, and the queues whose keys are not known here."""
    if selection.group is not None:
        keys.require_group(consumer, selection.group)
    names = consumer.ordered_groups() if selection.group is None else [selection.group]
    after = _read_position(page)
    keys_page = collect_page(paced(walk_keys(consumer, names, after), KEYS_STEP), selection, page.size)
    missing, unchecked = find_missing(backend, consumer, clock, names)
    by_error = keys_page.counts.as_rows()
    more = {
        "counted": keys_page.counts.total,
        "by_error": by_error,
        "by_error_others": keys_page.counts.total - sum(row["keys"] for row in by_error),
        "missing_queues": missing[:MISSING_MAX],
        "missing_queues_more": max(0, len(missing) - MISSING_MAX) + unchecked,
    }
    return ItemPage(
        complete_rows(consumer, keys_page),
        None if keys_page.next is None else page.encode_position(tuple(keys_page.next)),
        keys_page.counts.total if keys_page.complete and not page.after else None,
        exact=keys_page.complete and not missing and not unchecked,
        more=more,
    )


def page_group_keys(consumer: ConsumerService, group: str, page: PageRequest) -> ItemPage:
    """Load the keys of a group, and return a page of its blocked and parked keys."""
    keys.load_keys(consumer, group)
    selection = KeySelection(group=group, text=page.text)
    walk = walk_keys(consumer, [group], _read_position(page))
    keys_page = collect_page(paced(walk, KEYS_STEP), selection, page.size)
    return ItemPage(
        complete_rows(consumer, keys_page),
        None if keys_page.next is None else page.encode_position(tuple(keys_page.next)),
        keys_page.counts.total if keys_page.complete and not page.after else None,
        exact=keys_page.complete,
    )


def _read_position(page: PageRequest) -> KeyPosition:
    position = page.decode_position(_POSITION)
    return KeyPosition() if position is None else KeyPosition(*position)
