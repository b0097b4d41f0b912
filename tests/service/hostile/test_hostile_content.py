"""Well-framed requests with contents that no honest client sends."""

from __future__ import annotations

import os
from struct import pack
from typing import Any
from urllib.parse import quote

import pytest

from tests.interop.anyframe import (
    BINARY,
    BYTE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    Struct,
    varint,
)  # fmt: skip
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
    send_sync,
    text,
)
from tests.service.hostile.conftest import Bystander
from tests.service.hostile.test_hostile_frames import PROTOCOL_ERROR, works

MIB = 1 << 20
VALUES: dict[int, Any] = {
    TRUE: True,
    FALSE: False,
    BYTE: 1,
    I16: 1,
    I32: 1,
    I64: 1,
    BINARY: b"x",
    LIST: (I64, [1]),
    SET: (BINARY, [b"x"]),
    MAP: (I32, I32, [(1, 1)]),
    STRUCT: {1: (I32, 1)},
}


# --- wrong types


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("number", range(1, 10))
def test_message_fields_of_every_other_type_are_skipped(
    server: RealServer, wire: str, number: int, kind: int
) -> None:
    """Skipped like unknown ones: the field is absent then. A map of wrong parts is no properties."""
    fields = message()
    fields[number] = (kind, VALUES[kind])
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(encoded(wire, b"sendSync", send_sync(dict(sorted(fields.items())))))
        assert answer.error_kind in (None, PROTOCOL_ERROR)
        if answer.error_kind is None:
            absent = number in (1, 7) and kind != BINARY
            assert answer.result.code == (11 if absent else 0)
        assert works(attacker)


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != STRUCT])
@pytest.mark.parametrize("method", ["sendSync", "sendBatchSync", "sendDelaySync", "pull", "submit"])
def test_arguments_of_every_other_type_are_a_protocol_error(
    server: RealServer, wire: str, method: str, kind: int
) -> None:
    component = "consumer" if method in ("pull", "submit") else "producer"
    with Attacker(server.ports[component]) as attacker:
        answer = attacker.call(encoded(wire, method.encode(), {1: (kind, VALUES[kind])}))
        assert answer.error_kind == PROTOCOL_ERROR
        assert works(attacker, component)


@pytest.mark.parametrize("method", ["sendSync", "sendBatchSync", "sendDelaySync", "pull", "submit"])
def test_no_arguments_at_all(server: RealServer, wire: str, method: str) -> None:
    component = "consumer" if method in ("pull", "submit") else "producer"
    with Attacker(server.ports[component]) as attacker:
        assert attacker.call(encoded(wire, method.encode(), {})).error_kind == PROTOCOL_ERROR
        assert works(attacker, component)


def test_a_pull_without_its_required_group(server: RealServer, wire: str) -> None:
    with Attacker(server.ports["consumer"]) as attacker:
        answer = attacker.call(encoded(wire, b"pull", {1: (STRUCT, {2: text("hostile")})}))
        assert answer.error_kind == PROTOCOL_ERROR
        answer = attacker.call(encoded(wire, b"getConsumeStats", {1: (STRUCT, {})}))
        assert answer.error_kind == PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        {"successOffsets": (LIST, (BINARY, [b"1", b"2"]))},
        {"successOffsets": (LIST, (STRUCT, [{}]))},
        {"successOffsets": (BINARY, b"12")},
        {"context": (I64, 1)},
        {"nextResult": (LIST, (I64, [1]))},
        {"successOffsets": (MAP, (I64, I64, [(1, 1)]))},
    ],
    ids=str,
)
def test_results_of_other_types_finish_nothing(server: RealServer, wire: str, fields: dict[str, Any]) -> None:
    """Ignored, or a protocol error; nothing is finished by them and the connection goes on."""
    with Attacker(server.ports["consumer"]) as attacker:
        answer = attacker.call(encoded(wire, b"submit", {1: (STRUCT, consume_result(**fields))}))
        assert answer.error_kind == PROTOCOL_ERROR or answer.result is True
        assert works(attacker, "consumer")


# --- deep recursion


def linked(wire: str, depth: int) -> bytes:
    """submit with a list of that many results, one inside the other; the innermost is cut short."""
    if wire == "compact":
        return header(wire, b"submit") + b"\x1c" + b"\xac" * depth + b"\0" * (depth + 2)
    first, inner = b"\x0c" + pack(">h", 1), b"\x0c" + pack(">h", 10)
    return header(wire, b"submit") + first + inner * depth + b"\0" * (depth + 2)


@pytest.mark.parametrize("depth", [1, 30, 60])
def test_results_linked_as_far_as_honest_clients_do(server: RealServer, wire: str, depth: int) -> None:
    with Attacker(server.ports["consumer"]) as attacker:
        assert attacker.call(prefixed(linked(wire, depth))).result is True


@pytest.mark.parametrize("depth", [64, 65, 1_000, 100_000, 1_200_000])
def test_results_linked_without_end(server: RealServer, wire: str, depth: int) -> None:
    with Attacker(server.ports["consumer"]) as attacker:
        answer = attacker.call(prefixed(linked(wire, depth)))
        assert answer.error_kind == PROTOCOL_ERROR
        assert works(attacker, "consumer")


@pytest.mark.parametrize("kind", [LIST, SET, MAP, STRUCT])
def test_unknown_fields_nested_without_end(server: RealServer, kind: int) -> None:
    """A field that is skipped, but must be walked through."""
    opening = {LIST: b"\x19", SET: b"\x1a", MAP: b"\x01\x8b\x01x", STRUCT: b"\x1c"}[kind]
    field = bytes([kind]) + varint(200)  # field 100 in the long form
    body = header("compact", b"sendSync") + b"\x1c" + field + opening * 200_000
    with Attacker(server.ports["producer"]) as attacker:
        assert attacker.call(prefixed(body)).error_kind == PROTOCOL_ERROR
        assert works(attacker)


# --- sizes inside


@pytest.mark.parametrize("size", [-1, -(1 << 31), 1 << 20, (1 << 31) - 1])
@pytest.mark.parametrize("what", ["string", "list", "map"])
def test_negative_and_huge_sizes(server: RealServer, wire: str, what: str, size: int) -> None:
    body = header(wire, b"sendBatchSync" if what == "list" else b"sendSync")
    if wire == "compact":
        count = varint(size & 0xFFFFFFFF)
        body += {
            "string": b"\x1c\x18" + count,
            "list": b"\x19\xfc" + count,
            "map": b"\x1c\x9b" + count + b"\x88",
        }[what]
    else:
        count = pack(">i", size)
        struct = b"\x0c" + pack(">h", 1)
        body += {
            "string": struct + b"\x0b" + pack(">h", 1) + count,
            "list": b"\x0f" + pack(">h", 1) + b"\x0c" + count,
            "map": struct + b"\x0d" + pack(">h", 9) + b"\x0b\x0b" + count,
        }[what]
    with Attacker(server.ports["producer"]) as attacker:
        assert attacker.call(prefixed(body + b"rest")).error_kind == PROTOCOL_ERROR
        assert works(attacker)


@pytest.mark.parametrize("batch_size", [-1, -(1 << 31), (1 << 31) - 1])
def test_requested_sizes_of_a_pull_are_checked(server: RealServer, wire: str, batch_size: int) -> None:
    with Attacker(server.ports["consumer"]) as attacker:
        answer = attacker.call(encoded(wire, b"pull", pull_request(maxBatchSize=(I32, batch_size))))
        if batch_size < 0:
            assert answer.thrown.code == 11
            assert str(batch_size) in answer.thrown.message
        else:
            assert answer.result.messages == []


def test_offsets_of_every_size(server: RealServer, wire: str) -> None:
    offsets = [-(1 << 63), -1, 0, (1 << 63) - 1] * 4_000
    with Attacker(server.ports["consumer"]) as attacker:
        result = consume_result(successOffsets=(LIST, (I64, offsets)), failOffsets=(LIST, (I64, offsets)))
        assert attacker.call(encoded(wire, b"submit", {1: (STRUCT, result)})).result is True


# --- text


NOT_UTF8 = [b"\xff", b"a\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]


@pytest.mark.parametrize("bad", NOT_UTF8, ids=repr)
@pytest.mark.parametrize("field", ["topic", "key", "tags", "name", "value"])
def test_invalid_utf8_in_sends_is_11(server: RealServer, wire: str, field: str, bad: bytes) -> None:
    if field in ("name", "value"):
        pair = (bad, b"v") if field == "name" else (b"p", bad)
        fields = message(properties=properties(pair))
    else:
        fields = message(**{field: text(bad)})
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(encoded(wire, b"sendSync", send_sync(fields)))
        assert answer.result.code == 11
        assert answer.result.msg.startswith("FAILED:")
        assert works(attacker)


@pytest.mark.parametrize("bad", NOT_UTF8, ids=repr)
def test_invalid_utf8_in_pulls(server: RealServer, wire: str, bad: bytes) -> None:
    with Attacker(server.ports["consumer"]) as attacker:
        unknown = attacker.call(encoded(wire, b"pull", pull_request(groupId=text(bad))))
        assert unknown.result.messages == [], "an unknown group"
        for fields in ({"groupId": text(bad), "topic": text("hostile")}, {"topic": text(bad)}):
            answer = attacker.call(encoded(wire, b"pull", pull_request(**fields)))
            assert answer.thrown.code == 11
        context: Struct = {1: text(bad), 2: text(bad), 3: text(bad)}
        result = consume_result(context=(STRUCT, context))
        assert attacker.call(encoded(wire, b"submit", {1: (STRUCT, result)})).result is True
        stats: Struct = {1: text("hostile"), 2: text(bad)}
        assert attacker.call(encoded(wire, b"getConsumeStats", {1: (STRUCT, stats)})).result == []


PATHS = [
    "..", ".", "/", "../x", "a/../../b", "/etc/passwd", "a\\b", "C:", "a\0b", "a b", "a\nb", "~", "$HOME",
    "*", "🙂",
]  # fmt: skip


@pytest.mark.parametrize("name", PATHS, ids=repr)
def test_path_characters_in_names(server: RealServer, wire: str, name: str) -> None:
    before = folders(server)
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(encoded(wire, b"sendSync", send_sync(message(topic=text(name)))))
        assert answer.result.code == 11
    with Attacker(server.ports["consumer"]) as attacker:
        for fields in ({"groupId": text(name), "topic": text("hostile")}, {"topic": text(name)}):
            answer = attacker.call(encoded(wire, b"pull", pull_request(**fields)))
            assert answer.thrown.code == 11
    for target in (f"/topics/{quote(name, safe='')}", f"/groups/{quote(name, safe='')}"):
        status, _ = server.request(
            "POST", target, {"create": True} if "topics" in target else {"topics": ["quiet"]}
        )
        assert status in (400, 404, 405), target
    assert folders(server) == before


def folders(server: RealServer) -> set[str]:
    """Every folder that the server made, and its neighbours."""
    return {path for path, _, _ in os.walk(server.folder)}


# --- bodies and batches at their bounds


@pytest.mark.parametrize(
    ("size", "code"), [(2 * MIB - 1, 0), (2 * MIB, 0), (2 * MIB + 1, 11), (1, 0), (0, 11)]
)
def test_bodies_at_the_limit(server: RealServer, wire: str, size: int, code: int) -> None:
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(encoded(wire, b"sendSync", send_sync(message(body=text(bytes(size))))))
        assert answer.result.code == code
        assert code == 0 or str(size) in answer.result.msg


@pytest.mark.parametrize(("sizes", "code"), [([2 * MIB, 2 * MIB], 0), ([2 * MIB, 2 * MIB, 1], 11)])
def test_batches_at_their_byte_limit(server: RealServer, wire: str, sizes: list[int], code: int) -> None:
    messages = [message(body=text(bytes(size))) for size in sizes]
    with Attacker(server.ports["producer"]) as attacker:
        assert attacker.call(encoded(wire, b"sendBatchSync", batch(messages))).result.code == code


@pytest.mark.parametrize(
    ("count", "code", "error_kind"),
    [(4_096, 0, None), (4_097, 11, None), (16_384, 11, None), (16_385, None, PROTOCOL_ERROR)],
)
def test_batches_at_their_count_limit(
    server: RealServer, wire: str, count: int, code: int | None, error_kind: int | None
) -> None:
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(encoded(wire, b"sendBatchSync", batch([message()] * count)))
        assert answer.error_kind == error_kind
        assert answer.result is None if error_kind else answer.result.code == code
        assert works(attacker)


def many(element: bytes, count: int, kind: int = STRUCT) -> bytes:
    """sendBatchSync, compact, with that many of these bytes as its members."""
    body = header("compact", b"sendBatchSync") + b"\x19" + bytes([0xF0 | kind]) + varint(count)
    return prefixed(body + element * count + b"\0")


@pytest.mark.parametrize(
    ("element", "count", "kind"),
    [
        (b"\0", 4_900_000, STRUCT),
        (b"\0", 16_384, STRUCT),
        (b"\x18\x01t\x00", 1_200_000, STRUCT),
        (b"\x01", 4_900_000, TRUE),
        (b"\x0b", 4_900_000, MAP),
    ],
)
def test_bombs_of_tiny_members(
    server: RealServer, bystander: Bystander, element: bytes, count: int, kind: int
) -> None:
    """Five megabytes that would become millions of objects: refused cheaply."""
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(many(element, count, kind))
        assert answer.error_kind == PROTOCOL_ERROR or answer.result.code == 11
        assert works(attacker)


def test_bombs_of_properties(server: RealServer) -> None:
    """Honest containers, each at its bound: the frame's decoding time is what ends it."""
    pairs = [(b"%d" % number, b"v") for number in range(16_000)]
    frame = encoded("compact", b"sendBatchSync", batch([message(properties=properties(*pairs))] * 40))
    with Attacker(server.ports["producer"]) as attacker:
        answer = attacker.call(frame)
        assert answer.error_kind == PROTOCOL_ERROR or answer.result.code == 11
        assert works(attacker)
