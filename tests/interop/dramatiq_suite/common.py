"""The `common` that Dramatiq's tests import from: a worker for a block, and marks that skip nothing here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest

RABBITMQ_USERNAME = RABBITMQ_PASSWORD = "guest"
RABBITMQ_CREDENTIALS = None
skip_in_ci = skip_on_windows = skip_on_pypy = skip_without_gevent = pytest.mark.filterwarnings("default")
# Dramatiq's own tests put this mark on what only its RabbitMQ broker offers.
skip_unless_rabbit_mq = pytest.mark.skip(reason="of the RabbitMQ broker alone")
skip_with_gevent = skip_on_pypy


@contextmanager
def worker(*args: Any, **kwargs: Any) -> Iterator[dramatiq.Worker]:
    """Run a worker in the block."""
    running = dramatiq.Worker(*args, **kwargs)
    running.start()
    try:
        yield running
    finally:
        running.stop()
