"""Acknowledgements with messages as no honest client sends them: nothing is stored, nobody else notices."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.interop.anyframe import I64, LIST, STRUCT, Struct
from tests.interop.apache_client import ReplyResponse
from tests.scenarios.real_server import RealServer
from tests.service.hostile.attack import Attacker, encoded, message, prefixed, properties, reply_request, text
from tests.service.hostile.test_hostile_content import MIB, VALUES
from tests.service.hostile.test_hostile_frames import PROTOCOL_ERROR, works

REJECTED = (11, None)
OVER = (11, 3)


def code_and_outcome(answer: Any) -> tuple[int, int | None]:
    assert isinstance(answer.result, ReplyResponse.__mro__[1]), answer
    result: Any = answer.result
    return result.code, result.outcome


def many(*messages: Struct) -> tuple[int, Any]:
    return LIST, (STRUCT, list(messages))


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", ["context", "offset", "lease", "messages", "clientId", "timeout"])
def test_reply_fields_of_every_other_type_are_skipped(
    server: RealServer, wire: str, name: str, kind: int
) -> None:
    """Skipped like unknown ones: the field is absent then."""
    with Attacker(server.ports["consumer"]) as attacker:
        request = reply_request(**{name: (kind, VALUES[kind])})
        answer = attacker.call(encoded(wire, b"reply", request))
        assert answer.error_kind in (None, PROTOCOL_ERROR)
        if answer.error_kind is None:
            assert code_and_outcome(answer) in (REJECTED, OVER)
        assert works(attacker, "consumer")


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": (I64, -1)},
        {"offset": (I64, -(1 << 63))},
        {"lease": (I64, 0)},
        {"lease": (I64, -(1 << 63))},
        {"messages": many()},
        {"clientId": text("c" * 100_000)},
        {"context": (STRUCT, {})},
        {"context": (STRUCT, {1: text(b"\xff\xfe"), 2: text(b"\xff"), 3: text(b"\xff")})},
        {"context": (STRUCT, {1: text("hostile"), 2: text("quiet"), 3: text("R_default_a_" + "9" * 400)})},
        {"context": (STRUCT, {1: text("hostile"), 2: text("other"), 3: text("R_default_a_0")})},
    ],
)
def test_invalid_requests_are_rejected(server: RealServer, wire: str, fields: dict[str, Any]) -> None:
    with Attacker(server.ports["consumer"]) as attacker:
        assert code_and_outcome(attacker.call(encoded(wire, b"reply", reply_request(**fields)))) == REJECTED
        assert works(attacker, "consumer")


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": (I64, (1 << 63) - 1)},
        {"lease": (I64, (1 << 63) - 1)},
        {"timeout": (I64, -(1 << 63))},
        {"timeout": (I64, (1 << 63) - 1)},
        {"messages": many(message(topic=text(b"\xff\xfe")))},
        {"messages": many(message(topic=text("%DELAY")))},
        {"messages": many(message(body=text(bytes(3 * MIB))))},
        {"messages": many(*[message(body=text("x"))] * 20_000)},
        {"messages": many(*[{}] * 50_000)},
        {"messages": many(message(properties=properties(*[(b"%d" % n, b"v") for n in range(20_000)])))},
    ],
)
def test_without_the_lease_nothing_of_it_is_looked_at(
    server: RealServer, wire: str, fields: dict[str, Any]
) -> None:
    """Nobody has that message: that is the answer, whatever the messages are."""
    with Attacker(server.ports["consumer"]) as attacker:
        answer = attacker.call(encoded(wire, b"reply", reply_request(**fields)))
        if answer.error_kind is None:
            assert code_and_outcome(answer) in (OVER, (15, None))
        else:
            assert answer.error_kind == PROTOCOL_ERROR
        assert works(attacker, "consumer")


def test_garbage_instead_of_a_request_is_rejected(server: RealServer, wire: str) -> None:
    """Any byte of it may be any other."""
    random = Random(7)
    frame = encoded(wire, b"reply", reply_request())[4:]
    with Attacker(server.ports["consumer"]) as attacker:
        for _ in range(300):
            broken = bytearray(frame)
            for at in random.sample(range(len(b"reply") + 12, len(frame)), 3):
                broken[at] = random.randrange(256)
            answer = attacker.call(prefixed(bytes(broken)))
            assert answer.error_kind is not None or answer.result.code != 0
        assert works(attacker, "consumer")


def test_thousands_of_replies_for_unknown_leases_are_rejected(server: RealServer, wire: str) -> None:
    before = server.metric("ddmq_replies_total", group="hostile", outcome="lease over")
    frame = encoded(wire, b"reply", reply_request())
    with Attacker(server.ports["consumer"]) as attacker:
        attacker.send(frame * 1_000)
        for _ in range(1_000):
            assert code_and_outcome(attacker.read()) in (OVER, (15, None))
    assert server.metric("ddmq_replies_total", group="hostile", outcome="lease over") >= before
