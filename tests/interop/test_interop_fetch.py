"""Low-level fetch and ack by an independent client, and the recorded ones of the Java client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop import anyframe
from tests.interop.anyframe import BINARY, MAP
from tests.interop.apache_client import Client, FetchResponse, PullError
from tests.interop.conftest import make_group
from tests.interop.recorded import Raw, exchanges
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

QIDS = {f"standin_b0_{n}".encode(): f"R_default_a_{n}".encode() for n in range(4)}


def recorded(name: str) -> Any:
    return next(one for one in exchanges(name.split("_")[2]) if one.name == f"java/{name}")


def queues_of(name: str) -> list[tuple[bytes, int, list[dict[int, Any]]]]:
    """(topic, queue, messages) of a recorded answer."""
    results = anyframe.read(recorded(name).reply).fields[0][1][10][1][1]
    return [(one[1][1], int(one[2][1].rpartition(b"_")[2]), one[10][1][1]) for one in results]


def send_recorded(server: RealServer, name: str, topics: dict[bytes, bytes]) -> None:
    with Client(server.ports["producer"]) as client:
        for topic, queue, messages in queues_of(name):
            for message in messages:
                fields = {number: value for number, (_, value) in message.items()}
                arguments: dict[str, Any] = {"partitionId": queue, "body": fields[2]}
                arguments["key"] = fields[1].decode() if 1 in fields else None
                arguments["tags"] = fields[3].decode() if 3 in fields else None
                pairs = fields.get(5, (0, 0, []))[2]
                arguments["properties"] = {key.decode(): value.decode() for key, value in pairs} or None
                assert client.send(topics[topic].decode(), **arguments).code == 0


def comparable(response: Any, gapless: bool) -> Any:
    """Queues by name, properties in no order, what is empty is none; offsets where they are counted."""
    batches = {}
    for one in response[10][1][1]:
        messages = []
        for message in one[10][1][1]:
            message = dict(message)
            if 5 in message:
                message[5] = (MAP, sorted(message[5][1][2]))
                if not message[5][1]:
                    del message[5]
            for text in (1, 3):
                if message.get(text) == (BINARY, b""):
                    del message[text]
            if not gapless:
                del message[4]
            messages.append(message)
        batches[one[1][1], one[2][1]] = (one[3] if gapless else None, messages, set(one))
    return batches


def count(answer: Any) -> list[int]:
    """The messages of each queue."""
    return sorted(len(one[10][1][1]) for one in answer[0][1][10][1][1])


def test_the_recorded_conversation_word_for_word(server: RealServer, topic: str, engine: str) -> None:
    """fetch, ack, fetch, ack of the Java client: the same messages, offsets and absent fields.

    Some of it is what an old delay server sends, a transaction on Kafka, whose end takes an offset.
    """
    gapless = engine != "kafka"
    topics = {b"V": f"{topic}-V".encode(), b"Vdelay": f"{topic}-W".encode()}
    for name in topics.values():
        make_group(server, f"g-{topic}", name.decode())
    status, _ = server.request("GET", f"/groups/g-{topic}")
    assert status == 200
    names = {b"VLL": f"g-{topic}".encode(), **topics, **QIDS}
    send_recorded(server, "manual_lowlevel_fetch_04", topics)
    with Raw(server.ports["consumer"]) as raw:

        def replay(name: str, until_all: bool = False) -> Any:
            request = anyframe.read(recorded(name).request)
            request = request._replace(fields=anyframe.renamed(request.fields, names))
            expected = anyframe.renamed(anyframe.read(recorded(name).reply).fields, names)

            def ask() -> Any:
                answer = raw.call(request).fields
                return answer if not until_all or count(answer) == count(expected) else None

            return until(ask, name), expected

        answer, expected = replay("manual_lowlevel_fetch_04", until_all=True)
        assert comparable(answer[0][1], gapless) == comparable(expected[0][1], gapless)
        assert set(answer[0][1]) == {10}, "code is absent"
        answer, expected = replay("manual_lowlevel_ack_05")
        assert answer == expected
        send_recorded(server, "manual_lowlevel_fetch_06", topics)
        answer, expected = replay("manual_lowlevel_fetch_06", until_all=True)
        assert comparable(answer[0][1], gapless) == comparable(expected[0][1], gapless)
        answer, expected = replay("manual_lowlevel_ack_07")
        assert answer == expected


def test_fetch_ack_and_go_on_elsewhere(server: RealServer, group: str, topic: str, protocol: str) -> None:
    with Client(server.ports["producer"]) as producer:
        for number in range(40):
            assert producer.send(topic, body=b"%d" % number, partitionId=number % 4).code == 0
    with Client(server.ports["consumer"], protocol) as client:
        got = fetched(client, group, {}, 40, maxBatchSize=3)
        assert sorted(got) == list(range(40))
    with Client(server.ports["consumer"], protocol) as client:
        response = client.fetch("me", group, maxBatchSize=3)
        assert [len(one.messages) for one in response.results] == [0] * 4, "everything is acknowledged"
        assert [one.nextRequestOffset for one in response.results] == [10] * 4


def fetched(
    client: Client, group: str, offsets: dict[str, dict[str, int]], count: int, **options: Any
) -> list[int]:
    """Fetch as the old clients do, acknowledging each answer, until `count` messages have come."""
    got: list[int] = []

    def more() -> bool:
        response: FetchResponse = client.fetch("me", group, fetchOffset=offsets, maxLingerTime=50, **options)
        for one in response.results:
            offsets.setdefault(one.topic, {})[one.qid] = one.nextRequestOffset
            got.extend(int(message.value) for message in one.messages)
            assert all(set(message.set_fields()) == {"value", "offset"} for message in one.messages)
        if offsets:
            assert client.ack("me", group, offsets) is True
        return len(got) >= count

    until(more, "all messages")
    return got


def test_a_pull_of_a_fetching_group_is_rejected_with_the_reason(
    server: RealServer, group: str, topic: str
) -> None:
    with Client(server.ports["consumer"]) as client:
        until(lambda: len(client.fetch("me", group, maxLingerTime=50).results) == 4, "the queues")
        with pytest.raises(PullError, match=r"is fetched from at this proxy \(consumer ids me\)"):
            client.pull(group, topic)
