"""Pages of lists whose order is known without their rows, or which are short: only the rows of a page are
computed, or all rows are in memory anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backend.port import Backend
from ddmq.server.admin import dlq, offsets, topics
from ddmq.server.admin.changes.log import RecordedChange
from ddmq.server.admin.changes.service import RecordedChanges
from ddmq.server.admin.operations.plans import Plan
from ddmq.server.admin.operations.service import Operations
from ddmq.server.admin.transactions import AdminTransactions
from ddmq.server.delays.levels import count_levels
from ddmq.server.http.pace import paced
from ddmq.server.http.paging import ItemPage, PageRequest, select_page
from ddmq.server.http.routing import NoSuchGroupError
from ddmq_common import names
from ddmq_common.delays.levels import Levels
from ddmq_common.errors import UnknownTopicError
from ddmq_common.findings.rule import SEVERITIES

Row = dict[str, Any]


def page_topics(backend: Backend, page: PageRequest, *, internal: bool) -> ItemPage:
    """Return a page of the topics, by name."""
    matches = [
        info
        for info in backend.topics().values()
        if page.selects(info.name) and (internal or not names.is_internal(info.name))
    ]
    selected = select_page(matches, lambda info: info.name, str, page)
    return selected._replace(items=topics.list_rows(backend, selected.items))


def page_dead_letter_groups(backend: Backend, page: PageRequest) -> ItemPage:
    """Return a page of the groups that have a dead-letter topic, by name."""
    matches = [name for name in dlq.list_groups(backend) if page.selects(name)]
    selected = select_page(matches, str, str, page)
    rows = []
    for name in paced(selected.items):
        try:
            rows.append(dlq.describe_group(backend, name))
        except (NoSuchGroupError, UnknownTopicError):
            continue  # it was deleted meanwhile
    return selected._replace(items=rows)


def page_offsets(backend: Backend, group: str, topic: str | None, page: PageRequest) -> ItemPage:
    """Return a page of the group's progress, by topic and queue."""
    rows = [row for row in offsets.list_positions(backend, group, topic) if page.matches(row["topic"])]
    return select_page(rows, lambda row: (row["topic"], row["queue"]), tuple[str, int], page)


def page_levels(backend: Backend, levels: Levels, page: PageRequest) -> ItemPage:
    """Return a page of the delay levels."""
    rows = [row for row in count_levels(backend, levels) if page.matches(str(row["level"]))]
    return select_page(rows, lambda row: int(row["level"]), int, page)


def page_transactions(transactions: AdminTransactions, group: str | None, page: PageRequest) -> ItemPage:
    """Return a page of the open transactions, by the time at which they began."""
    rows, complete = transactions.collect_open(group, page.allows)
    matches = [row for row in rows if page.matches(row["transaction"], row["group"], *row["topics"])]
    selected = select_page(
        matches, lambda row: (row["began_ms"], row["transaction"]), tuple[int, str], page
    )  # fmt: skip
    return selected._replace(exact=complete, total=selected.total if complete else None)


def page_operations(
    operations: Operations, page: PageRequest, allows: Callable[[Plan], bool] | None = None
) -> ItemPage:
    """Return a page of the plans and operations that the caller may see, by the time of their plan."""
    rows = [
        row
        for row in operations.list_rows(allows)["operations"]
        if page.matches(row["id"], row["kind"], row["action"], row["state"])
    ]
    return select_page(rows, lambda row: (row["planned_ms"], row["id"]), tuple[int, str], page)


def page_changes(
    changes: RecordedChanges, page: PageRequest, allows: Callable[[RecordedChange], bool] | None = None
) -> ItemPage:
    """Return a page of the recorded changes that the caller may see, by their time."""
    rows = [
        row
        for row in changes.list_rows(allows)
        if page.matches(row["id"], row["who"], row["request"], row["kind"], row["object"])
    ]
    return select_page(rows, lambda row: (row["at_ms"], row["id"]), tuple[int, str], page)


def page_findings(answer: Mapping[str, Any], page: PageRequest) -> ItemPage:
    """Return a page of the findings of `answer`, which is form 1: by severity or by age."""

    def position_of(row: Row) -> tuple[int, int, str, str]:
        rank = SEVERITIES.index(row["severity"]) if page.sort == "severity" else 0
        return rank, row["since_ms"], row["id"], repr(sorted(row["labels"].items()))

    matches = [
        row for row in answer["items"] if page.matches(row["id"], row["text"], *row["labels"].values())
    ]
    selected = select_page(matches, position_of, tuple[int, int, str, str], page)
    missing = {row["name"]: row["admin"] for row in answer["missing"]}
    more = {name: answer[name] for name in ("health", "left_out", "unevaluated")}
    return selected._replace(exact=not missing and not answer["left_out"], missing=missing, more=more)
