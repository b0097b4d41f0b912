"""Suites that use `transport` run without TLS and with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rpc_support import Transport


@pytest.fixture(params=["plain", "tls"])
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serve and connect without TLS, then with it."""
    Transport.tls = request.param == "tls"
    yield request.param
    Transport.tls = False
