"""A client that sends to `orders` unless it is told otherwise."""

from __future__ import annotations

from typing import Any, Self

from tests.interop import apache_client
from tests.interop.apache_client import Result


class Client(apache_client.Client):
    """One connection to a producer proxy, by Apache's own Thrift library."""

    def send(
        self, topic: str = "orders", body: bytes = b"body", timeout: int = 60_000, **fields: Any
    ) -> Result:
        return super().send(topic, body, timeout, **{"key": "k", **fields})

    def __enter__(self) -> Self:
        return self
