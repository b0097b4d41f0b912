"""Declares how a route lists items in form 2: the items, the orders, and the names of its query."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ddmq.server.admin.contract.forms import FIRST, format_page, select_fields
from ddmq.server.http.paging import ITEMS_DEFAULT, ITEMS_MAX, ItemPage, PageRequest
from ddmq.server.http.parameters import VALUE_CHARS, Answer
from ddmq.server.http.routing import AdminRequest
from ddmq_common.errors import CallerError

REPLACEMENTS = {"limit": "count", "order": "sort"}  # in form 2
PAGE_NAMES = ("count", "after", "sort", "text", "fields")


@dataclass(frozen=True, eq=False)
class Listing:
    """Form 2 of a list.

    `item`: describes an item in form 1. `list_page`: gets the AdminApi, the request and the page, and returns
    an ItemPage, or the answer of another process. `sorts`: the allowed orders, the default first. `more`:
    describes the further keys of the answer. `first_form`: the names of PAGE_NAMES that form 1 has, too.
    `replaced`: names that only form 1 has. `count_min`: of a page.
    """

    item: type[Answer]
    list_page: Callable[[Any, AdminRequest, PageRequest], Any]
    sorts: tuple[str, ...] = ()
    more: type[Answer] | None = None
    first_form: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    count_min: int = 1

    def check_form(self, form: int, names: Iterable[str]) -> None:
        """Raise CallerError for a name of the query that the requested form does not have."""
        others = [name for name in PAGE_NAMES if name not in self.first_form]
        for name in names:
            if form == FIRST and name in others:
                raise CallerError(f"{name} is not for form 1 of this list; add form=2")
            if form != FIRST and name in self.replaced:
                use = f"; use {REPLACEMENTS[name]}" if name in REPLACEMENTS else ""
                allowed = ", ".join(PAGE_NAMES)
                raise CallerError(f"{name} is not for form 2 of this list{use} (allowed: {allowed})")

    def read_page(self, query: Any) -> PageRequest:
        """Return the page that a query asks for. Raises CallerError."""
        count = getattr(query, "count", None)
        if count is not None and count < self.count_min:
            raise CallerError(f"count is {count}; allowed: {self.count_min} or more")
        order = getattr(query, "sort", None) or next(iter(self.sorts), "")
        if self.sorts and order not in self.sorts:
            raise CallerError(f"sort is {order[:VALUE_CHARS]!r}; allowed: {', '.join(self.sorts)}")
        return PageRequest(
            size=ITEMS_DEFAULT if count is None else min(count, ITEMS_MAX),
            sort=order.removeprefix("-"),
            descending=order.startswith("-"),
            after=getattr(query, "after", None) or "",
            text=getattr(query, "text", None),
        )

    def format_answer(self, page: ItemPage, fields: str | None) -> dict[str, Any]:
        """Return the answer with a page, and of its items these fields only. Raises CallerError."""
        answer = format_page(self.item, self.more, page)
        if fields is not None:
            answer["items"] = select_fields(self.item, answer["items"], fields)
        return answer
