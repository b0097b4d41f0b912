"""The pytest plugin, which comes with the installation: two fixtures.

    def test_billing(ddmq_broker):              a TestBroker of the test's own
    def test_everything(ddmq_server):           a real server, one for the whole run; a LocalServer

Nothing of the library is loaded before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ddmq_client.testing.broker import TestBroker
    from ddmq_client.testing.server import LocalServer


@pytest.fixture
def ddmq_broker() -> Iterator[TestBroker]:
    """A broker in memory, of this test alone."""
    from ddmq_client.testing.broker import TestBroker

    with TestBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def ddmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A real `ddmq serve` on free ports; the test is skipped where the server is not installed."""
    from ddmq_client.testing.server import LocalServer, missing_server

    if reason := missing_server():
        pytest.skip(reason)
    with LocalServer(tmp_path_factory.mktemp("ddmq")) as server:
        yield server
