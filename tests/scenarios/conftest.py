"""One real server on each engine for the scenarios that share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.real_server import RealServer, running
from tests.support.installations import installed
from tests.support.own_name import own_name


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("scenarios")
    with installed(engine) as installation, running(folder, installation=installation) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name of the test's own."""
    return own_name(request.node)


@pytest.fixture
def group(server: RealServer, topic: str) -> str:
    """A group that reads the topic from its first message."""
    server.admin("POST", "topics", topic, body={"create": True})
    server.admin("POST", "groups", f"g-{topic}", body={"topics": [topic], "start": "first"})
    return f"g-{topic}"
