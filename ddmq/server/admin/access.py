"""Requests to the admin API are checked by rights: there is one rule for each route.

A rule has the rights that a request needs, by the names in its path, query and body. For a request by an id,
the object is looked up first; if the caller lacks the right to it, the answer is the one for an id that does
not exist. Listings and contents are narrowed after the handler: rows of names that the caller may not see are
left out, and bodies, keys and properties of topics that it may not browse are empty.

A request that another process has passed on (`forwarded`) is accepted from nodes alone, and answered by the
rights of the identity that it states (`ON_BEHALF`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from backend.port import Backend
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.operations.service import Operations
from ddmq.server.admin.transactions import AdminTransactions
from ddmq.server.delays.queries import DelayQueries
from ddmq.server.http.connection import JSON
from ddmq.server.http.oversight import ForbiddenError
from ddmq.server.http.parameters import Query
from ddmq.server.http.routing import (
    AdminRequest,
    NoSuchMessageError,
    NoSuchOperationError,
    Text,
)
from ddmq_common.errors import CallerError
from ddmq_common.security.callers import Caller
from proxy_consumer.service import ConsumerService

ALL = "*"  # the name that only the pattern * matches
INTERNAL = "%"  # a name that only administrators may access
PUSH_SETTINGS = frozenset(("actions", "push"))
CONTENTS = ("key", "tags", "preview", "body", "body_base64", "properties", "error", "contents")
Needs = Iterable[tuple[str, str]]  # rights and names, all of which are needed
May = Callable[[str, str], bool]


class AdminComponents(Protocol):
    """The components of the admin API that rules look names and objects up in."""

    backend: Backend
    transactions: AdminTransactions
    delays: DelayQueries
    operations: Operations

    @property
    def consumer(self) -> ConsumerService:
        """Return the consumer proxy of this process. Raises UnsupportedError."""


class RouteRule(NamedTuple):
    """The rights that a route needs. `narrow`: leaves out of an answer what the caller may not see."""

    needs: Callable[[AdminComponents, AdminRequest], Needs]
    narrow: Callable[[May, Any], Any] | None = None


class ConcealedError(Exception):
    """The caller may not know whether the object exists. `answer`: the one for an object that does not."""

    def __init__(self, answer: Any) -> None:
        super().__init__("concealed")
        self.answer = answer


def check_rules(routes: Iterable[Route]) -> None:
    """Raise ValueError if a route has no rule: who may make its requests?"""
    for route in routes:
        if (route.method, route.path) not in RULES:
            raise ValueError(f"route {route.method} {route.path} has no rule; who may use it?")


def answer_allowed(
    api: AdminComponents, route: Route, request: AdminRequest, answer: Callable[[AdminRequest], Any]
) -> Any:
    """Answer a request if its caller has the rights, and leave out what it may not see. Raises
    ForbiddenError."""
    caller = request.caller
    if caller is None:
        return answer(request)
    rule = RULES[route.method, route.path]
    may = _may_of(caller)
    try:
        for right, name in rule.needs(api, request):
            missing = caller.find_missing(right, name.encode("utf-8", "replace"))
            if missing is not None:
                raise ForbiddenError(missing)
        answered = answer(request)
        return answered if rule.narrow is None or isinstance(answered, Text) else rule.narrow(may, answered)
    except ConcealedError as concealed:
        return concealed.answer


def _may_of(caller: Caller) -> May:
    return lambda right, name: caller.may(right, name.encode("utf-8", "replace"))


# --- rights by the names of a request


def _need_right(right: str, *keys: str) -> RouteRule:
    """Return a rule for a right on the names in the path; without keys, for a right on the installation."""
    return RouteRule(lambda _, request: [(right, request.path[key]) for key in keys] or [(right, "")])


def _need_optional(right: str, name: str | None) -> list[tuple[str, str]]:
    return [] if name is None else [(right, name)]


def _change_topic(api: AdminComponents, request: AdminRequest) -> Needs:
    return [("create" if api.backend.topic(request.topic) is None else "manage", request.topic)]


def _change_group(api: AdminComponents, request: AdminRequest) -> Needs:
    group, body = request.group, request.body
    known = any(each.name == group for each in api.consumer.groups())
    yield ("manage" if known else "create"), group
    topics = [request.path["topic"]] if "topic" in request.path else body.get("topics")
    for topic in topics if isinstance(topics, list) else ():
        yield "consume", str(topic)
    unset = body.get("unset")
    stated = {*body, *(map(str, unset) if isinstance(unset, list) else ())}
    if any(name.split(".")[0] in PUSH_SETTINGS for name in stated):
        yield "push", ""


def _send(api: AdminComponents, request: AdminRequest) -> Needs:
    topic = request.body.topic
    yield "send", topic
    if api.backend.topic(topic) is None:
        yield "create", topic


def _by_group(right: str) -> Callable[[AdminComponents, AdminRequest], Needs]:
    """Return the needs of a request that may state a group; without one it is about all groups."""
    return lambda _, request: [(right, ALL if request.query.group is None else request.query.group)]


def _need_browse(_: AdminComponents, request: AdminRequest) -> Needs:
    return [("browse", request.topic), *_need_optional("describe", request.query.group)]


def _resend(_: AdminComponents, request: AdminRequest) -> Needs:
    return [("operate", request.group), ("send", ALL if request.body.topic is None else request.body.topic)]


def _end_transaction(api: AdminComponents, request: AdminRequest) -> Needs:
    group = api.transactions.show(request).get("group")
    if group is None or not (_may_of(_get_caller(request))("transact", group)):
        identity = request.path["id"]
        raise CallerError(f"transaction {identity[:80]} is not open, and how it ended is not known")
    return [("operate", group)]


def _change_delay(api: AdminComponents, request: AdminRequest) -> Needs:
    looked_up = AdminRequest({"id": request.path["id"]}, Query(), {}, "GET", "/delay/messages/{id}")
    row = api.delays.answer_anywhere(looked_up, api.delays.message)
    if isinstance(row, Text):
        row = msgspec.json.decode(row.payload)
    topic, caller = row.get("topic"), _get_caller(request)
    if not caller.is_admin and (topic is None or not _may_of(caller)("send", topic)):
        identity = request.path["id"]
        fields = {"id": identity, "outcome": "unknown", "fired_ms": None, "due_ms": None}
        text = f"there is no delayed message with this id: {identity}"
        raise ConcealedError(Text(JSON, msgspec.json.encode({"error": text} | fields), 404))
    return []


def _by_topic(right: str) -> Callable[[AdminComponents, AdminRequest], Needs]:
    return lambda _, request: _need_optional(right, request.query.topic)


def _backup(_: AdminComponents, request: AdminRequest) -> Needs:
    return [("backup" if request.body.shards is None else "node", "")]


def _operation_needs(kind: str, action: str, chosen: Mapping[str, Any], to_topic: bool) -> Needs:
    if kind == "delays":
        return [("send", chosen.get("topic") or ALL)]
    group = chosen.get("group")
    needs = [("operate", group if isinstance(group, str) else ALL)]
    if action == "resend":
        needs.append(("send", ALL if to_topic or not chosen.get("topic") else chosen["topic"]))
    return needs


def _plan_operation(_: AdminComponents, request: AdminRequest) -> Needs:
    body = request.body
    chosen = body.filter if isinstance(body.filter, dict) else {}
    return _operation_needs(body.kind, body.action, chosen, bool(body.to_topic))


def _known_operation(api: AdminComponents, request: AdminRequest) -> Needs:
    """Return no needs if the caller has the rights of the operation; else there is none with this id."""
    plan = api.operations.find_plan(request.path["id"])
    needs = [] if plan is None else _operation_needs(
        plan.kind, plan.action, plan.filter, bool(plan.options.get("to_topic"))
    )  # fmt: skip
    if not all(_may_of(_get_caller(request))(right, name) for right, name in needs):
        raise NoSuchOperationError(f"there is no operation {request.path['id'][:80]!r}")
    return []


def _get_caller(request: AdminRequest) -> Caller:
    assert request.caller is not None
    return request.caller


# --- what an answer leaves out


def _keep_rows(right: str, key: str) -> Callable[[May, Any], Any]:
    return lambda may, rows: [row for row in rows if may(right, row[key])]


def _mask_contents(may: May, value: Any) -> Any:
    """Empty the contents of messages of topics that the caller may not browse, at any depth."""
    if isinstance(value, list):
        return [_mask_contents(may, each) for each in value]
    if not isinstance(value, dict):
        return value
    topic = value.get("topic")
    hidden = isinstance(topic, str) and topic and not may("browse", topic)
    return {
        name: type(each)() if hidden and name in CONTENTS and each is not None else _mask_contents(may, each)
        for name, each in value.items()
    }


def _keep_groups(may: May, value: Any) -> Any:
    """Leave out the parts of a story about groups that the caller may not see."""
    if isinstance(value, list):
        return [_keep_groups(may, each) for each in value if _is_visible(may, each)]
    return (
        {name: _keep_groups(may, each) for name, each in value.items()} if isinstance(value, dict) else value
    )


def _is_visible(may: May, value: Any) -> bool:
    group = value.get("group") if isinstance(value, dict) else None
    return not isinstance(group, str) or not group or may("describe", group)


def _found_story(may: May, story: Any) -> Any:
    if not may("browse", story["topic"]):
        identity = story["id"]
        raise NoSuchMessageError(f"no message with id {identity}; it may be older than what is kept")
    return _keep_groups(may, story)


def _shown_transaction(may: May, row: Any) -> Any:
    group = row.get("group")
    if group is not None and not may("transact", group):
        return {"transaction": row["transaction"], "state": "unknown"}
    return _mask_contents(may, row)


def _shown_transactions(may: May, answer: Any) -> Any:
    rows = [row for row in answer["transactions"] if may("describe", row["group"])]
    return answer | {"transactions": rows}


def _keep_topics(may: May, answer: Any) -> Any:
    """Leave topics out of an overview of delayed messages, and count only the others."""
    kept = dict(answer)
    for name in ("topics", "set_aside", "held"):
        if name in kept:
            kept[name] = {topic: each for topic, each in kept[name].items() if may("describe", topic)}
    if "topics" in kept:
        kept["pending"] = sum(kept["topics"].values())
    return _mask_contents(may, kept)


def _shown_delay(may: May, row: Any) -> Any:
    topic = row.get("topic")
    if topic is not None and not may("browse", topic):
        return {"uuid": row["uuid"], "shard": row["shard"], "state": "unknown"}
    return row


_OPEN = RouteRule(lambda *_: ())
_METRICS = _need_right("metrics")
_DESCRIBE_ALL = RouteRule(lambda *_: [("describe", ALL)])
RULES: dict[tuple[str, str], RouteRule] = {
    ("GET", "/health"): _OPEN,
    ("GET", "/ready"): _OPEN,
    ("GET", "/openapi.json"): _OPEN,
    ("GET", "/metrics"): _METRICS,
    ("GET", "/stats"): _METRICS,
    ("GET", "/usage"): _METRICS,
    ("GET", "/findings"): _METRICS,
    ("GET", "/snapshot"): _METRICS,
    ("GET", "/events"): _METRICS,
    ("GET", "/history"): _METRICS,
    ("GET", "/topics"): RouteRule(
        lambda _, request: [("describe", INTERNAL)] if request.query.internal else []
    ),
    ("GET", "/topics/{topic}"): _need_right("describe", "topic"),
    ("POST", "/topics/{topic}"): RouteRule(_change_topic),
    ("DELETE", "/topics/{topic}"): _need_right("manage", "topic"),
    ("GET", "/topics/{topic}/messages"): RouteRule(_need_browse),
    ("GET", "/topics/{topic}/story"): RouteRule(_need_browse, _keep_groups),
    ("POST", "/messages"): RouteRule(_send),
    ("GET", "/messages/{id}"): RouteRule(
        lambda _, request: _need_optional("describe", request.query.group), _keep_rows("browse", "topic")
    ),
    ("GET", "/messages/{id}/story"): RouteRule(
        lambda _, request: _need_optional("describe", request.query.group), _found_story
    ),
    ("GET", "/groups"): _OPEN,
    ("GET", "/lag"): RouteRule(lambda _, request: _need_optional("describe", request.query.group)),
    ("GET", "/groups/{group}"): RouteRule(_need_right("describe", "group").needs, _mask_contents),
    ("POST", "/groups/{group}"): RouteRule(_change_group, _mask_contents),
    ("POST", "/groups/{group}/topics/{topic}"): RouteRule(_change_group, _mask_contents),
    ("DELETE", "/groups/{group}"): _need_right("manage", "group"),
    ("GET", "/groups/{group}/offsets"): _need_right("describe", "group"),
    ("POST", "/groups/{group}/offsets"): _need_right("operate", "group"),
    ("GET", "/groups/{group}/keys"): RouteRule(_need_right("describe", "group").needs, _mask_contents),
    ("POST", "/groups/{group}/keys"): _need_right("operate", "group"),
    ("GET", "/keys"): RouteRule(_by_group("describe"), _mask_contents),
    ("GET", "/dlq"): _OPEN,
    ("GET", "/dlq/{group}"): RouteRule(_need_right("describe", "group").needs, _mask_contents),
    ("GET", "/dlq/{group}/facets"): _need_right("describe", "group"),
    ("POST", "/dlq/{group}/resend"): RouteRule(_resend),
    ("POST", "/dlq/{group}/purge"): _need_right("operate", "group"),
    ("GET", "/transactions"): RouteRule(_by_group("describe"), _shown_transactions),
    ("GET", "/transactions/{id}"): RouteRule(lambda *_: (), _shown_transaction),
    ("POST", "/transactions/{id}"): RouteRule(_end_transaction),
    ("GET", "/delay"): RouteRule(lambda *_: (), _keep_topics),
    ("GET", "/delay/messages"): RouteRule(_by_topic("describe"), _keep_topics),
    ("GET", "/delay/messages/{id}"): RouteRule(lambda *_: (), _shown_delay),
    ("POST", "/delay/messages/{id}"): RouteRule(_change_delay),
    ("GET", "/delay/count"): RouteRule(_by_topic("describe"), _keep_topics),
    ("GET", "/delay/levels"): _DESCRIBE_ALL,
    ("POST", "/delay/backup"): RouteRule(_backup),
    ("POST", "/operations"): RouteRule(_plan_operation),
    ("GET", "/operations"): _DESCRIBE_ALL,
    ("GET", "/operations/{id}"): RouteRule(_known_operation),
    ("POST", "/operations/{id}/start"): RouteRule(_known_operation),
    ("POST", "/operations/{id}/stop"): RouteRule(_known_operation),
}
