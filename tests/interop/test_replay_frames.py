"""Every recorded request of the Java, Go and Python clients, replayed: the answer has the recorded shape.

Names are replaced where a test needs a topic or group of its own, and sends wait longer than recorded;
everything else goes out byte for byte.
Before a recorded pull is replayed, the messages that were delivered to it are sent, so that the same ones
must come back, field for field, down to absent fields.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop import anyframe
from tests.interop.anyframe import BINARY, I32, I64, LIST, MAP, REPLY, STRUCT, Frame, shape
from tests.interop.apache_client import Client
from tests.interop.conftest import make_group
from tests.interop.recorded import Exchange, Raw, conversation, exchanges, patient, without_shard
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

RESULT = {1: I32, 2: BINARY}
DELAY_RESULT = {1: I32, 2: BINARY, 3: BINARY}
EMPTY_PULL = {0: {1: {}, 2: (LIST, STRUCT, [])}}
STATS = {1: BINARY, 2: BINARY, 3: (MAP, BINARY, I64), 4: (MAP, BINARY, I64)}


def each(method: str) -> Any:
    """Parametrize over the recorded exchanges of a method."""
    return pytest.mark.parametrize("exchange", exchanges(method), ids=lambda exchange: exchange.name)


def replayed(port: int, request: bytes) -> Frame:
    """The answer to recorded bytes, to the same method and sequence id."""
    with Raw(port) as raw:
        answer = anyframe.read(raw.exchange(request))
    request_fields = anyframe.read(request)
    assert (answer.method, answer.sequence) == (request_fields.method, request_fields.sequence)
    return answer


def refused_on_purpose(exchange: Exchange) -> bool:
    return exchange.reply is not None and b"refused on purpose" in exchange.reply


def test_the_generic_codec_reproduces_what_it_read() -> None:
    frames = [frame for one in exchanges() for frame in (one.request, one.reply) if frame]
    for name in ("go/sequence_dropped", "java/sequence_dropped", "java/sequence_code31"):
        frames += [step.what for step in conversation(name) if isinstance(step.what, bytes)]
    assert len(frames) > 250
    for frame in frames:
        assert anyframe.write(anyframe.read(frame)) == frame


def test_every_recording_is_replayed_here() -> None:
    sends = {b"sendSync", b"sendBatchSync", b"sendDelaySync"}
    replayed_methods = sends | {b"pull", b"submit", b"getConsumeStats", b"fetch", b"ack"}
    assert {anyframe.read(one.request).method for one in exchanges()} == replayed_methods
    assert {one.name.partition("/")[0] for one in exchanges()} == {"go", "java", "python", "real-ddmq"}


# --- producer


@pytest.mark.parametrize(
    "exchange",
    [*exchanges("sendSync"), *exchanges("sendBatchSync")],
    ids=lambda exchange: exchange.name,
)
def test_sends_are_answered_byte_for_byte(server: RealServer, exchange: Exchange) -> None:
    answer = replayed(server.ports["producer"], patient(exchange.request))
    assert answer.kind == REPLY
    assert shape(STRUCT, answer.fields) == {0: RESULT}
    assert answer.fields[0][1] == {1: (I32, 0), 2: (BINARY, b"OK")}
    assert exchange.reply is not None
    recorded = anyframe.read(exchange.reply)
    assert shape(STRUCT, recorded.fields) == {0: RESULT}
    if not refused_on_purpose(exchange) and recorded.sequence == answer.sequence:
        assert anyframe.write(answer) == exchange.reply


@each("sendDelaySync")
def test_delay_sends_are_answered_as_recorded(server: RealServer, exchange: Exchange) -> None:
    """Adds and cancels as DDMQ answered them, but for the shard in the id."""
    answer = replayed(server.ports["producer"], patient(exchange.request))
    assert exchange.reply is not None
    recorded = anyframe.read(exchange.reply)
    assert shape(STRUCT, answer.fields) == shape(STRUCT, recorded.fields) == {0: DELAY_RESULT}
    if recorded.fields[0][1][1][1] == 0:
        assert without_shard(answer) == without_shard(recorded)
        return
    code, text, echoed = (answer.fields[0][1][number][1] for number in (1, 2, 3))
    assert code == recorded.fields[0][1][1][1] == 31
    assert text.startswith(b"FAILED:")
    assert echoed == b""


# --- consumer


@each("ack")
def test_acks_of_unknown_groups_are_answered_byte_for_byte(server: RealServer, exchange: Exchange) -> None:
    with Raw(server.ports["consumer"]) as raw:
        assert raw.exchange(exchange.request) == exchange.reply


@each("submit")
def test_submit(server: RealServer, exchange: Exchange) -> None:
    assert exchange.reply is not None
    with Raw(server.ports["consumer"]) as raw:
        assert raw.exchange(exchange.request) == exchange.reply, "true, also for what nobody knows"


@each("pull")
def test_pulls_as_recorded_from_a_server_that_does_not_know_them(
    server: RealServer, exchange: Exchange
) -> None:
    """Results for unknown queues are ignored, groups are created where a topic is named."""
    answer = replayed(server.ports["consumer"], exchange.request)
    assert answer.kind == REPLY
    assert set(shape(STRUCT, answer.fields)[0]) == {1, 2}


class World:
    """A recorded pull in names of its own."""

    def __init__(self, server: RealServer, exchange: Exchange, topic: str) -> None:
        assert exchange.reply is not None
        self.recorded = anyframe.read(exchange.reply).fields[0][1]
        request = anyframe.read(exchange.request)
        request_fields = request.fields[1][1]
        context = self.recorded[1][1]
        self.group = f"g-{topic}"
        self.topic = topic
        names = {request_fields[1][1]: self.group.encode()}
        if 2 in request_fields or 2 in context:
            names[request_fields[2][1] if 2 in request_fields else context[2][1]] = topic.encode()
        self.request = request._replace(fields=anyframe.renamed(request.fields, names))
        make_group(server, self.group, topic, queues=8)

    def send(self, server: RealServer) -> None:
        """What was delivered, into the queue that it was delivered from."""
        queue = int(self.recorded[1][1][3][1].rpartition(b"_")[2])
        with Client(server.ports["producer"]) as client:
            for message in self.messages():
                fields = {number: value for number, (_, value) in message.items()}
                arguments: dict[str, Any] = {"partitionId": queue, "body": fields[2]}
                arguments["key"] = fields[1].decode() if 1 in fields else None
                arguments["tags"] = fields[3].decode() if 3 in fields else None
                pairs = fields.get(5, (0, 0, []))[2]
                arguments["properties"] = {key.decode(): value.decode() for key, value in pairs} or None
                assert client.send(self.topic, **arguments).code == 0

    def messages(self) -> list[dict[int, Any]]:
        """The recorded deliveries."""
        messages: list[dict[int, Any]] = self.recorded[2][1][1]
        return messages


def comparable(message: dict[int, Any]) -> dict[int, Any]:
    """A delivery without its offset's value; properties in no order; the stand-in's empty tag is none."""
    fields = {number: (kind, 0 if number == 4 else value) for number, (kind, value) in message.items()}
    if 5 in fields:
        fields[5] = (MAP, sorted(fields[5][1][2]))
    if fields.get(3) == (BINARY, b""):
        del fields[3]
    return fields


DELIVERED = [one for one in exchanges("pull") if one.reply and anyframe.read(one.reply).fields[0][1][2][1][1]]
EMPTY = [one for one in exchanges("pull") if one.reply and one not in DELIVERED]


@pytest.mark.parametrize("exchange", DELIVERED, ids=lambda exchange: exchange.name)
def test_pulls_deliver_the_recorded_messages(server: RealServer, exchange: Exchange, topic: str) -> None:
    world = World(server, exchange, topic)
    world.send(server)
    with Raw(server.ports["consumer"]) as raw:
        answer = until(lambda: _with_messages(raw, world.request), "the messages")
    assert shape(STRUCT, answer[1][1]) == {1: BINARY, 2: BINARY, 3: BINARY}
    context = {number: value for number, (_, value) in answer[1][1].items()}
    assert (context[1], context[2]) == (world.group.encode(), world.topic.encode())
    expected = [comparable(message) for message in world.messages()]
    assert [comparable(message) for message in answer[2][1][1]] == expected


def _with_messages(raw: Raw, request: Frame) -> Any:
    answer = raw.call(request).fields[0][1]
    return answer if answer[2][1][1] else None


@pytest.mark.parametrize("exchange", EMPTY, ids=lambda exchange: exchange.name)
def test_empty_pulls_are_byte_for_byte_a_real_ddmqs(
    server: RealServer, exchange: Exchange, topic: str
) -> None:
    assert exchange.real
    world = World(server, exchange, topic)
    with Raw(server.ports["consumer"]) as raw:
        assert raw.exchange(anyframe.write(world.request)) == exchange.reply


@each("getConsumeStats")
def test_stats_are_answered_although_ddmq_closed_there(
    server: RealServer, exchange: Exchange, topic: str
) -> None:
    """One entry for each topic that the recorded answer had, of that shape; 4 queues each."""
    request = anyframe.read(exchange.request)
    group = f"g-{topic}"
    recorded = [] if exchange.reply is None else anyframe.read(exchange.reply).fields[0][1][1]
    topics = {entry[2][1]: f"{topic}-{n}".encode() for n, entry in enumerate(recorded)} or {b"T": b"T"}
    for name in topics.values():
        make_stats_topic(server, group, name.decode())
    names = {**topics, request.fields[1][1][1][1]: group.encode()}
    renamed = request._replace(fields=anyframe.renamed(request.fields, names))
    with Raw(server.ports["consumer"]) as raw:
        answer = until(lambda: _entries(raw, renamed, len(topics)), "all topics")
    for entry in answer:
        assert shape(STRUCT, entry) == STATS
        assert entry[1][1] == group.encode()
        assert len(entry[3][1][2]) == len(entry[4][1][2]) == 4
        assert {qid for qid, _ in entry[3][1][2]} == {qid for qid, _ in entry[4][1][2]}
    assert {entry[2][1] for entry in answer} == set(topics.values())


def make_stats_topic(server: RealServer, group: str, topic: str) -> None:
    status, _ = server.request("POST", f"/topics/{topic}", {"create": True, "queues": 4})
    assert status in (200, 400), "created, or there from an earlier test"
    server.admin("POST", "groups", group, body={"topics": [topic], "start": "first"})


def _entries(raw: Raw, request: Frame, count: int) -> Any:
    kind, (element, entries) = raw.call(request).fields[0]
    assert (kind, element) == (LIST, STRUCT)
    return entries if len(entries) == count else None
