"""What old clients do that a strict reader of the contract would not: all of it works.

Requests are built field by field, so that what is on the wire is exactly what stands here.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop import anyframe
from tests.interop.anyframe import (
    BINARY,
    BYTE,
    CALL,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    Frame,
    Struct,
)  # fmt: skip
from tests.interop.apache_client import Client, PullRequest, done
from tests.interop.recorded import Raw
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

UNKNOWN: Struct = {
    77: (BINARY, b"\xff\xfe"),
    78: (STRUCT, {1: (LIST, (MAP, [(I32, STRUCT, [(1, {1: (TRUE, True), 300: (I32, 0)})])]))}),
    79: (SET, (BINARY, [b"a", b"b"])),
    99: (BYTE, 7),
    2000: (MAP, (BINARY, BINARY, [(b"k", b"v")])),
    30000: (I64, -1),
}


def text(value: str) -> tuple[int, bytes]:
    return BINARY, value.encode()


def send(server: RealServer, message: Struct, timeout: int | None = 5_000, sequence: int = 0) -> Any:
    """A sendSync with exactly these fields: code, or the whole answer when it is no Result."""
    args: Struct = {1: (STRUCT, message)}
    if timeout is not None:
        args[2] = (I64, timeout)
    with Raw(server.ports["producer"]) as raw:
        answer = raw.call(Frame(CALL, sequence, b"sendSync", args))
    result = answer.fields[0][1]
    assert set(result) == {1, 2}, result
    return result[1][1]


def pull(server: RealServer, request: Struct, sequence: int = 0) -> Struct:
    """A pull with exactly these fields: its PullResponse."""
    with Raw(server.ports["consumer"]) as raw:
        answer = raw.call(Frame(CALL, sequence, b"pull", {1: (STRUCT, request)}))
    response: Struct = answer.fields[0][1]
    return response


def received(server: RealServer, group: str) -> dict[int, Any]:
    """The one message that is there: field id → value."""
    request = {1: text(group), 11: (I32, 100)}

    def one() -> Any:
        messages = pull(server, request)[2][1][1]
        return messages and {number: value for number, (_, value) in messages[0].items()}

    message: dict[int, Any] = until(one, "the message")
    return message


def test_absent_scalars_take_their_defaults(server: RealServer, topic: str, group: str) -> None:
    """Python leaves hashId out; partitionId absent is -1, so the queue of hash 0."""
    assert send(server, {1: text(topic), 7: text("b")}, timeout=None) == 0
    assert received(server, group) == {2: b"b", 4: 0}
    with Client(server.ports["consumer"]) as client:
        (stats,) = client.stats(group)
    assert [offset for _, offset in sorted(stats.produceOffsets.items())] == [1, 0, 0, 0]


def test_empty_strings_count_as_absent(server: RealServer, topic: str, group: str) -> None:
    """Go and C++ write every string, empty when unset; an empty map is one 00 byte."""
    empty = {2: text(""), 3: text(""), 5: text("")}
    properties: Struct = {9: (MAP, (0, 0, []))}
    message = {1: text(topic), **empty, 6: (I32, -2), 7: text("b"), 8: text("go_sdk_2.0.3"), **properties}
    assert send(server, message) == 0
    assert received(server, group) == {2: b"b", 4: 0}


@pytest.mark.parametrize(
    ("value", "body", "stored"),
    [
        ("from php", None, b"from php"),
        ("from php", b"", b"from php"),
        ("", b"body", b"body"),
        ("value", b"body", b"body"),
    ],
)
def test_the_payload_may_stand_in_value(
    server: RealServer, topic: str, group: str, value: str, body: bytes | None, stored: bytes
) -> None:
    message = {1: text(topic), 3: text(value)}
    if body is not None:
        message[7] = (BINARY, body)
    assert send(server, message) == 0
    assert received(server, group)[2] == stored


def test_value_need_not_be_text(server: RealServer, topic: str, group: str) -> None:
    assert send(server, {1: text(topic), 3: (BINARY, b"\x00\xff\xfe")}) == 0
    assert received(server, group)[2] == b"\x00\xff\xfe"


def test_a_star_is_a_tag(server: RealServer, topic: str, group: str) -> None:
    assert send(server, {1: text(topic), 5: text("*"), 7: text("b")}) == 0
    assert received(server, group)[3] == b"*"


def test_unknown_fields_are_skipped_everywhere(server: RealServer, topic: str, group: str) -> None:
    message = {1: text(topic), 7: text("b"), **UNKNOWN}
    args: Struct = {1: (STRUCT, message), 2: (I64, 5_000), **UNKNOWN}
    with Raw(server.ports["producer"]) as raw:
        answer = raw.call(Frame(CALL, 5, b"sendSync", args))
    assert answer.fields[0][1] == {1: (I32, 0), 2: text("OK")}, "and nothing of ours is answered"
    assert received(server, group) == {2: b"b", 4: 0}
    context = {1: text(group), 2: text(topic), 3: text("nothing"), **UNKNOWN}
    result = {1: (STRUCT, context), 3: (LIST, (I64, [0])), 4: (LIST, (I64, [])), **UNKNOWN}
    request = {1: text(group), 11: (I32, 20), 50: (STRUCT, result), **UNKNOWN}
    assert set(pull(server, dict(sorted(request.items())))) == {1, 2}


def test_a_result_without_fail_list_or_next(server: RealServer, topic: str, group: str) -> None:
    assert send(server, {1: text(topic), 7: text("b")}) == 0
    received(server, group)
    context = {1: text(group), 2: text(topic), 3: text(qid(server, group, 0))}
    with Raw(server.ports["consumer"]) as raw:
        result = {1: (STRUCT, context), 3: (LIST, (I64, [0]))}
        answer = raw.call(Frame(CALL, 0, b"submit", {1: (STRUCT, result)}))
    assert answer.fields == {0: (TRUE, True)}
    assert consumed(server, group) == 1


def qid(server: RealServer, group: str, queue: int) -> str:
    with Client(server.ports["consumer"]) as client:
        (stats,) = client.stats(group)
    return sorted(stats.produceOffsets)[queue]


def consumed(server: RealServer, group: str) -> int:
    """Committed offsets of all queues together."""
    with Client(server.ports["consumer"]) as client:
        return sum(client.stats(group)[0].consumeOffsets.values())


def batch(client: Client, group: str) -> Any:
    """The next two messages, in the first answer that has any: a group that is new may have its queues later
    than one pull waits."""

    def some() -> Any:
        answer = client.pull(group, maxBatchSize=2, maxLingerTime=1_000)
        return answer.messages and answer

    return until(some, "two messages")


def test_acknowledgements_resent_on_a_new_connection(server: RealServer, topic: str, group: str) -> None:
    """The answer to the first pull with results is lost with its connection; then all of it comes again."""
    for _ in range(6):
        assert send(server, {1: text(topic), 6: (I32, 0), 7: text("b")}) == 0
    with Client(server.ports["consumer"]) as client:
        first = batch(client, group)
        result = done(first)
        client.send_request("pull", request=PullRequest(groupId=group, maxBatchSize=2, result=result))
    offsets = [message.offset for message in first.messages]
    for _ in range(2):
        with Client(server.ports["consumer"]) as client:
            answer = client.pull(group, maxBatchSize=2, maxLingerTime=100, result=result)
            assert not {message.offset for message in answer.messages} & set(offsets)
            assert client.submit(done(answer)) is True
    assert consumed(server, group) >= len(offsets)


def test_acknowledged_out_of_order_by_twos(server: RealServer, topic: str, group: str) -> None:
    """As Go does: batches of 2, acknowledged in any order, some of them failed."""
    for number in range(8):
        assert send(server, {1: text(topic), 6: (I32, 0), 7: text(str(number))}) == 0
    with Client(server.ports["consumer"]) as client:
        answers = [batch(client, group) for _ in range(4)]
        assert [m.offset for answer in answers for m in answer.messages] == list(range(8))
        for answer in (answers[3], answers[1], answers[2]):
            answer.messages.reverse()
            assert client.submit(done(answer)) is True
        assert consumed(server, group) == 0
        client.submit(done(answers[0]))
    assert consumed(server, group) == 8


def test_a_delay_cancel_that_carries_nothing_else(server: RealServer) -> None:
    """No fields 6 to 10; a random tag."""
    ident = "1795288560-2-1795461360-0-0-0-5-fa5f8df0-e5df-11f1-9286-02fc00000001"
    cancel = {1: text("Tdelay"), 2: text(ident), 3: text("c"), 4: text("wjKMzXtSgawneq7e"), 5: (I32, 2)}
    with Raw(server.ports["producer"]) as raw:
        answer = raw.call(Frame(CALL, 0, b"sendDelaySync", {1: (STRUCT, cancel), 2: (I64, 500)}))
    assert answer.fields[0][1] == {1: (I32, 0), 2: text("OK"), 3: text(ident)}


@pytest.mark.parametrize("sequence", [0, 1, 127, 128, 65_536, (1 << 31) - 1])
def test_sequence_ids_are_echoed_unchanged(server: RealServer, topic: str, sequence: int) -> None:
    """`call` asserts it; they go on over a new connection, and may repeat."""
    message = {1: text(topic), 7: text("b")}
    assert send(server, message, sequence=sequence) == send(server, message, sequence=sequence) == 0


def test_old_readers_can_skip_unknown_fields(server: RealServer, topic: str, group: str) -> None:
    """Answers to old clients hold only the contract's fields; those of ours are skippable all the same."""
    assert send(server, {1: text(topic), 7: text("b"), 9: (MAP, (BINARY, BINARY, [(b"p", b"v")]))}) == 0
    request: Struct = {1: text(group), 11: (I32, 1_000), 100: text("me")}
    messages = until(lambda: pull(server, request)[2][1][1], "the message")
    assert set(messages[0]) == {2, 4, 5, 100, 101, 102, 103, 104, 105}
    assert anyframe.shape(STRUCT, messages[0])[100] == BINARY
