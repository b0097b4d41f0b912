"""The fixtures of the tests of a producer proxy; those with a `server` of their own reach that one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.producer.once_kit import NUMBERS, key, server
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer

__all__ = ["client", "key", "server", "topic"]


@pytest.fixture(params=["compact", "binary"])
def client(request: pytest.FixtureRequest, server: ProducerServer) -> Iterator[Client]:
    with Client(server.port, request.param) as client:
        yield client


@pytest.fixture
def topic() -> str:
    """A name of the test's own; the first message makes it."""
    return f"own-{next(NUMBERS)}"
