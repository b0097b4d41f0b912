"""Requests that lack one field each: what is absent is refused in the method's words, or is its default."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import Any

import pytest

from ddmq_client.idl import consumer, producer
from ddmq_rpc.api import ErrorKind, Wire
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.codec import methods
from tests.scenarios.real_server import RealServer

SERVICES = {"ProducerService": (producer, "producer"), "ConsumerService": (consumer, "consumer")}
METHODS = [
    (service, name)
    for service, (idl, _) in SERVICES.items()
    for name, method in sorted(methods(idl, service).items())
    if not method.oneway
]
MAP, SET, LIST, STRUCT, TEXTS, BOOL = 13, 14, 15, 12, (11, 18), 2
DEEP = 4  # structs in structs; some hold their own kind


def full(kind: int, of: Any, deep: int = 0) -> Any:
    """A value of a Thrift type with all in it: structs whole, one element in each list, set and map."""
    if kind == STRUCT:
        return of(**{name: full(*typed, deep + 1) for name, typed in fields(of)}) if deep < DEEP else None
    if kind in (LIST, SET):
        elements = [one for one in [full(*split(of), deep)] if one is not None]
        return elements if kind == LIST else set(elements)
    if kind == MAP:
        return {full(*split(of[0])): full(*split(of[1]))}
    if kind in TEXTS:
        return b"absences"  # not the quiet topic: what is sent is stored
    return True if kind == BOOL else 1


def split(typed: Any) -> tuple[int, Any]:
    return typed if isinstance(typed, tuple) else (typed, None)


def fields(struct: Any) -> list[tuple[str, tuple[int, Any]]]:
    """Name and type of each field, as thriftpy2 has them."""
    specs = []
    for spec in struct.thrift_spec.values():
        kind, name = spec[0], spec[1]
        specs.append((name, (kind, spec[2] if len(spec) > 3 else None)))
    return specs


def without_one(value: Any, path: str) -> Iterator[str]:
    """The paths of what was left out; `value` lacks it while its path is looked at."""
    if isinstance(value, list):
        for one in value:
            yield from without_one(one, path)
    elif hasattr(value, "thrift_spec"):
        for name, _ in fields(type(value)):
            original = getattr(value, name)
            setattr(value, name, None)
            yield f"{path}.{name}"
            setattr(value, name, original)
            yield from without_one(original, f"{path}.{name}")


def call(connection: socket.socket, idl: ModuleType, service: str, frame: bytes) -> Any:
    connection.sendall(frame)
    head = received(connection, 4)
    return decode_reply(idl, service, head + received(connection, int.from_bytes(head, "big"))).result


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        assert chunk, "the server closed the connection"
        data += chunk
    return data


@pytest.mark.slow
@pytest.mark.parametrize(("service", "name"), METHODS)
def test_what_is_absent_is_no_internal_error(server: RealServer, service: str, name: str) -> None:
    idl, component = SERVICES[service]
    struct = getattr(getattr(idl, service), f"{name}_args")
    arguments = full(STRUCT, struct)
    internal = []
    with socket.create_connection(("127.0.0.1", server.ports[component]), 60) as connection:
        for path in chain(["(nothing)"], without_one(arguments, name)):
            arguments_by_name = {field: getattr(arguments, field) for field, _ in fields(struct)}
            for wire in Wire:
                try:
                    call(connection, idl, service, encode_call(idl, service, name, wire, **arguments_by_name))
                except ReplyError as error:
                    if error.kind == ErrorKind.INTERNAL_ERROR:
                        internal.append((path, wire.name))
    assert internal == []
