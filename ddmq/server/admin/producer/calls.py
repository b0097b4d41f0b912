"""Calls of the admin API to a producer proxy: as clients make them, but inside this process.

A call is encoded, decoded, checked, limited and counted as one from the wire. A process without a producer
proxy forwards the request to the admin port of one that has it. A rejection becomes an error by its code:

    11, 18, 19, 30 to 38    CallerError (400)
    13, 14                  UnknownTopicError (404), or CallerError if the topic exists
    15 of a quota                OverQuotaError (429)
    12 not stored, 15, 20, 21    TryLaterError (503)
    10, 12, no answer       UncertainOutcomeError (504)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.event import AsyncResult

from backend.port import Backend
from ddmq.in_process.calls import InProcessService
from ddmq.server.admin.figures import OtherProcesses
from ddmq.server.http.oversight import OverQuotaError
from ddmq.server.http.routing import AdminRequest, Text, UncertainOutcomeError, forward_request
from ddmq_client.idl import producer
from ddmq_client.idl.codes import Code
from ddmq_client.wire.wording import in_arguments
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DdmqError, TryLaterError, UnknownTopicError
from ddmq_common.native_threads import in_thread
from ddmq_common.security.callers import Caller
from ddmq_common.security.quotas import parse_over_quota
from ddmq_rpc.api import ErrorKind
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.codec import structs
from proxy_producer.core.delay_requests import TIMESTAMP_S_MIN
from proxy_producer.core.rejections import NOT_STORED
from proxy_producer.service import ProducerService
from proxy_producer.wire import SERVICE

IDL = structs(producer)
CLIENT = b"admin"  # the client id and the address of these calls, in stories
ANSWER_S = 60.0  # the proxy answers at its own deadline, which is earlier
UNCERTAIN = "the message may or may not be stored"
NO_PRODUCER = (
    "no producer proxy in this process, and none is known to it; send the request to the admin port of"
    " `ddmq serve`, `ddmq producer` or `ddmq consumer`"
)
_TRY_LATER = (Code.BUSY, Code.SHUTTING_DOWN, Code.NO_SERVICE)
_CALLER_ERRORS = (
    Code.ILLEGAL_MESSAGE, Code.TAKES_NO_DELAY, Code.TAKES_ONLY_DELAY,
    *range(Code.DELAY_ID_MALFORMED, Code.DELAY_BASE + 1),
)  # fmt: skip


class ProducerCalls:
    """Calls the producer proxy of this process. `service`: None if there is none. `find_addresses` returns
    the admin addresses of processes that may have one."""

    def __init__(
        self,
        backend: Backend,
        service: ProducerService | None,
        clock: Clock,
        others: OtherProcesses,
        find_addresses: Callable[[], Iterable[str]],
    ) -> None:
        self._backend = backend
        self._service = None if service is None else InProcessService(service.service(), clock)
        self._proxy = service
        self._wall_ms = clock.wall_ms
        self._others = others
        self._find_addresses = find_addresses

    def answer_anywhere(self, request: AdminRequest, act: Callable[[AdminRequest], Any]) -> Any:
        """Return the answer of `act` or, without a producer proxy in this process, the answer of the first
        process that has one. Raises TryLaterError if none is known."""
        if self._service is not None:
            return act(request)
        answer: Text | None = None
        if not request.is_forwarded:
            for address in dict.fromkeys([*self._others.list_proxies(), *self._find_addresses()]):
                try:
                    answer = in_thread(forward_request, address, request, self._others.read_token())
                except TryLaterError:
                    continue
                if answer.status != 503:  # else it has none, or takes nothing now
                    return answer
        if answer is not None:
            return answer
        raise TryLaterError(NO_PRODUCER)

    def allows_due_ms(self, due_ms: int) -> bool:
        """Return whether a message may be rescheduled to this time. A producer proxy of another process is
        not asked: it rejects the change itself."""
        if self._proxy is None:
            return True
        latest_s = (self._wall_ms() + self._proxy.delay.limits.delay_ms_max) // 1_000
        return TIMESTAMP_S_MIN <= due_ms // 1_000 <= latest_s

    def call(self, method: str, topic: str = "", caller: Caller | None = None, **arguments: Any) -> Any:
        """Call a method of the wire, and return the struct of its answer. `topic`: the one that is sent to.
        `caller`: for whose quotas a send counts.

        Raises the error of a rejection; UncertainOutcomeError if there is no answer.
        """
        assert self._service is not None
        reply: AsyncResult[bytes] = AsyncResult()
        frame = encode_call(producer, SERVICE, method, **arguments)
        self._service.open_call(frame, CLIENT.decode(), reply.set, caller)
        try:
            answer = decode_reply(producer, SERVICE, reply.get(timeout=ANSWER_S)).result.success
        except gevent.Timeout as error:
            raise UncertainOutcomeError(f"no answer within {ANSWER_S:g} s; {UNCERTAIN}") from error
        except ReplyError as error:
            if error.kind == ErrorKind.PROTOCOL_ERROR:
                raise CallerError(error.text) from error
            raise UncertainOutcomeError(f"{error.text}; {UNCERTAIN}") from error
        if answer.code:
            raise self._error_of(answer.code, answer.msg.decode("utf-8", "replace"), topic)
        return answer

    def _error_of(self, code: int, text: str, topic: str) -> DdmqError:
        """Return the error for a rejection."""
        stated = f"{in_arguments(text)} (code {code})"
        over = parse_over_quota(stated) if code == Code.BUSY else None
        if over is not None:
            return OverQuotaError(over)
        if code in _CALLER_ERRORS:
            return CallerError(stated)
        if code in (Code.TOPIC_REFUSED, Code.NO_SUCH_QUEUE):
            return (
                CallerError(stated) if self._backend.topic(topic) is not None else UnknownTopicError(stated)
            )
        if code in _TRY_LATER or (code == Code.TIMED_OUT and NOT_STORED in text):
            return TryLaterError(stated)
        return UncertainOutcomeError(stated if UNCERTAIN in text else f"{stated}; {UNCERTAIN}")
