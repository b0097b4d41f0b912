"""Serializers by themselves: what they write and read, and which bodies have no value."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ddmq_client import InvalidMessageError, JsonSerializer, MsgspecSerializer, OptionError, OutgoingMessage
from ddmq_client.core.settings import ConsumerSettings, ProducerSettings
from ddmq_client.serializers.bodies import serialize_message


class Order(msgspec.Struct):
    number: int
    items: list[str] = []


@dataclasses.dataclass
class OrderLine:
    item: str
    count: int


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode()),
        ("text", b'"text"'),
        (OrderLine("tea", 2), b'{"item":"tea","count":2}'),
        ([OrderLine("tea", 2)], b'[{"item":"tea","count":2}]'),
    ],
)
def test_json_writes_values_and_dataclasses(value: Any, body: bytes) -> None:
    assert JsonSerializer().serialize(value) == body


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"nope", b"[" * 100_000])
def test_what_is_no_json_has_no_value(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        JsonSerializer().deserialize(body)


def test_json_makes_objects_with_a_function() -> None:
    serializer = JsonSerializer(into=lambda row: OrderLine(**row))
    assert serializer.deserialize(b'{"item":"tea","count":2}') == OrderLine("tea", 2)
    for body in (b'{"item":"tea"}', b'{"item":"tea","count":2,"more":1}', b"[1]", b"7"):
        with pytest.raises(ValueError, match="TypeError"):
            serializer.deserialize(body)
    with pytest.raises(ValueError, match="KeyError: 'item'"):
        JsonSerializer(into=lambda row: row["item"]).deserialize(b"{}")


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_msgspec_reads_what_it_writes_and_checks_the_type(encoding: Any) -> None:
    serializer = MsgspecSerializer(Order, encoding=encoding)
    assert serializer.deserialize(serializer.serialize(Order(1, ["a"]))) == Order(1, ["a"])
    body = MsgspecSerializer(encoding=encoding).serialize({"number": "one"})
    with pytest.raises(ValueError, match=r"Expected `int`, got `str` - at `\$\.number`"):
        serializer.deserialize(body)
    with pytest.raises(ValueError, match=r"."):
        serializer.deserialize(b"\xc1")


def test_msgspec_is_needed_only_for_its_serializer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(OptionError, match="needs the package msgspec"):
        MsgspecSerializer()
    with pytest.raises(OptionError, match="encoding='xml'; allowed: json, msgpack"):
        MsgspecSerializer(encoding="xml")  # type: ignore[arg-type]


class Awaited:
    async def serialize(self, value: Any) -> bytes:
        return b"x"

    def deserialize(self, body: bytes) -> Any:
        return body


@pytest.mark.parametrize("settings", [ProducerSettings, lambda **named: ConsumerSettings("g", **named)])
@pytest.mark.parametrize("serializer", [JsonSerializer, "json", object(), lambda value: b"x", Awaited()])
def test_what_is_no_serializer_is_rejected(settings: Any, serializer: Any) -> None:
    with pytest.raises(OptionError, match="serializer"):
        settings(serializer=serializer)


class Broken:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def serialize(self, value: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def deserialize(self, body: bytes) -> Any:
        return body


def answers() -> Iterator[Any]:
    yield "text", "Broken.serialize returned str; allowed: bytes"
    yield None, "Broken.serialize returned NoneType; allowed: bytes"
    yield KeyError("x"), "the dict to be sent to 't' cannot be serialized: KeyError: 'x'"


@pytest.mark.parametrize(("answer", "text"), list(answers()))
def test_a_value_that_cannot_be_serialized_rejects_its_message(answer: Any, text: str) -> None:
    with pytest.raises(InvalidMessageError, match=text):
        serialize_message(Broken(answer), OutgoingMessage("t", {"a": 1}))


def test_the_other_fields_stay() -> None:
    message = OutgoingMessage("t", 7, key="k", properties={"a": "b"}, shard_key=1)
    assert serialize_message(JsonSerializer(), message) == dataclasses.replace(message, body=b"7")
    assert message.body == 7
