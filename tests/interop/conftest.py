"""Servers of the interop tests, on each engine: one with every default, one with what refusals need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.apache_client import Client
from tests.scenarios.real_server import RealServer, write_config
from tests.support.installations import installed
from tests.support.own_name import own_name
from tests.support.rights import Who, write_rights

STRICT = {
    "topics": {
        "topics": {
            "both": {"queues": 4},
            "only": {"delay": "only"},
            "none": {"delay": "none"},
            "closed": {"writable": False},
            "hidden": {"readable": False},
            "small": {"body_bytes_max": 100},
            "limited": {"queues": 1},
        }
    },
    "proxy_producer": {
        "auto_create_topics": False,
        "defer_ms_max": 20,
        "topic_rates": {"limited": {"messages_per_s": 0.001, "burst_ms": 1000}},
    },
    "proxy_consumer": {"auto_create_groups": False, "drain_leases_ms": 0},
}


# What an operator gives to old clients that may use every topic: their servers sent as delay services, too.
LEGACY = Who("legacy", frozenset({*((right, "*") for right in ("send", "consume", "create")), ("relay", "")}))


@pytest.fixture(scope="session", params=["open", "legacy"])
def access(request: pytest.FixtureRequest) -> str:
    """Who the clients are: everybody, or with rights on an identity by their address."""
    return str(request.param)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, engine: str, access: str) -> Iterator[RealServer]:
    """As it comes: topics and groups are created on first use."""
    yield from _with(tmp_path_factory.mktemp("default"), engine, {}, access)


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory, engine: str, access: str) -> Iterator[RealServer]:
    """Creates nothing by itself; topics of every kind."""
    yield from _with(tmp_path_factory.mktemp("strict"), engine, STRICT, access)


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory, engine: str, access: str) -> Iterator[RealServer]:
    """A lease ends after 3 s: longer than a client of a recording takes on a busy machine."""
    consumer = {"drain_leases_ms": 0, "defaults": {"ack_timeout_ms": 3_000}}
    yield from _with(tmp_path_factory.mktemp("short"), engine, {"proxy_consumer": consumer}, access)


def _with(folder: Path, engine: str, files: dict[str, Any], access: str) -> Iterator[RealServer]:
    """A server of this configuration, on an installation of its own."""
    config = write_config(folder / "conf", **files)
    tokens = write_rights(config, [LEGACY], legacy={"127.0.0.1": LEGACY.name}) if access == "legacy" else {}
    with installed(engine) as installation:
        server = RealServer(folder, config, installation=installation)
        server.token = tokens.get("root", "")
        try:
            yield server.start()
        finally:
            server.end()


@pytest.fixture(params=["compact", "binary"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def producer(server: RealServer, protocol: str) -> Iterator[Client]:
    with Client(server.ports["producer"], protocol) as client:
        yield client


@pytest.fixture
def consumer(server: RealServer, protocol: str) -> Iterator[Client]:
    with Client(server.ports["consumer"], protocol) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name of the test's own."""
    return own_name(request.node)


@pytest.fixture
def group(server: RealServer, topic: str) -> str:
    """A group with its name that reads the topic (4 queues) from its first message."""
    make_group(server, f"g-{topic}", topic)
    return f"g-{topic}"


def make_group(server: RealServer, group: str, topic: str, queues: int = 4) -> None:
    """Topic and group; the group starts at the first message."""
    server.admin("POST", "topics", topic, body={"create": True, "queues": queues})
    server.admin("POST", "groups", group, body={"topics": [topic], "start": "first"})
