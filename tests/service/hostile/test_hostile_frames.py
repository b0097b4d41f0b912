"""Frames that are cut, endless, of impossible length, or no messages at all."""

from __future__ import annotations

import time
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from tests.interop.anyframe import EXCEPTION, I32, LIST, ONEWAY, REPLY, STRUCT, Struct
from tests.scenarios.real_server import RealServer
from tests.service.hostile.attack import (
    Attacker,
    batch,
    consume_result,
    encoded,
    header,
    message,
    prefixed,
    properties,
    pull_request,
    reply_request,
    send_sync,
    text,
)
from tests.support.waits import until

FRAME_MAX = 5_000_000
UNKNOWN_METHOD, PROTOCOL_ERROR = 1, 7
SERVICES = {"producer": "ProducerService", "consumer": "ConsumerService"}
FULL = message(key=text("k"), tags=text("t"), properties=properties((b"p", b"v")))
ID = b"018bcfe5680070008000000000000001"


def request_of(number: int, value: tuple[int, Any]) -> Struct:
    """A transaction's request, with its own field."""
    return {1: (STRUCT, {1: text(ID.decode()), 2: text("us"), number: value, 4: text("me")})}


REQUESTS: dict[str, tuple[str, bytes, Struct]] = {
    "sendSync": ("producer", b"sendSync", send_sync(FULL)),
    "sendBatchSync": ("producer", b"sendBatchSync", batch([FULL, FULL])),
    "sendPrepared": ("producer", b"sendPrepared", request_of(3, (LIST, (STRUCT, [FULL, FULL])))),
    "endTransaction": ("producer", b"endTransaction", request_of(3, (I32, 8))),
    "pull": ("consumer", b"pull", pull_request(result=(STRUCT, consume_result()))),
    "reply": ("consumer", b"reply", reply_request()),
    "submit": ("consumer", b"submit", {1: (STRUCT, consume_result(nextResult=(STRUCT, consume_result())))}),
}


def refused(server: RealServer, reason: str, component: str = "producer") -> float:
    return server.metric("ddmq_rpc_refused_total", service=SERVICES[component], reason=reason)


def connections(server: RealServer, component: str) -> float:
    return server.metric("ddmq_rpc_connections", service=SERVICES[component])


def works(attacker: Attacker, component: str = "producer") -> bool:
    """The connection still takes honest requests."""
    if component == "producer":
        return bool(attacker.call(encoded("compact", b"sendSync", send_sync())).result.code == 0)
    return bool(attacker.call(encoded("compact", b"pull", pull_request())).result.messages == [])


# --- lengths


@pytest.mark.parametrize("component", SERVICES)
@pytest.mark.parametrize(
    "length", [-1, -(1 << 31), FRAME_MAX + 1, (1 << 31) - 1, int.from_bytes(b"GET ", "big")]
)
def test_impossible_lengths_close_at_once(server: RealServer, component: str, length: int) -> None:
    before = refused(server, "frame_length", component)
    with Attacker(server.ports[component]) as attacker:
        attacker.send(pack(">i", length) + b"/ HTTP/1.1\r\n\r\n")
        assert attacker.closed()
    assert refused(server, "frame_length", component) == before + 1


def test_no_memory_is_allocated_for_an_announced_length(server: RealServer) -> None:
    """A hundred connections promise the longest frame and send nothing of it."""
    before = anonymous_bytes(server.pid)
    attackers = [Attacker(server.ports["producer"]) for _ in range(100)]
    for attacker in attackers:
        attacker.send(pack(">i", FRAME_MAX) + b"\x82")
    grown = anonymous_bytes(server.pid) - before
    for attacker in attackers:
        attacker.close()
    assert grown < 100 << 20, "100 x 5 MB were promised"


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_an_empty_frame_is_answered(server: RealServer) -> None:
    with Attacker(server.ports["producer"]) as attacker:
        assert attacker.call(prefixed(b"")).error_kind == PROTOCOL_ERROR
        assert works(attacker)


def test_the_longest_frame_is_accepted_and_one_byte_more_is_not(server: RealServer) -> None:
    """The answer to the first is 11: its body is over the topic's limit."""
    frame = encoded("compact", b"sendSync", send_sync(message(body=(text(b"")))))
    body_size = FRAME_MAX - (len(frame) - 4) - 3  # the body's length takes 4 bytes instead of 1
    longest = encoded("compact", b"sendSync", send_sync(message(body=text(bytes(body_size)))))
    assert len(longest) - 4 == FRAME_MAX
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(longest)
        assert (answer.error_kind, answer.result.code) == (None, 11)
        attacker.send(encoded("compact", b"sendSync", send_sync(message(body=text(bytes(body_size + 1))))))
        assert attacker.closed()


# --- truncated


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_truncation_of_a_struct_is_a_protocol_error(
    server: RealServer, wire: str, request_: str
) -> None:
    """Well framed, so each gets its answer and the connection goes on."""
    component, method, args = REQUESTS[request_]
    body = encoded(wire, method, args)[4:]
    start = len(header(wire, method))
    with Attacker(server.ports[component]) as attacker:
        for end in range(start, len(body)):
            answer = attacker.call(prefixed(body[:end]))
            assert answer.error_kind == PROTOCOL_ERROR, end
            assert (answer.method, answer.sequence) == (method.decode(), 1)
        assert works(attacker, component)


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_truncation_of_a_header_is_a_protocol_error(
    server: RealServer, wire: str, request_: str
) -> None:
    component, method, args = REQUESTS[request_]
    body = encoded(wire, method, args)[4:]
    with Attacker(server.ports[component]) as attacker:
        for end in range(len(header(wire, method))):
            assert attacker.call(prefixed(body[:end])).error_kind in (PROTOCOL_ERROR, UNKNOWN_METHOD), end
        assert works(attacker, component)


@pytest.mark.parametrize("component", SERVICES)
@pytest.mark.parametrize("how", ["close", "half close", "reset"])
def test_clients_that_go_in_the_middle_of_a_frame(server: RealServer, component: str, how: str) -> None:
    frame = encoded("compact", b"sendSync", send_sync())
    attackers = [Attacker(server.ports[component]) for _ in range(len(frame) - 1)]
    before = connections(server, component) - len(attackers)
    for end, attacker in enumerate(attackers):
        attacker.send(frame[:end])
        if how == "half close":
            attacker.socket.shutdown(1)
            assert attacker.closed()
            attacker.close()
        elif how == "reset":
            attacker.vanish()
        else:
            attacker.close()
    until(lambda: connections(server, component) <= before + 1, "all of them are gone")


# --- endless


def test_a_frame_that_never_ends_is_closed_in_time(server: RealServer) -> None:
    before = refused(server, "slow_frame")
    began = time.monotonic()
    with Attacker(server.ports["producer"]) as attacker:
        attacker.send(pack(">i", FRAME_MAX) + header("compact", b"sendSync"))
        attacker.socket.settimeout(0.05)
        while not _is_closed(attacker):
            attacker.send(b"\x18")
            assert time.monotonic() - began < 20, "frame_read_s is 1 s"
    assert refused(server, "slow_frame") == before + 1


def _is_closed(attacker: Attacker) -> bool:
    try:
        return attacker.closed()
    except TimeoutError:
        return False


def test_frames_without_end_and_nobody_reads_the_answers(server: RealServer) -> None:
    """The server stops reading, then closes: an answer that is not read costs its own connection."""
    before = refused(server, "slow_reader")
    frame = encoded("compact", b"x" * 1_000, {}) * 100  # the answer names the method
    with Attacker(server.ports["producer"]) as attacker:
        attacker.socket.settimeout(0.5)
        began = time.monotonic()
        while refused(server, "slow_reader") == before:
            try:
                attacker.send(frame)
            except TimeoutError:
                pass
            assert time.monotonic() - began < 60, "answer_write_s is 1 s"


def test_frames_without_end_are_answered_one_by_one(server: RealServer) -> None:
    """Sent ahead without waiting: each gets its own answer, in order."""
    count = 1_000
    frames = [encoded("compact", b"sendSync", send_sync(), sequence=number) for number in range(count)]
    with Attacker(server.ports["producer"]) as attacker:
        for start in range(0, count, 500):
            attacker.send(b"".join(frames[start : start + 500]))
            assert [attacker.read().sequence for _ in range(500)] == list(range(start, start + 500))


# --- no messages


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"\xff" * 64,
        b"{}",
        b"\x82",
        b"\x82\x22\x01\x04pull\x00",
        b"\x80\x02\x00\x01",
        b"\x82\x21" + b"\xff" * 20,
    ],
    ids=["nul", "ff", "json", "first byte alone", "compact version 2", "binary version 2", "long sequence"],
)
def test_what_is_no_message_is_a_protocol_error(server: RealServer, body: bytes) -> None:
    with Attacker(server.ports["consumer"]) as attacker:
        assert attacker.call(prefixed(body)).error_kind == PROTOCOL_ERROR
        assert works(attacker, "consumer")


@pytest.mark.parametrize("kind", [0, REPLY, EXCEPTION, 5, 7])
def test_message_types_that_are_no_call(server: RealServer, wire: str, kind: int) -> None:
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(encoded(wire, b"sendSync", send_sync(), kind=kind))
        assert answer.error_kind == PROTOCOL_ERROR
        assert works(attacker)


@pytest.mark.parametrize(
    "method", [b"", b"nothing", b"sendSync\0", b"__init__", b"\xff\xfe", b"x" * 1_000, b"pull"], ids=repr
)
def test_unknown_methods(server: RealServer, wire: str, method: bytes) -> None:
    with Attacker(server.ports["producer"]) as attacker:
        frame = encoded(wire, method, send_sync())
        attacker.send(frame)
        if method == b"\xff\xfe":  # echoed as it came, which the library cannot read
            head = attacker._exactly(4)
            assert method in attacker._exactly(int.from_bytes(head, "big"))
        else:
            answer = attacker.read()
            assert answer.error_kind == UNKNOWN_METHOD
            assert (answer.method, answer.sequence) == (method.decode(), 1)
        assert works(attacker)


def test_oneway_messages_of_unknown_methods_get_no_answer(server: RealServer, wire: str) -> None:
    with Attacker(server.ports["producer"]) as attacker:
        for _ in range(3):
            attacker.send(encoded(wire, b"nothing", {}, kind=ONEWAY))
        assert works(attacker), "the next answer is to the next request"
