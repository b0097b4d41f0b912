"""What tests of several services and libraries use."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def library_log(caplog: pytest.LogCaptureFixture) -> None:
    """What the client library logs is in caplog, also where somebody before has silenced it."""
    caplog.set_level(logging.WARNING, "ddmq_client")
