"""Long valid texts in every text field of every request that the IDL knows: answered, and never kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from thriftpy2.thrift import TType

from ddmq_client.idl import consumer, producer
from ddmq_rpc.client_side import encode_call
from ddmq_rpc.codec import structs
from tests.scenarios.real_server import RealServer
from tests.service.hostile.attack import Attacker
from tests.service.hostile.test_hostile_frames import anonymous_bytes

LONG = 256 << 10
FEW, MANY = 8, 64
DEPTH_MAX = 4
STORED = {"body", "value"}  # of a message: kept in the log, bounded by topic
TEXTS = (TType.STRING, TType.BINARY)
VALID_VALUES: dict[str, Any] = {  # what makes the request a right one but for the field that is tried
    "groupId": b"hostile",
    "topic": b"quiet",
    "group": b"hostile",
    "clientId": b"honest",
    "consumerId": b"honest",
    "cluster": b"default",
    "filterType": b"SQL92",
    "filter": b"a = 'b'",
    "qid": b"R_default_quiet_0",
    "maxLingerTime": 1,
    "partitionId": -2,
    "body": b"b",
    "action": 1,
    "dmsgtype": 5,
    "timestamp": 2_000_000_000,
    "timeout": 1_000,
    "successOffsets": [1],
    "failOffsets": [1],
    "offsets": {b"quiet": {b"R_default_quiet_0": 1}},
}
Path = tuple[str, ...]


class Field(NamedTuple):
    """One text field: of which method, and the names on the way to it."""

    idl: ModuleType
    service: str
    method: str
    path: Path


def fields() -> Iterator[Field]:
    for idl, service in ((producer, "ProducerService"), (consumer, "ConsumerService")):
        for method in getattr(idl, service).thrift_services:
            spec = getattr(getattr(idl, service), f"{method}_args").thrift_spec
            for path in texts_of(spec, ()):
                if path[-1] not in STORED and "Oneway" not in method:
                    yield Field(idl, service, method, path)


def texts_of(spec: dict[int, Any], above: Path) -> Iterator[Path]:
    if len(above) > DEPTH_MAX:
        return
    for entry in spec.values():
        kind, name, nested = entry[0], entry[1], entry[2] if len(entry) > 3 else None
        yield from texts_in(kind, nested, (*above, name))


def texts_in(kind: int, nested: Any, path: Path) -> Iterator[Path]:
    if kind in TEXTS:
        yield path
    elif kind == TType.STRUCT:
        yield from texts_of(nested.thrift_spec, path)
    elif kind in (TType.LIST, TType.SET):
        yield from texts_in(*split_type(nested), path)
    elif kind == TType.MAP:
        yield from texts_in(*split_type(nested[0]), path)


def split_type(described: Any) -> tuple[int, Any]:
    return (described[0], described[1]) if isinstance(described, tuple) else (described, None)


def request(field: Field, text: bytes) -> bytes:
    """A right request, but for `text` in this field."""
    spec = getattr(getattr(field.idl, field.service), f"{field.method}_args").thrift_spec
    return encode_call(
        field.idl, field.service, field.method, **build_fields(field.idl, spec, field.path, text)
    )


def build_fields(idl: ModuleType, spec: dict[int, Any], path: Path, text: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for entry in spec.values():
        kind, name, nested = entry[0], entry[1], entry[2] if len(entry) > 3 else None
        if path and name == path[0]:
            fields[name] = value(idl, kind, nested, path[1:], text)
        elif name in VALID_VALUES and kind != TType.STRUCT:
            fields[name] = VALID_VALUES[name]
        elif kind == TType.STRUCT and (entry[-1] or not path or name == "context"):
            fields[name] = value(idl, kind, nested, (), text)
    return fields


def value(idl: ModuleType, kind: int, nested: Any, path: Path, text: bytes) -> Any:
    if kind == TType.STRUCT:
        return getattr(structs(idl), nested.__name__)(**build_fields(idl, nested.thrift_spec, path, text))
    if kind in (TType.LIST, TType.SET):
        return [value(idl, *split_type(nested), path, text)]
    if kind == TType.MAP:
        inner = split_type(nested[1])
        return {text: text if inner[0] in TEXTS else value(idl, *inner, path, text) if inner[1] else 1}
    return text if kind in TEXTS else 1


def long_text(number: int) -> bytes:
    return b"%08d" % number + b"x" * LONG


@pytest.mark.slow
@pytest.mark.parametrize("service", ["ProducerService", "ConsumerService"])
def test_long_texts_are_answered_and_not_stored(server: RealServer, service: str) -> None:
    """Each field alone; where memory rose (it breathes by some megabytes), again with more."""
    tried = [field for field in fields() if field.service == service]
    assert len(tried) > 10
    texts = count()
    with Attacker(server.ports["producer" if service == "ProducerService" else "consumer"]) as attacker:
        for field in tried:
            if risen(server, attacker, field, texts, FEW) > FEW * LONG // 2:
                assert risen(server, attacker, field, texts, MANY) < MANY * LONG // 2, field


def risen(server: RealServer, attacker: Attacker, field: Field, texts: Iterator[int], times: int) -> int:
    """By how many bytes memory rose while so many different texts came."""
    before = anonymous_bytes(server.pid)
    for _ in range(times):
        attacker.send(request(field, long_text(next(texts))))
        assert attacker.read_frame(), field
    return anonymous_bytes(server.pid) - before
