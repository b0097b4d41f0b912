"""A send of the admin API that a proxy rejects: the status tells whether the message may be stored."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from backend.memory import MemoryBackend
from backend.port import Health
from backend.records import TopicInfo
from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.figures import OtherProcesses
from ddmq.server.admin.producer.calls import IDL, NO_PRODUCER, ProducerCalls
from ddmq.server.http.parameters import Query
from ddmq.server.http.routing import AdminRequest, Text, UncertainOutcomeError, forward_request
from ddmq_client.idl import producer
from ddmq_common.clock import NEVER, ManualClock
from ddmq_common.errors import CallerError, DdmqError, TryLaterError, UnknownTopicError
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, ErrorKind, Service
from proxy_producer.core.rejections import timed_out
from proxy_producer.wire import SERVICE

POST = AdminRequest({}, Query(), {"topic": "t", "body": "x"}, "POST", "/messages")
UNSENT, SENT = (
    timed_out(10_000, "the backend", sent=sent).text.removeprefix("FAILED: ") for sent in (False, True)
)


class StandInProxy:
    """A producer proxy that answers every send alike."""

    def __init__(self, answer: Callable[[Call], None]) -> None:
        self._answer = answer

    def service(self) -> Service:
        return Service(producer, SERVICE, {"sendSync": self._answer})


def calls_to(answer: Callable[[Call], None]) -> ProducerCalls:
    clock = ManualClock()
    backend = MemoryBackend(clock)
    backend.put_topic(TopicInfo("known", 0, 1), NEVER).wait(5)
    proxy: Any = StandInProxy(answer)
    return ProducerCalls(backend, proxy, clock, OtherProcesses(), list)


def rejecting(code: int, text: str) -> ProducerCalls:
    return calls_to(lambda call: call.reply(IDL.Result(code=code, msg=f"FAILED: {text}")))


@pytest.mark.parametrize(
    ("code", "text", "topic", "kind", "words"),
    [
        (
            10,
            "the disk failed",
            "known",
            UncertainOutcomeError,
            "failed (code 10); the message may or may not",
        ),
        (11, "key is long", "known", CallerError, "key is long (code 11)"),
        (12, UNSENT, "known", TryLaterError, "the message is not stored; send it again (code 12)"),
        (12, SENT, "known", UncertainOutcomeError, "the message may or may not be stored (code 12)"),
        (13, "it is closed", "known", CallerError, "it is closed (code 13)"),
        (13, "there is none", "none", UnknownTopicError, "there is none (code 13)"),
        (14, "there is none", "none", UnknownTopicError, "there is none (code 14)"),
        (15, "busy", "known", TryLaterError, "busy (code 15)"),
        (20, "draining", "known", TryLaterError, "draining (code 20)"),
        (21, "no delay service", "known", TryLaterError, "no delay service (code 21)"),
        (33, "too far", "known", CallerError, "too far (code 33)"),
        (99, "new", "known", UncertainOutcomeError, "new (code 99); the message may or may not be stored"),
    ],
)
def test_a_rejection_is_an_error_by_its_code(
    code: int, text: str, topic: str, kind: type[DdmqError], words: str
) -> None:
    with pytest.raises(kind) as raised:
        rejecting(code, text).call("sendSync", topic, message=IDL.Message(topic=topic, body=b"x"))
    assert type(raised.value) is kind
    assert words in str(raised.value)
    assert "FAILED" not in str(raised.value)


def test_an_internal_error_of_the_proxy_leaves_the_outcome_open() -> None:
    calls = calls_to(lambda call: call.reply_error(ErrorKind.INTERNAL_ERROR, "a bug"))
    with pytest.raises(UncertainOutcomeError, match="a bug; the message may or may not be stored"):
        calls.call("sendSync", "known", message=IDL.Message(topic="known", body=b"x"))


def test_an_uncertain_outcome_stays_one_when_the_log_is_away() -> None:
    """Every other silence of the log is "try again": nothing was changed."""
    clock = ManualClock()
    backend = MemoryBackend(clock)
    api = AdminApi(backend, None, Registry(), clock, backend.health)
    api.calls = rejecting(12, SENT)
    backend.health = lambda: Health(False, "the log is away")  # type: ignore[method-assign]
    statuses: list[str] = []
    body = b'{"topic": "t", "body": "x"}'
    environ = {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/messages", "CONTENT_LENGTH": str(len(body)),
        "CONTENT_TYPE": "application/json", "HTTP_HOST": "localhost", "wsgi.input": io.BytesIO(body),
    }  # fmt: skip
    answer = b"".join(api.router(environ, lambda status, headers: statuses.append(status)))
    assert statuses == ["504 Gateway Timeout"], answer
    assert b"may or may not be stored" in answer


# --- forwarding


@contextmanager
def answering(payload: bytes) -> Iterator[str]:
    """The address of a port that reads a request, sends these bytes and closes the connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer_requests() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(payload)

        threading.Thread(target=answer_requests, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def http_answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def free_address() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_forwarded_change_without_an_answer_has_an_uncertain_outcome() -> None:
    with answering(b"") as address:
        with pytest.raises(UncertainOutcomeError, match="may or may not have been made"):
            forward_request(address, POST)
        with pytest.raises(TryLaterError, match="does not answer"):
            forward_request(address, POST._replace(method="GET", body={}))
    with pytest.raises(TryLaterError, match="does not answer"):
        forward_request(free_address(), POST)


def test_a_process_without_a_proxy_tries_those_that_it_knows_until_one_has_it() -> None:
    others = OtherProcesses()
    with answering(http_answer(503, b"{}")) as without, answering(http_answer(200, b'{"queue":1}')) as has_it:
        clock = ManualClock()
        others.record_address(f"part consumer {free_address()}")  # it counts, and is not asked
        others.record_address(f"proxy consumer {free_address()}")
        others.record_address(f"proxy producer {without}")
        calls = ProducerCalls(MemoryBackend(clock), None, clock, others, lambda: [has_it])
        answer = calls.answer_anywhere(POST, pytest.fail)
        assert isinstance(answer, Text)
        assert (answer.status, answer.payload) == (200, b'{"queue":1}')
        calls = ProducerCalls(MemoryBackend(clock), None, clock, others, list)
        assert calls.answer_anywhere(POST, pytest.fail).status == 503
        with pytest.raises(TryLaterError) as raised:
            calls.answer_anywhere(POST._replace(is_forwarded=True), pytest.fail)
        assert str(raised.value) == NO_PRODUCER
