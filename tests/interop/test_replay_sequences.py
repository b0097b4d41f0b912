"""Whole recorded conversations, replayed: clients that lost answers and said everything again.

In the consumer ones a server closed every fifth pull unanswered after it had taken the results; here the
client's side closes instead, without having read the answer. Topics hold what the recorded ones held, so
the recorded offsets are valid; our server may hand them out in another order, so some acknowledgements
name messages that are not delivered yet: those are ignored. The first queue's come first, as recorded: the
other queues are filled after the first answer.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop import anyframe
from tests.interop.anyframe import REPLY, STRUCT, Frame, shape
from tests.interop.apache_client import Client, done
from tests.interop.conftest import make_group
from tests.interop.recorded import Raw, Step, answered, conversation, patient, without_shard
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

Location = tuple[int, int]  # queue, offset
DELIVERED, CONTEXT = {1, 2, 3, 4, 5}, {1, 2, 3}


def queue_of(qid: bytes) -> int:
    return int(qid.rpartition(b"_")[2])


def locations(response: Any) -> list[Location]:
    """Queue and offset of every message of a PullResponse tree."""
    messages = response[2][1][1]
    return [(queue_of(response[1][1][3][1]), message[4][1]) for message in messages]


def results(request: Any) -> dict[str, set[Location]]:
    """What a PullRequest tree says of messages, over the whole linked list."""
    offsets: dict[str, set[Location]] = {"done": set(), "failed": set()}
    result = request[50][1] if 50 in request else None
    while result is not None:
        queue = queue_of(result[1][1][3][1])
        for field, kind in ((3, "done"), (4, "failed")):
            offsets[kind] |= {(queue, offset) for offset in (result[field][1][1] if field in result else [])}
        result = result[10][1] if 10 in result else None
    return offsets


class Conversation:
    """A recorded consumer's conversation, moved to a topic and group of its own."""

    def __init__(self, server: RealServer, name: str, topic: str) -> None:
        self.server = server
        self.steps = conversation(name)
        self.topic = topic
        self.group = f"g-{topic}"
        self.bodies: dict[Location, bytes] = {}
        self.finished: set[Location] = set()
        self.leased: set[Location] = set()
        self.redelivered: list[Location] = []  # delivered after their acknowledgement was answered
        make_group(server, self.group, topic)
        self._record_bodies()
        self._fill(0)
        self.qids = self._qids()

    def _record_bodies(self) -> None:
        for step in self.steps:
            if isinstance(step.what, bytes) and not step.by_client:
                answer = anyframe.read(step.what)
                if answer.method == b"pull":
                    response = answer.fields[0][1]
                    for location, message in zip(locations(response), response[2][1][1], strict=True):
                        self.bodies[location] = message[2][1]

    def _fill(self, queue: int) -> None:
        """Every message that the recording delivered, at its offset; a filler where one is unknown."""
        end = max(offset for number, offset in self.bodies if number == queue) + 1
        with Client(self.server.ports["producer"]) as client:
            for offset in range(end):
                body = self.bodies.setdefault((queue, offset), b"filler")
                assert client.send(self.topic, body, partitionId=queue).code == 0

    def _first(self, raw: Raw, request: Frame) -> Frame:
        """The answer to the first pull, which has messages."""

        def ask() -> Frame | None:
            answer = raw.call(request)
            return answer if answer.fields[0][1][2][1][1] else None

        answer = until(ask, "the first messages")
        for queue in range(1, 4):
            self._fill(queue)
        return answer

    def _qids(self) -> dict[int, bytes]:
        with Client(self.server.ports["consumer"]) as client:
            stats = until(lambda: client.stats(self.group), "the subscription")
        return {queue_of(qid.encode()): qid.encode() for qid in stats[0].produceOffsets}

    def translated(self, frame: bytes) -> Frame:
        """The recorded request with our names in it."""
        request = anyframe.read(frame)
        names = {b"W": self.topic.encode(), b"WG": self.group.encode()}
        names |= {b"standin_b0_%d" % queue: qid for queue, qid in self.qids.items()}
        return request._replace(fields=anyframe.renamed(request.fields, names))

    def replay(self) -> int:
        """All of it; how many answers were lost on the way."""
        connections: dict[str, Raw] = {}
        lost = 0
        for step, reply in answered(self.steps):
            if step.what == "open":
                connections[step.connection] = Raw(self.server.ports["consumer"])
            elif step.what == "close":
                connections.pop(step.connection).close()
            elif isinstance(step.what, bytes):
                lost += self._request(connections[step.connection], step.what, reply)
        for raw in connections.values():
            raw.close()
        return lost

    def _request(self, raw: Raw, frame: bytes, reply: bytes | None) -> bool:
        request = self.translated(frame)
        if reply is None:
            raw.send(anyframe.write(request))
            self._take(request)
            return True
        answer = raw.call(request) if self.leased or self.finished else self._first(raw, request)
        assert answer.kind == REPLY
        self._take(request)
        if request.method == b"pull":
            self._delivered(answer)
        else:
            assert set(shape(STRUCT, answer.fields)) == {0}
        return False

    def _take(self, request: Frame) -> None:
        """What the request's results finish: messages that this client held."""
        if request.method == b"pull":
            offsets = results(request.fields[1][1])
            self.finished |= offsets["done"] & self.leased
            self.leased -= offsets["done"] | offsets["failed"]

    def _delivered(self, answer: Frame) -> None:
        response = answer.fields[0][1]
        for message in response[2][1][1]:
            assert set(message) <= DELIVERED
        if not response[2][1][1]:
            assert answer.fields == {0: (STRUCT, {1: (STRUCT, {}), 2: response[2]})}
            return
        assert set(response[1][1]) == CONTEXT
        for location, message in zip(locations(response), response[2][1][1], strict=True):
            assert message[2][1] == self.bodies[location]
            self._record_delivery(location)

    def _record_delivery(self, location: Location) -> None:
        self.leased.add(location)
        if location in self.finished:
            self.redelivered.append(location)

    def drain(self) -> None:
        """What the recording left: everything comes that is not finished, nothing else."""
        with Client(self.server.ports["consumer"]) as client:
            until(lambda: self._one_pull(client), "everything is finished")

    def _one_pull(self, client: Client) -> bool:
        answer = client.pull(self.group, maxLingerTime=50)
        for message in answer.messages:
            self._record_delivery((queue_of(answer.context.qid.encode()), message.offset))
        client.submit(done(answer))
        (stats,) = client.stats(self.group)
        return bool(stats.consumeOffsets == stats.produceOffsets)


@pytest.mark.parametrize("name", ["go/sequence_dropped", "java/sequence_dropped"])
def test_resent_results_are_accepted_on_a_new_connection(short: RealServer, name: str, topic: str) -> None:
    """The ack time-out is short there: what was in a lost answer comes again soon."""
    talk = Conversation(short, name, topic)
    assert talk.replay() >= 5, "the recording loses answers"
    assert len(talk.finished) > 10
    talk.drain()
    assert talk.redelivered == [], "what was acknowledged never comes again"
    assert len(talk.bodies) >= len(talk.finished)


def test_a_rejected_producer_continues(server: RealServer) -> None:
    """Code 31 twice, a new connection after it, and on: answers as recorded."""
    connections: dict[str, Raw] = {}
    codes: list[int] = []
    for step, reply in answered(conversation("java/sequence_code31")):
        if step.what == "open":
            connections[step.connection] = Raw(server.ports["producer"])
        elif step.what == "close":
            connections.pop(step.connection).close()
        else:
            codes.append(_answer_as_recorded(connections[step.connection], step, reply))
    assert codes.count(31) == 2
    assert codes.count(0) > 10
    assert set(codes) == {0, 31}


def _answer_as_recorded(raw: Raw, step: Step, reply: bytes | None) -> int:
    assert isinstance(step.what, bytes)
    assert reply is not None
    answer = raw.exchange(patient(step.what))
    result, recorded = anyframe.read(answer), anyframe.read(reply)
    assert result[:3] == recorded[:3]
    assert shape(STRUCT, result.fields) == shape(STRUCT, recorded.fields)
    code: int = result.fields[0][1][1][1]
    if code == 0 and result.method == b"sendDelaySync":
        assert without_shard(result) == without_shard(recorded)
    elif code == 0:
        assert answer == reply
    return code
