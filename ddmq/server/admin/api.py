"""The admin HTTP API over the parts of one process. routes.py is the table of what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import gevent

from backend.port import Backend, Health
from ddmq.server.admin import topics
from ddmq.server.admin.access import (
    answer_allowed,
    check_rules,
    narrow_for,
)
from ddmq.server.admin.auth.service import AccessControl
from ddmq.server.admin.changes.service import RecordedChanges
from ddmq.server.admin.contract import bodies
from ddmq.server.admin.contract.queries import FormQuery
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.contract.versions import NameLocks, check_version
from ddmq.server.admin.figures import MetricsPage, OtherProcesses, merge_counters
from ddmq.server.admin.groups import AdminGroups
from ddmq.server.admin.log_files import LogFiles
from ddmq.server.admin.messages import MessageSearch
from ddmq.server.admin.operations.service import Operations
from ddmq.server.admin.processes.usage import UsedParts
from ddmq.server.admin.processes.views import ProcessInfo, ProcessViews
from ddmq.server.admin.producer.calls import ProducerCalls
from ddmq.server.admin.routes import ROUTES, alive_answer, health_fields, ready_answer
from ddmq.server.admin.transactions import AdminTransactions
from ddmq.server.config import BACKUPS
from ddmq.server.delays.histogram import count_next_hour
from ddmq.server.delays.lists import DelayLists
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.delays.queries import DelayQueries
from ddmq.server.delays.retries import RetryChanges
from ddmq.server.findings.watch import FindingsWatch, merge_findings
from ddmq.server.http.pace import paced
from ddmq.server.http.parameters import Query, check_names, read_body, read_query
from ddmq.server.http.routing import (
    FORWARDED,
    NO_LISTINGS,
    AdminRequest,
    AdminRouter,
    ForbiddenError,
    UncertainOutcomeError,
    Versioned,
)
from ddmq.server.live.live_views import LiveViews
from ddmq.server.story.answer import StoryQueries
from ddmq_common.clock import Clock
from ddmq_common.delays.levels import DEFAULT_LEVELS, Levels
from ddmq_common.errors import CallerError, RemoteError, TryLaterError, UnsupportedError
from ddmq_common.metrics.registry import Registry
from ddmq_common.security.callers import CallerTable
from ddmq_common.security.files import SecurityFiles
from delay_service.levels.service import LevelService
from delay_service.service import DelayService
from proxy_consumer.service import ConsumerService
from proxy_producer.service import ProducerService

T = TypeVar("T")
CATCH_UP_PAUSES_S = (0.1, 0.3, 1.0, 0.0)  # between tries


class AdminApi:
    """The routes of the admin API over the parts of one process; `consumer` and `producer` are None if such a
    proxy runs elsewhere.

    `names`: the host names by which clients reach the server, besides loopback. `backups`: the folder for
    backups. `others`: the processes whose counters and findings are added to the answer. `levels`: the delay
    levels. `findings`: what is wrong at this process. `process`: the name of this process, the same after a
    restart. `info`: what it knows of itself. `callers`: who may do what, `security`: the files that say so;
    None if rights are off. `scheduler`: the level scheduler of this process, or None.
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
        findings: FindingsWatch | None = None,
        process: str = "",
        info: ProcessInfo | None = None,
        callers: CallerTable | None = None,
        scheduler: LevelService | None = None,
        security: SecurityFiles | None = None,
    ) -> None:
        self.backend = backend
        self.levels = levels
        self._consumer = consumer
        self._metrics = metrics
        self.clock = clock
        self.health = health
        self._others = others or OtherProcesses()
        self._findings = findings or FindingsWatch(metrics, clock)
        self._groups = None if consumer is None else AdminGroups(backend, consumer, metrics, clock)
        owners = DelayOwners(backend, timers, clock, self._others.read_token)
        self.delay_owners, self.delay_lists = owners, DelayLists(owners)
        self.delays = DelayQueries(owners, backups)
        self.calls = ProducerCalls(backend, producer, clock, self._others, owners.list_other_addresses)
        state, waits = (None, None) if consumer is None else (consumer.message_state, consumer.explain_waits)
        self.messages = MessageSearch(backend, state)
        self.transactions = AdminTransactions(backend, clock)
        self.stories = StoryQueries(backend, state, waits, self.delays.fetch_message)
        self.retries = RetryChanges(backend, scheduler, clock, self._others)
        targets = self.delay_lists, self.delays, self.calls, self.retries
        self.operations = Operations(backend, clock, lambda: self.consumer, *targets, process)
        self.page = MetricsPage(metrics, clock)
        self._locks = NameLocks()
        self.changes = RecordedChanges(self, self._locks)
        self.processes = ProcessViews(
            backend, consumer, timers, clock, self._others, owners.list_other_addresses,
            info or ProcessInfo(process),
        )  # fmt: skip
        find_behind = None if self._groups is None else partial(self._groups.list_lags, None)
        self.live = LiveViews(
            backend, metrics, clock, lambda: health_fields(health()), self.processes, find_behind,
            self._findings.answer, partial(count_next_hour, owners, clock),
        )  # fmt: skip
        check_rules(ROUTES)
        self.log = LogFiles(backend, consumer, metrics, clock, self.live, self.processes)
        self.callers = callers
        self.auth = AccessControl(clock, callers, security)
        self.used_parts = UsedParts(callers, backend, producer, timers)
        if callers is not None:
            callers.on_change.append(self.live.end_streams)
        self.router = self._build_router(names)

    def _build_router(self, names: Iterable[str]) -> AdminRouter:
        router = AdminRouter(names, callers=self.callers)
        for route in ROUTES:
            router.add(route.method, route.path, partial(self._answer_route, route))
        return router

    def _answer_route(self, route: Route, request: AdminRequest) -> Any:
        request = check_parameters(route, check_forwarded(request))
        return answer_allowed(self, route, request, partial(self._answer_checked, route))

    def _answer_checked(self, route: Route, request: AdminRequest) -> Any:
        try:
            if route.method != "GET":
                self._catch_up()
            if route.version is not None:
                return self._answer_versioned(route, request, route.version)
            return self._make_change(route, request)
        except UncertainOutcomeError:
            raise
        except (TimeoutError, RemoteError) as error:
            health = self.backend.health()
            if health.ready:
                raise
            raise TryLaterError(f"{error}: {health.reason}") from error
        finally:
            if route.method != "GET":
                self.live.versions.note_request(route.path)

    def _make_change(self, route: Route, request: AdminRequest) -> Any:
        """Return the answer of the route's handler; a change is recorded."""
        narrow = narrow_for(route, request)
        return self.changes.make_recorded(request, lambda: route.answer_request(self, request, narrow))

    def _answer_versioned(
        self, route: Route, request: AdminRequest, version_of: Callable[[Any, AdminRequest], str]
    ) -> Any:
        """Answer a request with the version of its topic or group. Raises VersionConflictError.

        The version that is read before an answer may be older than the answer, but not newer.
        """
        if route.method == "GET":
            version = version_of(self, request)
            return Versioned(route.answer_request(self, request, narrow_for(route, request)), version)
        kind, name = next(iter(request.path.items()))
        with self._locks.hold_lock(kind, name):
            check_version(f"{kind} {name!r}", version_of(self, request), request.if_match)
            answer = self._make_change(route, request)
            version = version_of(self, request)
        return Versioned(answer, version) if version else answer

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
        findings = self._findings.answer()
        if request.is_forwarded:
            return {"counters": self._metrics.snapshot(paced), "findings": findings}
        answer: dict[str, Any] = {"health": health_fields(self.health()), "at_ms": self.clock.wall_ms()}
        answer["topics"] = topics.list_topics(self.backend, internal=True)
        if self._groups is not None:
            answer["groups"] = self._groups.list_subscriptions()
        others = self._others.fetch_answers("/stats", "counters", "findings")
        answer["counters"] = merge_counters(
            self._metrics.snapshot(paced), *[each["counters"] for each in others.answers]
        )
        answer["silent_parts"] = others.silent
        answer["findings"] = merge_findings(
            findings, [each["findings"] for each in others.answers], others.silent
        )
        return answer

    def list_findings(self, request: AdminRequest) -> Any:
        findings = self._findings.answer()
        if request.is_forwarded:
            return findings
        others = self._others.fetch_answers("/findings", "items", "left_out", "unevaluated")
        health = {"health": health_fields(self.health())}
        return health | merge_findings(findings, others.answers, others.silent)

    def post_topic(self, request: AdminRequest) -> Any:
        settings = dict(request.body)
        one_in = topics.check_trace_one_in(self.backend, request.topic, settings.pop("trace_one_in", None))
        hold = topics.check_hold_delays(request.topic, settings.pop("hold_delays", None))
        create = settings.pop("create", True)
        if not isinstance(create, bool):
            raise CallerError(f"create is {create!r}; allowed: true, false")
        change = topics.create if create else topics.update
        if settings or (one_in is None and hold is None) or change is topics.create:
            info = change(self.backend, self.clock, request.topic, settings)
        else:
            info = topics.require_topic(self.backend, request.topic)
        if one_in is not None:
            topics.trace(self.backend, self.clock, request.topic, one_in)
        if hold is not None:
            topics.hold_delays(self.backend, self.clock, request.topic, hold=hold)
        return topics.describe_topic(self.backend, info)


def check_forwarded(request: AdminRequest) -> AdminRequest:
    """Return a request that another process has passed on without a caller, if that process asks for itself.
    Raises ForbiddenError if its sender is no node."""
    caller = request.caller
    if caller is None or FORWARDED not in request.query or request.on_behalf:
        return request
    missing = caller.find_missing("node")
    if missing is not None:
        raise ForbiddenError(missing)
    return request._replace(caller=None)


def check_parameters(route: Route, request: AdminRequest) -> AdminRequest:
    """Return the request with its query and body as the route declares them. Raises CallerError for a name
    that the route does not declare, or a value that it does not allow.

    Probes and scrapes may have any query, because load balancers add their own.
    """
    if route.path in NO_LISTINGS:
        return request
    if request.if_match and route.method != "GET" and route.version is None:
        raise CallerError("If-Match is not for this request: what it changes has no ETag")
    texts = {name: text for name, text in request.query.items() if name != FORWARDED}
    query, body = read_query(route.query or Query, texts), request.body
    if route.listing is not None and isinstance(query, FormQuery):
        route.listing.check_form(query.form, texts)
    if route.body is None:
        check_names("body key", body, ())
    elif isinstance(route.body, bodies.SettingsBody):
        check_names("body key", body, route.body.schema["properties"])
    else:
        body = read_body(route.body, body)
    return request._replace(query=query, body=body, is_forwarded=FORWARDED in request.query)


def _require_consumer(service: T | None) -> T:
    if service is None:
        raise UnsupportedError("no consumer proxy in this process; ask the admin port of the one that has it")
    return service


def build_starting_router(health: Callable[[], Health], names: Iterable[str]) -> AdminRouter:
    """Return the routes of the admin port while the server starts: any other path gets the reason."""
    router = AdminRouter(names, lambda: f"the server is starting: {health().reason}")
    router.add("GET", "/health", lambda _: alive_answer(health()))
    router.add("GET", "/ready", lambda _: ready_answer(health()))
    return router
