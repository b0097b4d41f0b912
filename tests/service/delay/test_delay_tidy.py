"""The stores of the shards that run give back disk space now and then; an error there stops nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from delay_rig import Rig

from ddmq_common.errors import StorageError
from delay_service.service import TIDY_LOOKS


@pytest.fixture
def delay() -> Iterator[Rig]:
    made = Rig()
    made.make("orders")
    yield made
    made.close()


def test_stores_are_tidied_now_and_then(delay: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(delay.disks.stores[0], "tidy", lambda: calls.append(1))
    for _ in range(TIDY_LOOKS):
        delay.advance(1)
    delay.until(lambda: calls == [1], "tidied once")
    for _ in range(TIDY_LOOKS):
        delay.advance(1)
    delay.until(lambda: calls == [1, 1], "tidied twice")


def test_a_store_that_cannot_tidy_goes_on(delay: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def tidy() -> None:
        raise StorageError("no space to compact in")

    monkeypatch.setattr(delay.disks.stores[0], "tidy", tidy)
    for _ in range(TIDY_LOOKS):
        delay.advance(1)
    delay.until(lambda: delay.value("ddmq_delay_failed_total", reason="StorageError"), "it is counted")
    delay.add(1, delay.clock.wall_ms() + 10)
    delay.settle()
    delay.advance(0.01)
    assert delay.bodies() == [b"1"]
