"""KafkaBackend.progress answers what cannot be read with its error: the call never stays open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backend.completion import Completion
from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.state.tables import ProgressState, Stamp, progress_key
from backend.records import QueueRef
from ddmq_common.errors import DamagedError, NewerFormatError, StorageError

QUEUE = QueueRef("orders", 7, 0)


def backend(progress: ProgressState) -> KafkaBackend:
    """One that has followed `progress`, without a broker."""
    followed: Completion[None] = Completion()
    followed.succeed(None)
    backend: Any = KafkaBackend.__new__(KafkaBackend)
    state = SimpleNamespace(progress=progress, catch_up=lambda: followed)
    backend.state = state
    backend._table = SimpleNamespace(find_queue_topic=lambda queue: queue)
    answering: KafkaBackend = backend
    return answering


@pytest.mark.parametrize(("value", "expected"), [(b"\x00", DamagedError), (b"\xff", NewerFormatError)])
def test_progress_that_does_not_parse_is_an_error(value: bytes, expected: type[StorageError]) -> None:
    progress = ProgressState()
    progress.apply(progress_key(("g", QUEUE), Stamp(0, 1)), value)
    answered = backend(progress).progress("g", [QUEUE])
    assert answered.done
    assert isinstance(answered.error, expected)
    assert backend(progress).progress("other", [QUEUE]).value[0].committed is None
