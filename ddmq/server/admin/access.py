"""Requests to the admin API are checked by rights: there is one rule for each route.

A rule has the rights that a request needs, by the names in its path, query and body. For a request by an id,
the object is looked up first; if the caller lacks the right to it, the answer is the one for an id that does
not exist. Lists have only the names that the caller may see (`AdminRequest.visible`), in both forms. Answers
are narrowed after the handler, in form 1 and with all fields: bodies, keys and properties of topics that the
caller may not browse are empty.

A request that another process has passed on (`forwarded`) is accepted from nodes alone, and answered by the
rights of the identity that it states (`ON_BEHALF`).

All rules are in one module, because whoever adds a route must see those of similar routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from backend.port import Backend
from ddmq.server.admin.changes.log import RecordedChange
from ddmq.server.admin.changes.service import RecordedChanges, no_such_change
from ddmq.server.admin.contract.rights import ADMIN
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.operations.plans import Plan
from ddmq.server.admin.operations.service import Operations, no_such_operation
from ddmq.server.admin.transactions import AdminTransactions
from ddmq.server.delays.choice import reads_contents
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.delays.queries import DelayQueries
from ddmq.server.http.connection import JSON
from ddmq.server.http.oversight import ForbiddenError, OverQuotaError
from ddmq.server.http.parameters import Query
from ddmq.server.http.routing import (
    AdminRequest,
    NoSuchMessageError,
    Text,
)
from ddmq_client.idl.codes import FROM_CHRONOS
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DdmqError
from ddmq_common.security.callers import Caller, LoginRejectedError
from ddmq_common.security.rights import EVERY_NAME
from proxy_consumer.service import ConsumerService

INTERNAL = "%"  # a name that only administrators may access
PUSH_SETTINGS = frozenset(("actions", "push"))
NO_IDENTITY = "the request has no identity: it needs a token (the header Authorization: Bearer TOKEN)"
CONTENTS = ("key", "tags", "preview", "body", "body_base64", "properties", "error", "contents")
Needs = Iterable[tuple[str, str]]  # rights and names, all of which are needed
May = Callable[[str, str], bool]


class AdminComponents(Protocol):
    """The components of the admin API that rules look names and objects up in."""

    backend: Backend
    clock: Clock
    transactions: AdminTransactions
    delay_owners: DelayOwners
    delays: DelayQueries
    operations: Operations
    changes: RecordedChanges

    @property
    def consumer(self) -> ConsumerService:
        """Return the consumer proxy of this process. Raises UnsupportedError."""


class RouteRule(NamedTuple):
    """The rights that a route needs. `narrow`: leaves out of an answer what the caller may not see.
    `conceals`: the right without which `narrow` answers as if the object did not exist. `count_created`:
    returns how many topics and subscriptions the request makes. `is_public`: requests without an identity are
    answered; others are rejected, also if their answer would only be empty."""

    needs: Callable[[AdminComponents, AdminRequest], Needs]
    narrow: Callable[[May, Any], Any] | None = None
    conceals: str = ""
    count_created: Callable[[AdminComponents, AdminRequest], int] | None = None
    is_public: bool = False


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
    """Answer a request if its caller has the rights. Raises ForbiddenError, or LoginRejectedError if
    the caller has no identity, so that the console asks for a token, and OverQuotaError."""
    caller = request.caller
    if caller is None:
        return answer(request)
    rule = RULES[route.method, route.path]
    if not caller.name and not rule.is_public:
        raise LoginRejectedError(_describe_no_identity(api, rule, request))
    try:
        missing = _find_missing(api, rule, request)
        if missing is not None:
            raise ForbiddenError(missing)
        if rule.count_created is not None and not request.on_behalf:
            over = caller.usage.count_creation(api.clock.monotonic(), rule.count_created(api, request))
            if over is not None:
                raise OverQuotaError(over)
        return answer(request)
    except ConcealedError as concealed:
        return concealed.answer


def _find_missing(api: AdminComponents, rule: RouteRule, request: AdminRequest) -> str | None:
    """Return the sentence about the first missing right of a request; None if its caller has all of them."""
    caller = _get_caller(request)
    sentences = (
        caller.find_missing(right, name.encode("utf-8", "replace"))
        for right, name in rule.needs(api, request)
    )
    return next((each for each in sentences if each is not None), None)


def _describe_no_identity(api: AdminComponents, rule: RouteRule, request: AdminRequest) -> str:
    """Return why a request without an identity is rejected; it does not say whether an object exists."""
    try:
        return _find_missing(api, rule, request) or NO_IDENTITY
    except (ConcealedError, DdmqError):
        return NO_IDENTITY


def narrow_for(route: Route, request: AdminRequest) -> Callable[[Any], Any] | None:
    """Return the function that leaves out of the route's answer what the caller may not see; None if it may
    see everything."""
    rule = RULES[route.method, route.path]
    if rule.narrow is None or request.caller is None:
        return None
    may = _may_of(request.caller)
    return partial(rule.narrow, partial(_may_or_record, request, rule.conceals) if rule.conceals else may)


def allowed_plans(request: AdminRequest) -> Callable[[Plan], bool] | None:
    """Return a function that says whether the caller may see a plan; None: it may see all.

    It may if it may describe the topic and the group of the plan, or if it could have made the plan.
    """
    if request.caller is None or request.caller.is_admin:
        return None
    may = _may_of(request.caller)
    return lambda plan: _has_all(may, _plan_names(plan.filter)) or _has_all(may, _plan_needs(plan))


def allowed_changes(request: AdminRequest) -> Callable[[RecordedChange], bool] | None:
    """Return a function that says whether the caller may see a recorded change; None: it may see all."""
    if request.caller is None or request.caller.is_admin:
        return None
    may = _may_of(request.caller)
    return lambda change: _has_all(may, _change_names(change))


def _may_of(caller: Caller) -> May:
    return lambda right, name: caller.has_right(right, name.encode("utf-8", "replace"))


def _may_or_record(request: AdminRequest, concealing: str, right: str, name: str) -> bool:
    """Return whether the caller has a right; record it if the lack of it conceals an object."""
    caller = _get_caller(request)
    may = _may_of(caller)(right, name)
    if not may and right == concealing:
        _record_concealed(request, right, name)
    return may


def _record_concealed(request: AdminRequest, right: str, name: str) -> None:
    """Record a missing right of which the answer says nothing."""
    missing = _get_caller(request).find_missing(right, name.encode("utf-8", "replace"))
    if missing is not None and request.concealed is not None:
        request.concealed.append(missing)


def _conceal_missing(request: AdminRequest, needs: Needs) -> None:
    """Record the first of these rights that the caller lacks."""
    may = _may_of(_get_caller(request))
    for right, name in needs:
        if not may(right, name):
            _record_concealed(request, right, name)
            return


# --- rights by the names of a request


def _need_right(right: str, *keys: str) -> RouteRule:
    """Return a rule for a right on the names in the path; without keys, for a right on the installation."""
    return RouteRule(lambda _, request: [(right, request.path[key]) for key in keys] or [(right, "")])


def _need_optional(right: str, name: str | None) -> list[tuple[str, str]]:
    return [] if name is None else [(right, name)]


def _change_topic(api: AdminComponents, request: AdminRequest) -> Needs:
    return [("create" if api.backend.topic(request.topic) is None else "manage", request.topic)]


def _count_new_topic(api: AdminComponents, request: AdminRequest) -> int:
    return int(api.backend.topic(request.topic) is None)


def _count_new_subscriptions(api: AdminComponents, request: AdminRequest) -> int:
    summary = api.consumer.find_group(request.group)
    stated = [request.path["topic"]] if "topic" in request.path else request.body.get("topics")
    topics = {str(topic) for topic in stated} if isinstance(stated, list) else set()
    return len(topics.difference(() if summary is None else summary.topics))


def _count_sent_topic(api: AdminComponents, request: AdminRequest) -> int:
    return int(api.backend.topic(request.body.topic) is None)


def _change_group(api: AdminComponents, request: AdminRequest) -> Needs:
    group, body = request.group, request.body
    exists = any(each.name == group for each in api.consumer.groups())
    yield ("manage" if exists else "create"), group
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
    if FROM_CHRONOS in (request.body.properties or {}):
        yield "relay", ""


def _by_group(right: str) -> Callable[[AdminComponents, AdminRequest], Needs]:
    """Return the needs of a request that may state a group; without one it is about all groups."""
    return lambda _, request: [(right, EVERY_NAME if request.query.group is None else request.query.group)]


def _by_group_and_text(_: AdminComponents, request: AdminRequest) -> Needs:
    """Return the needs of a request for keys or dead letters: a search in their contents needs browse."""
    group = request.path.get("group") or getattr(request.query, "group", None)
    right = "describe" if getattr(request.query, "text", None) is None else "browse"
    return [(right, EVERY_NAME if group is None else group)]


def _need_browse(_: AdminComponents, request: AdminRequest) -> Needs:
    return [("browse", request.topic), *_need_optional("describe", request.query.group)]


def _resend(_: AdminComponents, request: AdminRequest) -> Needs:
    return [
        ("operate", request.group),
        ("send", EVERY_NAME if request.body.topic is None else request.body.topic),
    ]


def _end_transaction(api: AdminComponents, request: AdminRequest) -> Needs:
    group = api.transactions.show(request).get("group")
    if group is None or not (_may_of(_get_caller(request))("transact", group)):
        if group is not None:
            _record_concealed(request, "transact", group)
        identity = request.path["id"]
        raise CallerError(f"transaction {identity[:80]} is not open, and how it ended is not known")
    return [("operate", group)]


def _change_delay(api: AdminComponents, request: AdminRequest) -> Needs:
    looked_up = AdminRequest({"id": request.path["id"]}, Query(), {}, "GET", "/delay/messages/{id}")
    row = api.delay_owners.answer_anywhere(looked_up, api.delays.message)
    if isinstance(row, Text):
        row = msgspec.json.decode(row.payload)
    topic, caller = row.get("topic"), _get_caller(request)
    if not caller.is_admin and (topic is None or not _may_of(caller)("send", topic)):
        if topic is not None:
            _record_concealed(request, "send", topic)
        identity = request.path["id"]
        fields = {"id": identity, "outcome": "unknown", "fired_ms": None, "due_ms": None}
        text = f"there is no delayed message with this id: {identity}"
        raise ConcealedError(Text(JSON, msgspec.json.encode({"error": text} | fields), 404))
    return []


def _choose_delays(_: AdminComponents, request: AdminRequest) -> Needs:
    right = "browse" if reads_contents(request.query) else "describe"
    return _need_optional(right, request.query.topic)


def _backup(_: AdminComponents, request: AdminRequest) -> Needs:
    return [("backup" if request.body.shards is None else "node", "")]


def _operation_needs(kind: str, action: str, chosen: Mapping[str, Any], to_topic: bool) -> Needs:
    """Return the needs of a plan. A filter on contents needs browse, too: its count tells them."""
    topic = chosen.get("topic")
    topic = topic if isinstance(topic, str) and topic else EVERY_NAME
    if kind == "delays":
        return [("send", topic), *([("browse", topic)] if "key" in chosen else ())]
    group = chosen.get("group")
    group = group if isinstance(group, str) else EVERY_NAME
    needs = [("operate", group)]
    if "text" in chosen:
        needs.append(("browse", group))
    if action == "resend":
        needs.append(("send", EVERY_NAME if to_topic else topic))
    return needs


def _plan_operation(_: AdminComponents, request: AdminRequest) -> Needs:
    body = request.body
    filters = body.filter if isinstance(body.filter, dict) else {}
    return _operation_needs(body.kind, body.action, filters, bool(body.to_topic))


def _plan_needs(plan: Plan) -> Needs:
    """Return the rights of those who could have made a plan."""
    return _operation_needs(plan.kind, plan.action, plan.filter, bool(plan.options.get("to_topic")))


def _plan_names(chosen: Mapping[str, Any]) -> Needs:
    """Return the rights to describe the topic and the group that a filter states; of all without any."""
    names = [chosen[key] for key in ("group", "topic") if isinstance(chosen.get(key), str)]
    return [("describe", name) for name in names or [EVERY_NAME]]


def _show_operation(api: AdminComponents, request: AdminRequest) -> Needs:
    """Return no needs if the caller may see the operation. Raises NoSuchOperationError if it may not."""
    allows = allowed_plans(request)
    plan = api.operations.find_plan(request.path["id"])
    if plan is not None and allows is not None and not allows(plan):
        _conceal_missing(request, _plan_names(plan.filter))
        raise no_such_operation(request.path["id"])
    return []


def _change_operation(api: AdminComponents, request: AdminRequest) -> Needs:
    _show_operation(api, request)
    plan = api.operations.find_plan(request.path["id"])
    return [] if plan is None else _plan_needs(plan)


def _change_names(change: RecordedChange) -> Needs:
    """Return the rights with which a change is visible: those to describe its topic or group. A key is
    visible to those who may operate the group."""
    names = change.path
    if change.kind == "operation":
        return (
            _plan_names(change.after["filter"])
            if isinstance(change.after, dict)
            else [("describe", EVERY_NAME)]
        )
    if "group" in names:
        return [("operate" if change.kind == "key" else "describe", names["group"])]
    return [("describe", names.get("topic", EVERY_NAME))]


def _show_change(api: AdminComponents, request: AdminRequest) -> Needs:
    """Return no needs if the caller may see the change. Raises NoSuchChangeError if it may not."""
    allows = allowed_changes(request)
    change = api.changes.log.get(request.path["id"])
    if change is not None and allows is not None and not allows(change):
        _conceal_missing(request, _change_names(change))
        raise no_such_change(request.path["id"])
    return []


def _undo_change(api: AdminComponents, request: AdminRequest) -> Needs:
    """Return the rights of the request that an undo is; a change that cannot be undone needs those, too."""
    _show_change(api, request)
    change = api.changes.log.get(request.path["id"])
    if change is None:
        return
    names = change.path
    if change.kind.startswith(("topic", "subscription", "group")):
        yield "manage", names.get("group") or names["topic"]
    else:
        yield "operate", names.get("group", EVERY_NAME)
    if change.kind == "subscription":
        yield "consume", names["topic"]
        if any(name.split(".")[0] in PUSH_SETTINGS for name in _changed_settings(change)):
            yield "push", ""


def _changed_settings(change: RecordedChange) -> set[str]:
    """Return the names of the settings of a subscription that a change has changed."""
    before, after = (
        state["settings"] if isinstance(state, dict) else {} for state in (change.before, change.after)
    )
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def _explain_right(_: AdminComponents, request: AdminRequest) -> Needs:
    """Return no needs if the caller asks about itself."""
    return [] if request.query.identity == _get_caller(request).name else [(ADMIN, "")]


def _has_all(may: May, needs: Needs) -> bool:
    return all(may(right, name) for right, name in needs)


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


def _keep_topics(may: May, answer: Any) -> Any:
    """Leave topics out of an overview of delayed messages, and count only the others."""
    if not isinstance(answer, Mapping):  # the rows of a page
        return _mask_contents(may, answer)
    overview = dict(answer)
    for name in ("topics", "set_aside", "held"):
        if name in overview:
            overview[name] = {topic: each for topic, each in overview[name].items() if may("describe", topic)}
    if "topics" in overview:
        overview["pending"] = sum(overview["topics"].values())
    return _mask_contents(may, overview)


def _shown_delay(may: May, row: Any) -> Any:
    topic = row.get("topic")
    if topic is not None and not may("browse", topic):
        return {"uuid": row["uuid"], "shard": row["shard"], "state": "unknown"}
    return row


def _mask_sample(may: May, row: Any) -> Any:
    return row | {"sample": _mask_contents(may, row["sample"])}


_PUBLIC = RouteRule(lambda *_: (), is_public=True)
_OPEN = RouteRule(lambda *_: ())
_METRICS = _need_right("metrics")
_ADMIN = _need_right(ADMIN)
_DESCRIBE_ALL = RouteRule(lambda *_: [("describe", EVERY_NAME)])
RULES: dict[tuple[str, str], RouteRule] = {
    ("GET", "/health"): _PUBLIC,
    ("GET", "/ready"): _PUBLIC,
    ("GET", "/openapi.json"): _PUBLIC,
    ("GET", "/metrics"): _METRICS,
    ("GET", "/stats"): _METRICS,
    ("GET", "/usage"): _METRICS,
    ("GET", "/findings"): _METRICS,
    ("GET", "/snapshot"): _METRICS,
    ("GET", "/events"): _METRICS,
    ("GET", "/history"): _METRICS,
    ("GET", "/processes"): _METRICS,
    ("GET", "/clients"): RouteRule(lambda _, request: _need_optional("describe", request.query.group)),
    ("GET", "/config"): _METRICS,
    ("GET", "/log"): _METRICS,
    ("POST", "/log/clean"): RouteRule(lambda *_: [("manage", EVERY_NAME)]),
    ("GET", "/topics"): RouteRule(
        lambda _, request: [("describe", INTERNAL)] if request.query.internal else []
    ),
    ("GET", "/topics/{topic}"): _need_right("describe", "topic"),
    ("POST", "/topics/{topic}"): RouteRule(_change_topic, count_created=_count_new_topic),
    ("DELETE", "/topics/{topic}"): _need_right("manage", "topic"),
    ("GET", "/topics/{topic}/messages"): RouteRule(_need_browse),
    ("POST", "/topics/{topic}/search"): _need_right("browse", "topic"),
    ("GET", "/retries"): RouteRule(lambda _, request: [("browse", request.query.group)]),
    ("POST", "/retries"): RouteRule(lambda _, request: [("operate", request.body.group)]),
    ("GET", "/topics/{topic}/story"): RouteRule(_need_browse, _keep_groups),
    ("POST", "/messages"): RouteRule(_send, count_created=_count_sent_topic),
    ("GET", "/messages/{id}"): RouteRule(
        lambda _, request: _need_optional("describe", request.query.group),
        _keep_rows("browse", "topic"),
        "browse",
    ),
    ("GET", "/messages/{id}/story"): RouteRule(
        lambda _, request: _need_optional("describe", request.query.group), _found_story, "browse"
    ),
    ("GET", "/groups"): _OPEN,
    ("GET", "/lag"): RouteRule(lambda _, request: _need_optional("describe", request.query.group)),
    ("GET", "/groups/{group}"): RouteRule(_need_right("describe", "group").needs, _mask_contents),
    ("POST", "/groups/{group}"): RouteRule(
        _change_group, _mask_contents, count_created=_count_new_subscriptions
    ),
    ("POST", "/groups/{group}/topics/{topic}"): RouteRule(
        _change_group, _mask_contents, count_created=_count_new_subscriptions
    ),
    ("DELETE", "/groups/{group}"): _need_right("manage", "group"),
    ("GET", "/groups/{group}/offsets"): _need_right("describe", "group"),
    ("POST", "/groups/{group}/offsets"): _need_right("operate", "group"),
    ("GET", "/groups/{group}/keys"): RouteRule(_by_group_and_text, _mask_contents),
    ("POST", "/groups/{group}/keys"): _need_right("operate", "group"),
    ("GET", "/keys"): RouteRule(_by_group_and_text, _mask_contents),
    ("GET", "/dlq"): _OPEN,
    ("GET", "/dlq/{group}"): RouteRule(_by_group_and_text, _mask_contents),
    ("GET", "/dlq/{group}/facets"): RouteRule(_by_group_and_text),
    ("GET", "/dlq/{group}/export"): _need_right("browse", "group"),
    ("POST", "/dlq/{group}/resend"): RouteRule(_resend),
    ("POST", "/dlq/{group}/purge"): _need_right("operate", "group"),
    ("GET", "/transactions"): RouteRule(_by_group("describe")),
    ("GET", "/transactions/{id}"): RouteRule(lambda *_: (), _shown_transaction, "transact"),
    ("POST", "/transactions/{id}"): RouteRule(_end_transaction),
    ("GET", "/delay"): RouteRule(lambda *_: (), _keep_topics),
    ("GET", "/delay/messages"): RouteRule(_choose_delays, _keep_topics),
    ("GET", "/delay/messages/{id}"): RouteRule(lambda *_: (), _shown_delay, "browse"),
    ("POST", "/delay/messages/{id}"): RouteRule(_change_delay),
    ("GET", "/delay/count"): RouteRule(_choose_delays, _keep_topics),
    ("GET", "/delay/histogram"): RouteRule(
        lambda _, request: [("describe", EVERY_NAME if request.query.topic is None else request.query.topic)]
    ),
    ("GET", "/delay/levels"): _DESCRIBE_ALL,
    ("POST", "/delay/backup"): RouteRule(_backup),
    ("POST", "/operations"): RouteRule(_plan_operation, _mask_sample),
    ("GET", "/operations"): _OPEN,
    ("GET", "/operations/{id}"): RouteRule(_show_operation, _mask_sample),
    ("POST", "/operations/{id}/start"): RouteRule(_change_operation, _mask_sample),
    ("POST", "/operations/{id}/stop"): RouteRule(_change_operation, _mask_sample),
    ("GET", "/changes"): _OPEN,
    ("GET", "/changes/{id}"): RouteRule(_show_change),
    ("POST", "/changes/{id}/undo"): RouteRule(_undo_change),
    ("GET", "/auth"): _PUBLIC,
    ("GET", "/auth/identities"): _OPEN,
    ("GET", "/auth/tokens"): _OPEN,
    ("POST", "/auth/tokens"): _ADMIN,
    ("DELETE", "/auth/tokens/{id}"): _ADMIN,
    ("GET", "/auth/explain"): RouteRule(_explain_right),
    ("GET", "/auth/audit"): _ADMIN,
}
