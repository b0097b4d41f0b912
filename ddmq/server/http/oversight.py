"""Callers of the admin port: who makes each request (by token, certificate, user or address), which quotas it
counts for, and what the audit log says about it.

Changes are recorded with their outcome, and so are rejected requests and logins. Requests that a process has
passed on are recorded there, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ddmq_common.errors import CallerError, DdmqError
from ddmq_common.security.audit import Actor, AuditLog
from ddmq_common.security.callers import TOKEN_MECHANISM, Caller, CallerTable, LoginRejectedError
from ddmq_common.security.certificate_names import read_names
from ddmq_common.security.quotas import OverQuota, describe_cause
from ddmq_rpc.addresses import is_loopback

BEARER = "bearer "
ON_BEHALF = "X-Ddmq-Identity"  # for whom another process of the installation passes a request on
READING = ("GET", "HEAD")


class RequestCaller(NamedTuple):
    """The identity that makes a request; `caller` None: rights are off. `on_behalf`: a node makes it for the
    caller."""

    caller: Caller | None = None
    on_behalf: bool = False


def find_caller(callers: CallerTable | None, environ: Mapping[str, Any]) -> RequestCaller:
    """Return who makes a request. Raises LoginRejectedError."""
    if callers is None:
        return RequestCaller()
    header = environ.get("HTTP_AUTHORIZATION")
    address = environ.get("REMOTE_ADDR", "")
    certificate: Mapping[str, Any] | None = environ.get("ddmq.certificate")  # None: plain HTTP
    names = read_names(certificate)
    uid: int | None = environ.get("ddmq.uid")  # None: not over the Unix socket
    if header is None:
        by_certificate = None if names is None else callers.of_certificate(names)
        by_user = None if uid is None else callers.of_user(uid)
        caller = by_certificate or by_user or callers.at_address(address)
    elif not header.lower().startswith(BEARER):
        raise LoginRejectedError("Authorization has another scheme; allowed: Bearer TOKEN")
    elif certificate is None and uid is None and not is_loopback(address):
        raise LoginRejectedError("a token is accepted over TLS or from this machine alone")
    else:
        token = header[len(BEARER) :].strip().encode("utf-8", "replace")
        caller = callers.log_in(TOKEN_MECHANISM, token).caller
    stated = environ.get("HTTP_X_DDMQ_IDENTITY")
    if stated is None or not caller.has_right("node"):
        return RequestCaller(caller)
    return RequestCaller(callers.at_name(stated), True)


class ForbiddenError(CallerError):
    """The caller lacks a right (403)."""


class OverQuotaError(DdmqError):
    """The caller is over a quota (429). `over`: which one, and when it may send the request again."""

    def __init__(self, over: OverQuota) -> None:
        super().__init__(str(over))
        self.over = over


class Oversight:
    """Counts the requests of callers, and records what they do. `callers`: None if rights are off."""

    def __init__(self, callers: CallerTable | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._callers = callers
        self._monotonic = monotonic

    @property
    def _audit(self) -> AuditLog | None:
        return None if self._callers is None else self._callers.audit

    def admit_request(self, environ: Mapping[str, Any], action: str, is_probe: bool) -> RequestCaller:
        """Return who makes a request, and count it. Raises LoginRejectedError and OverQuotaError."""
        address, audit = str(environ.get("REMOTE_ADDR", "")), self._audit
        try:
            sender = find_caller(None if is_probe else self._callers, environ)
        except LoginRejectedError as error:
            if audit is not None:
                audit.record_login(Actor("", address), str(error))
            raise
        caller = sender.caller
        if caller is None or sender.on_behalf:
            return sender
        size = environ.get("CONTENT_LENGTH") or "0"
        over = caller.usage.count_request(int(size) if size.isdigit() else 0, self._monotonic())
        if over is not None:
            if audit is not None:
                audit.record_rejection(Actor(caller.name, address), action, describe_cause(over))
            raise OverQuotaError(over)
        return sender

    @contextmanager
    def watch_request(
        self,
        environ: Mapping[str, Any],
        sender: RequestCaller,
        action: str,
        name_objects: Callable[[], str],
        concealed: Sequence[str],
    ) -> Iterator[None]:
        """Record the outcome of the request that is answered inside the context.

        `name_objects` returns the names of what the request changes. `concealed`: the sentences about missing
        rights of which the answer says nothing; the process that decides records them.
        """
        audit, caller = self._audit, sender.caller
        if audit is None or caller is None:
            yield
            return
        actor = Actor(caller.name, str(environ.get("REMOTE_ADDR", "")))
        is_change = environ["REQUEST_METHOD"] not in READING and not sender.on_behalf
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
            raise
        finally:
            if isinstance(error, ForbiddenError | LoginRejectedError):
                if not sender.on_behalf:
                    audit.record_rejection(actor, action, str(error))
            elif isinstance(error, OverQuotaError):
                audit.record_rejection(actor, action, describe_cause(error.over))
            elif concealed:
                for missing in dict.fromkeys(concealed):
                    audit.record_rejection(actor, action, missing)
            elif is_change:
                reason = "" if error is None else f"failed: {type(error).__name__}"
                audit.record_change(actor, action, name_objects(), reason)
