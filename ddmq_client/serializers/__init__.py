"""Serializers turn the objects of an application into message bodies, and bodies into objects.

    producer = Producer("mq-1:9613", serializer=JsonSerializer())
    producer.send("orders", {"order": 17, "amount": "9.90"})

    def handle(message):
        print(message.value["order"])

    Consumer("mq-1:9713", "billing", "orders", handler=handle, serializer=JsonSerializer()).run()

A serializer is any object with these two methods:

serialize(value) -> bytes    returns the body of a value; any exception rejects the message
deserialize(body) -> object  returns the value of a body; ValueError means that the body has none

A message whose body has no value goes to the group's dead letters, with the reason, and no handler sees it:
trying again would not help. Any other exception of `deserialize` is a failure of the application, as in a
handler: the message is delivered again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Literal, Protocol

from ddmq_client.callables import check_function
from ddmq_client.errors import OptionError

ENCODINGS = ("json", "msgpack")


class Serializer(Protocol):
    """Converts values into message bodies, and bodies into values."""

    def serialize(self, value: object) -> bytes:
        """Convert a value into a body."""

    def deserialize(self, body: bytes) -> Any:
        """Convert a body into a value. Raises ValueError if that is impossible."""


class JsonSerializer:
    """JSON as UTF-8, by the standard library. Dataclasses are written as objects.

    into  is called with what the JSON holds and returns the value, for instance `lambda row: Order(**row)`; a
          ValueError, TypeError or LookupError of it means that the body has no value
    """

    def __init__(self, into: Callable[[Any], object] | None = None) -> None:
        check_function("into", into)
        self._into = into

    def serialize(self, value: object) -> bytes:
        """Convert the value into compact JSON. Raises TypeError or ValueError if JSON cannot express it."""
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_fields_of
        )
        return text.encode()

    def deserialize(self, body: bytes) -> Any:
        """Decode the JSON, and pass it through `into` if set. Raises ValueError."""
        try:
            value = json.loads(body)
        except RecursionError as error:
            raise ValueError("the JSON is nested too deeply") from error
        if self._into is None:
            return value
        try:
            return self._into(value)
        except (TypeError, LookupError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


class MsgspecSerializer:
    """Serializes JSON or MessagePack with the package msgspec. It must be installed separately from the
    client.

    into      the type that bodies are decoded to and checked against: a Struct, a dataclass, a TypedDict …
    encoding  "json" or "msgpack"
    """

    def __init__(self, into: object = Any, *, encoding: Literal["json", "msgpack"] = "json") -> None:
        """Check the arguments. Raises OptionError for an unknown encoding, or if msgspec is not installed."""
        if encoding not in ENCODINGS:
            raise OptionError(f"encoding={encoding!r}; allowed: {', '.join(ENCODINGS)}")
        try:
            import msgspec
        except ImportError as error:
            raise OptionError(
                "MsgspecSerializer needs the package msgspec, which is not installed"
            ) from error
        codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
        self._encoder, self._decoder = codec.Encoder(), codec.Decoder(into)
        self._error: type[Exception] = msgspec.DecodeError

    def serialize(self, value: object) -> bytes:
        """Convert the value into JSON or MessagePack. Raises TypeError if msgspec cannot encode it."""
        body: bytes = self._encoder.encode(value)
        return body

    def deserialize(self, body: bytes) -> Any:
        """Decode a value of the configured type. Raises ValueError if the body has no such value."""
        try:
            return self._decoder.decode(body)
        except (self._error, RecursionError) as error:
            raise ValueError(str(error)) from error


def _fields_of(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def check_serializer(serializer: object) -> None:
    """Raise OptionError unless the serializer is None or has both methods."""
    if serializer is None:
        return
    for name in ("serialize", "deserialize"):
        method = getattr(serializer, name, None)
        if isinstance(serializer, type) or not callable(method):
            allowed = (
                "an object with the methods serialize and deserialize, such as JsonSerializer(), or None"
            )
            raise OptionError(f"serializer={serializer!r}; allowed: {allowed}")
        check_function(f"serializer.{name}", method)
