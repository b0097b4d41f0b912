"""A route of the admin API, as its table declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec

from ddmq.server.admin.contract.bodies import SettingsBody
from ddmq.server.admin.contract.forms import FIRST, select_fields, to_second_form
from ddmq.server.admin.contract.listing import Listing
from ddmq.server.admin.contract.queries import FormQuery
from ddmq.server.http.parameters import Answer, Body, Query
from ddmq.server.http.routing import AdminRequest, Text
from ddmq.server.http.streams import EventStream


@dataclass(frozen=True, eq=False)
class Route:
    """One route of the admin API. Its functions get the AdminApi and the request.

    `text`: its answer or effect, for docs/admin-api.md. `query`, `body`: what declares them. Without a query,
    the answer has only one form, and probes and scrapes may have any query. `right`: the rights that it will
    need (rights.py). `answer`: the type that describes form 1 of its answer (answers.py); `listing`: form 2
    of a list. `version`: returns the version of what the request is about. `errors`: the types that describe
    errors with further keys, by status; None: they have none, but this status is one that such a request has
    besides those of its kind.
    """

    method: str
    path: str
    text: str
    handler: Callable[[Any, AdminRequest], Any]
    query: type[Query] | None = FormQuery
    body: type[Body] | SettingsBody | None = None
    _: KW_ONLY
    right: str
    answer: Any
    version: Callable[[Any, AdminRequest], str] | None = None
    errors: Mapping[int, type[Answer] | None] = field(default_factory=dict)
    listing: Listing | None = None

    def answer_request(
        self, api: Any, request: AdminRequest, narrow: Callable[[Any], Any] | None = None
    ) -> Any:
        """Return the answer in the requested form, with the requested fields only. Raises DdmqError.

        `narrow`: leaves out of an answer in form 1, and of the items and further keys of a page, what the
        caller may not see.
        """
        query = request.query
        if self.listing is not None and isinstance(query, FormQuery) and query.form != FIRST:
            requested = self.listing.read_page(query)._replace(allows=request.visible())
            page = self.listing.list_page(api, request, requested)
            if isinstance(page, Text):
                return page
            if narrow is not None:
                page = page._replace(items=narrow(page.items), more=narrow(page.more))
            return self.listing.format_answer(page, query.fields)
        answer = self.handler(api, request)
        if isinstance(answer, Text | EventStream):
            return answer
        if narrow is not None:
            answer = narrow(answer)
        if not isinstance(query, FormQuery):
            return answer
        if isinstance(answer, msgspec.Struct) and (query.form != FIRST or query.fields is not None):
            answer = msgspec.to_builtins(answer)
        if query.form != FIRST:
            answer = to_second_form(self.answer, answer)
        return answer if query.fields is None else select_fields(self.answer, [answer], query.fields)[0]
