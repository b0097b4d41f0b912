"""Transactions over each engine that runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backend.file_log import FileLogOptions, open_log
from backend.port import Backend
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from tests.played_memory import PlayedMemory
from tests.service.transactions.transaction_rig import TransactionRig

LOG_OPTIONS = FileLogOptions(segment_bytes=1 << 20, allocate_bytes=256 << 10, checkpoint_ms=50)
Opened = Callable[[], Backend]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "file_log"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> TransactionRig:
    backend: Backend
    if request.param == "memory":
        backend = PlayedMemory(clock)
    else:
        backend = open_log(tmp_path, LOG_OPTIONS, clock=clock, metrics=Registry())
    return TransactionRig(backend, clock)


@pytest.fixture
def memory(clock: ManualClock) -> TransactionRig:
    """Where the test plays what others do to the engine."""
    return TransactionRig(PlayedMemory(clock), clock)
