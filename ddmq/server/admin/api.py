"""The admin HTTP API: one table of what it answers. docs/admin-api.md describes them at length."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gevent
import msgspec

from backend.port import Backend, Health
from ddmq.server.admin import dlq, dlq_changes, keys, offsets, topics
from ddmq.server.admin.bodies import (
    DeadLetterPurgeBody,
    DeadLetterResendBody,
    DelayBackupBody,
    DelayChangeBody,
    KeyActionBody,
    MessageSendBody,
    OffsetResetBody,
    TransactionEndBody,
)
from ddmq.server.admin.figures import MetricsPage, OtherProcesses
from ddmq.server.admin.groups import AdminGroups
from ddmq.server.admin.messages import MessageSearch
from ddmq.server.admin.producer_calls import ProducerCalls
from ddmq.server.admin.sends import send_message
from ddmq.server.admin.transactions import AdminTransactions
from ddmq.server.config import BACKUPS
from ddmq.server.delays.changes import change_message
from ddmq.server.delays.levels import count_levels
from ddmq.server.delays.queries import DelayQueries
from ddmq.server.http.pace import paced
from ddmq.server.http.parameters import Body, check_names, read_body
from ddmq.server.http.routing import (
    FORWARDED,
    NO_LISTINGS,
    AdminRequest,
    AdminRouter,
    Text,
    UncertainOutcomeError,
)
from ddmq.server.story.answer import StoryQueries
from ddmq_common.clock import Clock
from ddmq_common.delays.levels import DEFAULT_LEVELS, Levels
from ddmq_common.errors import CallerError, RemoteError, TryLaterError, UnsupportedError
from ddmq_common.metrics.registry import Registry
from delay_service.service import DelayService
from proxy_consumer.service import ConsumerService
from proxy_producer.service import ProducerService

T = TypeVar("T")
CATCH_UP_PAUSES_S = (0.1, 0.3, 1.0, 0.0)  # between tries


class AdminApi:
    """The routes of the admin API over the parts of one process; `consumer` and `producer` are None if such a
    proxy runs elsewhere.

    `names`: the host names by which clients reach the server, besides loopback. `backups`: the folder for
    backups. `others`: the processes whose counters are added to the answer. `levels`: the delay levels.
    """

    def __init__(
        self,
        backend: Backend,
        consumer: ConsumerService | None,
        metrics: Registry,
        clock: Clock,
        health: Callable[[], Health],
        timers: DelayService | None = None,
        names: Iterable[str] = (),
        backups: Path = Path(BACKUPS),
        others: OtherProcesses | None = None,
        levels: Levels = DEFAULT_LEVELS,
        producer: ProducerService | None = None,
    ) -> None:
        self.backend = backend
        self.levels = levels
        self._consumer = consumer
        self._metrics = metrics
        self.clock = clock
        self.health = health
        self._others = others or OtherProcesses()
        self._groups = None if consumer is None else AdminGroups(backend, consumer, metrics, clock)
        self.delays = DelayQueries(backend, timers, clock, backups)
        self.calls = ProducerCalls(backend, producer, clock, self._others, self.delays.list_other_addresses)
        self.messages = MessageSearch(backend, None if consumer is None else consumer.message_state)
        self.transactions = AdminTransactions(backend, clock)
        self.stories = StoryQueries(
            backend,
            None if consumer is None else consumer.message_state,
            None if consumer is None else consumer.explain_waits,
            self.delays.fetch_message,
        )
        self.page = MetricsPage(metrics, clock)
        self.router = AdminRouter(names)
        for route in ROUTES:
            self.router.add(route.method, route.path, partial(self._answer_route, route))

    def _answer_route(self, route: Route, request: AdminRequest) -> Any:
        request = check_parameters(route, request)
        try:
            if route.method != "GET":
                self._catch_up()
            return route.handler(self, request)
        except UncertainOutcomeError:
            raise
        except (TimeoutError, RemoteError) as error:
            health = self.backend.health()
            if health.ready:
                raise
            raise TryLaterError(f"{error}: {health.reason}") from error

    def _catch_up(self) -> None:
        """Wait until changes made by other processes are visible here. Retries, because the leadership of the
        log may be moving."""
        for pause_s in CATCH_UP_PAUSES_S:
            try:
                return self.backend.caught_up().wait(topics.WAIT_S)
            except RemoteError as error:
                failed, health = error, self.backend.health()
                if not health.ready:  # it will not be soon
                    raise TryLaterError(f"nothing was changed, try again: {health.reason}") from error
                gevent.sleep(pause_s)
        raise TryLaterError(f"nothing was changed, try again: {failed}") from failed

    @property
    def groups(self) -> AdminGroups:
        return _require_consumer(self._groups)

    @property
    def consumer(self) -> ConsumerService:
        return _require_consumer(self._consumer)

    def stats(self, request: AdminRequest) -> Any:
        if FORWARDED in request.query:
            return {"counters": self._metrics.snapshot(paced)}
        answer: dict[str, Any] = {"health": health_fields(self.health()), "at_ms": self.clock.wall_ms()}
        answer["topics"] = topics.list_topics(self.backend, internal=True)
        if self._groups is not None:
            answer["groups"] = self._groups.list_subscriptions()
        answer["counters"], answer["silent_parts"] = self._others.merge_counters(
            self._metrics.snapshot(paced)
        )
        return answer

    def post_topic(self, request: AdminRequest) -> Any:
        settings = dict(request.body)
        one_in = topics.check_trace_one_in(self.backend, request.topic, settings.pop("trace_one_in", None))
        create = settings.pop("create", True)
        if not isinstance(create, bool):
            raise CallerError(f"create is {create!r}; allowed: true, false")
        change = topics.create if create else topics.update
        if settings or one_in is None or change is topics.create:
            info = change(self.backend, self.clock, request.topic, settings)
        else:
            info = topics.require_topic(self.backend, request.topic)
        if one_in is not None:
            topics.trace(self.backend, self.clock, request.topic, one_in)
        return topics.topic_row(info) | topics.trace_setting(self.backend, request.topic)

    def delete_group(self, request: AdminRequest) -> None:
        self.groups.delete(request.group, request.query.get("topic"))


def check_parameters(route: Route, request: AdminRequest) -> AdminRequest:
    """Return the request with its body as the route declares it. Raises CallerError for a name that the route
    does not declare, or a value that its body does not allow.

    Probes and scrapes may have any query, because load balancers add their own.
    """
    if route.path in NO_LISTINGS:
        return request
    check_names("query name", request.query.keys() - {FORWARDED}, route.query)
    if route.body is None:
        check_names("body key", request.body, ())
    elif issubclass(route.body, Body):
        return request._replace(body=read_body(route.body, request.body))
    return request


def _require_consumer(service: T | None) -> T:
    if service is None:
        raise UnsupportedError("no consumer proxy in this process; ask the admin port of the one that has it")
    return service


def _read_limit(request: AdminRequest, name: str) -> int:
    text = request.query.get(name, str(keys.LIMIT_DEFAULT))
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= keys.LIMIT_MAX:
        raise CallerError(f"{name} is {text!r}; allowed: 1 to {keys.LIMIT_MAX}")
    return int(text)


def health_fields(health: Health) -> dict[str, Any]:
    """Return the health as the admin API shows it: with a warning only if there is one."""
    fields = health._asdict()
    return fields if health.warning else {name: fields[name] for name in ("ready", "reason")}


def alive_answer(health: Health) -> dict[str, Any]:
    """Return the body of the response to GET /health."""
    return {"alive": True} | health_fields(health)


def ready_answer(health: Health) -> Text:
    """Return the response to GET /ready: status 200 if the process is ready, else 503."""
    return Text("application/json", msgspec.json.encode(health_fields(health)), 200 if health.ready else 503)


def build_starting_router(health: Callable[[], Health], names: Iterable[str]) -> AdminRouter:
    """Return the routes of the admin port while the server starts: any other path gets the reason."""
    router = AdminRouter(names, lambda: f"the server is starting: {health().reason}")
    router.add("GET", "/health", lambda _: alive_answer(health()))
    router.add("GET", "/ready", lambda _: ready_answer(health()))
    return router


class Route(NamedTuple):
    """One route of the admin API. `answers`: what its answer contains, for people. `query`: the names that
    its query may have. `body`: the Struct of its body; dict: settings, which the handler checks; None: it has
    no body."""

    method: str
    path: str
    answers: str
    handler: Callable[[AdminApi, AdminRequest], Any]
    query: tuple[str, ...] = ()
    body: type[Body] | type[dict[str, Any]] | None = None


ROUTES = (
    Route("GET", "/health", "200 while the process lives",
          lambda api, _: alive_answer(api.health())),
    Route("GET", "/ready", "200 when it takes sends, else 503 and why",
          lambda api, _: ready_answer(api.health())),
    Route("GET", "/metrics", "Prometheus text", lambda api, _: api.page.text()),
    Route("GET", "/stats", "everything `ddmq stats` shows", AdminApi.stats),
    Route("GET", "/topics", "rows by name",
          lambda api, r: topics.list_topics(api.backend, internal=r.flag("internal"), page=r.page()),
          ("internal", "count", "after")),
    Route("GET", "/topics/{topic}", "one with its queues",
          lambda api, r: topics.show_topic(api.backend, r.topic)),
    Route("POST", "/topics/{topic}", "the topic, created or changed", AdminApi.post_topic, body=dict),
    Route("DELETE", "/topics/{topic}", "{}",
          lambda api, r: topics.delete(api.backend, api.clock, r.topic)),
    Route("GET", "/topics/{topic}/messages", "messages",
          lambda api, r: api.messages.in_topic(r),
          ("id", "key", "queue", "offset", "time_ms", "count", "group")),
    Route("POST", "/messages", "where it is stored, or when it is due",
          lambda api, r: api.calls.answer_anywhere(r, partial(send_message, api.calls, api.levels)),
          body=MessageSendBody),
    Route("GET", "/messages/{id}", "the message with that id", lambda api, r: api.messages.by_id(r),
          ("group",)),
    Route("GET", "/messages/{id}/story", "all that happened to it, and why it was late",
          lambda api, r: api.stories.by_id(r), ("group",)),
    Route("GET", "/topics/{topic}/story", "the same",
          lambda api, r: api.stories.in_topic(r), ("id", "key", "queue", "offset", "group")),
    Route("GET", "/groups", "a row per subscription",
          lambda api, r: api.groups.list_subscriptions(r.page()), ("count", "after")),
    Route("GET", "/lag", "the same with lag age and rates, the furthest behind first",
          lambda api, r: api.groups.lag(r.query.get("group"), r.page().most), ("group", "count")),
    Route("GET", "/groups/{group}", "one in full, with so many blocked keys",
          lambda api, r: api.groups.show_group(r.group, _read_limit(r, "keys")), ("keys",)),
    Route("POST", "/groups/{group}", "the group, subscribed to topics",
          lambda api, r: api.groups.create(r.group, r.body), body=dict),
    Route("POST", "/groups/{group}/topics/{topic}", "what differs and what is in force",
          lambda api, r: api.groups.change(r.group, r.topic, r.body), body=dict),
    Route("DELETE", "/groups/{group}", "{}", AdminApi.delete_group, ("topic",)),
    Route("GET", "/groups/{group}/offsets", "where it stands, queue by queue",
          lambda api, r: offsets.list_positions(api.backend, r.group, r.query.get("topic")), ("topic",)),
    Route("POST", "/groups/{group}/offsets", "what a reset did, or would do",
          lambda api, r: offsets.reset(api.backend, api.clock, r.group, r.body.topic, r.body.to, r.body.queue,
                                        r.body.dry_run), body=OffsetResetBody),
    Route("GET", "/groups/{group}/keys", "blocked and parked keys",
          lambda api, r: keys.list_blocked_keys(api.consumer, r.group, _read_limit(r, "limit")), ("limit",)),
    Route("POST", "/groups/{group}/keys", "the key, and what parking, skipping or replaying it came to",
          lambda api, r: keys.act_on_key(api.consumer, r.group, r.body.action, r.body.key, r.body.take_away),
          body=KeyActionBody),
    Route("GET", "/dlq", "groups with dead letters",
          lambda api, r: dlq.list_dead_letters(api.backend, r.page()), ("count", "after")),
    Route("GET", "/dlq/{group}", "the open ones",
          lambda api, r: dlq.show_dead_letters(
              api.backend, r.group, dlq.read_filter(r), r.number("from", 0),
              min(r.number("count", 20), dlq.SHOWN_MAX)), ("reason", "topic", "since_ms", "from", "count")),
    Route("POST", "/dlq/{group}/resend", "what was sent again",
          lambda api, r: dlq_changes.resend(api.backend, api.clock, r.group, r.body),
          body=DeadLetterResendBody),
    Route("POST", "/dlq/{group}/purge", "how many are done with",
          lambda api, r: dlq_changes.purge(api.backend, api.clock, r.group, r.body),
          body=DeadLetterPurgeBody),
    Route("GET", "/transactions", "those that are open",
          lambda api, r: api.transactions.rows(r), ("group", "count")),
    Route("GET", "/transactions/{id}", "one, or how it ended", lambda api, r: api.transactions.show(r)),
    Route("POST", "/transactions/{id}", "how it ended", lambda api, r: api.transactions.end(r),
          body=TransactionEndBody),
    Route("GET", "/delay", "what waits, counted",
          lambda api, r: api.delays.answer_anywhere(r, api.delays.overview)),
    Route("GET", "/delay/messages", "by due time",
          lambda api, r: api.delays.answer_anywhere(r, api.delays.messages),
          ("topic", "key", "from_ms", "to_ms", "count", "after")),
    Route("GET", "/delay/messages/{id}", "one, by delay id or uuid",
          lambda api, r: api.delays.answer_anywhere(r, api.delays.message)),
    Route("POST", "/delay/messages/{id}", "what a cancel, fire or reschedule came to",
          lambda api, r: api.calls.answer_anywhere(r, partial(change_message, api.calls)),
          body=DelayChangeBody),
    Route("GET", "/delay/count", "how many",
          lambda api, r: api.delays.answer_anywhere(r, api.delays.count),
          ("topic", "key", "from_ms", "to_ms", "count", "after")),
    Route("GET", "/delay/levels", "how many wait at each delay level, retries included",
          lambda api, _: count_levels(api.backend, api.levels)),
    Route("POST", "/delay/backup", "a copy of what waits",
          lambda api, r: api.delays.answer_anywhere(r, api.delays.backup), body=DelayBackupBody),
)  # fmt: skip
