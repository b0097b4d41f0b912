"""A route of the admin API, as its table declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ddmq.server.admin.contract.bodies import SettingsBody
from ddmq.server.http.parameters import Answer, Body, Query
from ddmq.server.http.routing import AdminRequest


@dataclass(frozen=True, eq=False)
class Route:
    """One route of the admin API. Its functions get the AdminApi and the request.

    `text`: its answer or effect, for docs/admin-api.md. `query`, `body`: what declares them; None: there is
    none, but probes and scrapes may have any query. `right`: the rights that it will need (rights.py).
    `answer`: the type that describes its answer (answers.py). `version`: returns the version of what the
    request is about. `errors`: the types that describe errors with further keys, by status; None: they have
    none, but this status is one that such a request has besides those of its kind.
    """

    method: str
    path: str
    text: str
    handler: Callable[[Any, AdminRequest], Any]
    query: type[Query] | None = None
    body: type[Body] | SettingsBody | None = None
    _: KW_ONLY
    right: str
    answer: Any
    version: Callable[[Any, AdminRequest], str] | None = None
    errors: Mapping[int, type[Answer] | None] = field(default_factory=dict)
