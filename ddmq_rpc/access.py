"""Calls are checked by the rule of their method before its handler; the method `authenticate` logs in.

With rights on, a handler gets only the calls that its rule lets through, and that are within the quotas of
their caller. Rejected calls and logins are in the audit log. A method without a rule prevents the
start, also with rights off, so that none is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ddmq_client.idl.codes import OK_TEXT, Code
from ddmq_common.security.audit import Actor, client_of
from ddmq_common.security.callers import Caller, CallerTable, LoginRejectedError
from ddmq_common.security.quotas import OverQuota, describe_cause
from ddmq_rpc.api import Call, Handler, MethodRule, Service
from ddmq_rpc.calls import OpenCall
from ddmq_rpc.codec import methods, structs
from ddmq_rpc.connections import RpcConnection
from ddmq_rpc.traffic import OpenMethod, RpcCounts

AUTHENTICATE = "authenticate"
CREDENTIALS_BYTES_MAX = 16 << 10
OPEN_CHANNEL = "a token is accepted over TLS or from this machine alone"


def open_methods(
    service: Service, callers: CallerTable | None, counts: RpcCounts, now: Callable[[], float]
) -> dict[bytes, OpenMethod]:
    """Return the methods that a server answers. `now`: monotonic seconds. Raises ValueError for a handler
    that the IDL lacks, or that has no rule."""
    described = methods(service.idl, service.name)
    unknown = sorted(set(service.handlers) - set(described))
    if unknown:
        raise ValueError(
            f"{service.name} has no method {unknown[0]!r}; allowed: {', '.join(sorted(described))}"
        )
    rules = service.rules
    if rules is None and callers is not None:
        raise ValueError(f"{service.name} has no rules, but rights are on")
    without = sorted(set(service.handlers) - set(rules)) if rules is not None else []
    if without:
        raise ValueError(f"method {without[0]} of {service.name} has no rule; who may call it?")
    opened = {}
    for name, handler in service.handlers.items():
        if callers is None or rules is None:
            opened[name.encode()] = OpenMethod(described[name], handler, None)
            continue
        rule = record_rejections(rules[name], counts, callers, name)
        record = partial(record_rejection, callers, name)
        opened[name.encode()] = OpenMethod(described[name], guard_handler(rule, handler, record, now), rule)
    if AUTHENTICATE in described:
        answers = structs(service.idl)
        opened[AUTHENTICATE.encode()] = OpenMethod(
            described[AUTHENTICATE], Authentication(callers, answers, counts).handle_call
        )
    return opened


def record_rejection(callers: CallerTable, name: str, call: Call, missing: str) -> None:
    """Record in the audit log why a call of the method `name`, or an element of it, was rejected."""
    caller = call.caller
    if callers.audit is not None and caller is not None:
        actor = Actor(caller.name, call.peer, client_of(call.args))
        callers.audit.record_rejection(actor, name, describe_cause(missing))


def record_rejections(rule: MethodRule, counts: RpcCounts, callers: CallerTable, name: str) -> MethodRule:
    """Return a rule of the method `name` whose rejections are counted and recorded, also those of calls that
    wait."""

    def reject_call(call: Call, missing: str) -> None:
        is_over = isinstance(missing, OverQuota)
        counts.count_rejected("quota" if is_over else "right_missing")
        record_rejection(callers, name, call, missing)
        if is_over and rule.reject_over is not None:
            rule.reject_over(call, missing)
        else:
            rule.reject(call, missing)

    return rule._replace(reject=reject_call, reject_over=None)


def guard_handler(
    rule: MethodRule, handler: Handler, record: Callable[[Call, str], None], now: Callable[[], float]
) -> Handler:
    """Return a handler that gets only the calls which quotas and `rule` let through. `record`: records the
    rejection of an element of a call."""
    find_missing, reject, narrow, finishes = rule.find_missing, rule.reject, rule.narrow, rule.finishes

    def handle(call: Call) -> None:
        caller = call.caller
        if caller is not None:
            over = caller.usage.count_request(call.frame_bytes, now())
            if over is not None and not finishes:
                reject(call, over)
                return
        missing = find_missing(call)
        if missing is not None:
            reject(call, missing)
        elif narrow is None:
            handler(call)
        elif (narrowed := narrow(call, partial(record, call))) is not None:
            handler(narrowed)

    return handle


def record_over(call: Call, over: OverQuota, caller: Caller | None = None) -> None:
    """Count a call that its handler rejects because of a quota of `caller` (None: the call's own), and add it
    to the audit log. Calls of this process itself are not counted."""
    caller = caller or call.caller
    if not isinstance(call, OpenCall) or caller is None:
        return
    traffic = call.client_connection.traffic
    traffic.counts.count_rejected("quota")
    if traffic.callers is not None and traffic.callers.audit is not None:
        actor = Actor(caller.name, call.peer, client_of(call.args))
        traffic.callers.audit.record_rejection(actor, call.method_name, describe_cause(over))


def find_sender(call: Call, stated: bytes | None) -> Caller | None:
    """Return the caller for whom a call acts: the identity that a node states, else its own."""
    if stated is None or not isinstance(call, OpenCall):
        return call.caller
    callers = call.client_connection.traffic.callers
    return None if callers is None else callers.at_name(stated.decode("utf-8", "replace"))


class Authentication:
    """Handles `authenticate` for one service. Without callers (rights are off) everybody is accepted."""

    def __init__(self, callers: CallerTable | None, answers: Any, counts: RpcCounts) -> None:
        self._callers = callers
        self._answers = answers
        self._counts = counts

    def handle_call(self, call: Call) -> None:
        """Log the connection in, or close it."""
        if self._callers is None:
            call.reply(self._answers.AuthResponse(code=0, msg="rights are off: everybody may do everything"))
            return
        assert isinstance(call, OpenCall)
        connection = call.client_connection
        assert isinstance(connection, RpcConnection)
        request = call.args.request
        try:
            if not connection.has_private_channel:
                raise LoginRejectedError(OPEN_CHANNEL)
            credentials = (request.credentials or b"")[:CREDENTIALS_BYTES_MAX]
            login = self._callers.log_in(request.mechanism or b"", credentials)
        except LoginRejectedError as error:
            text = str(error)
            self._counts.count_rejected("login")
            self._record_login(call, "", text)
            rejection = self._answers.AuthResponse(code=int(Code.TOPIC_REFUSED), msg=text)
            connection.reject_login(lambda: call.reply(rejection))
            return
        over = connection.identity.use_login(login.caller, login.token_id)
        if over is not None:
            self._counts.count_rejected("quota")
            self._record_login(call, login.caller.name, describe_cause(over))
            busy = self._answers.AuthResponse(code=int(Code.BUSY), msg=str(over))
            connection.reject_login(lambda: call.reply(busy))
            return
        self._record_login(call, login.caller.name)
        call.reply(
            self._answers.AuthResponse(
                code=0, msg=OK_TEXT, identity=login.caller.name, expiresMs=login.expires_ms or None
            )
        )

    def _record_login(self, call: Call, who: str, reason: str = "") -> None:
        """Add a login, or with `reason` a rejected one, to the audit log."""
        if self._callers is not None and self._callers.audit is not None:
            actor = Actor(who, call.peer, client_of(call.args))
            self._callers.audit.record_login(actor, reason)
