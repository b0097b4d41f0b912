"""Find out who makes a request to the admin port: by its token, its certificate, its user or its address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ddmq_common.security.callers import TOKEN_MECHANISM, Caller, CallerTable, LoginRejectedError
from ddmq_common.security.certificate_names import read_names
from ddmq_rpc.addresses import is_loopback

BEARER = "bearer "
ON_BEHALF = "X-Ddmq-Identity"  # for whom another process of the installation passes a request on


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
