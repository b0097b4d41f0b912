"""The stores of the shards that run give back disk space now and then; an error there stops nothing."""

from __future__ import annotations

import pytest

from ddmq_common.errors import StorageError
from delay_service.fire import FORGET_MAX, FORGET_S
from delay_service.service import TIDY_CHECKS
from delay_service.store.port import IdKind, IdState, StoreChanges
from tests.service.delay.delay_rig import DelayRig
from tests.service.delay.hand_alarm import HandAlarm


def test_stores_are_tidied_now_and_then(delay: DelayRig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(delay.disks.stores[0], "tidy", lambda: calls.append(1))
    for _ in range(TIDY_CHECKS):
        delay.advance(1)
    delay.until(lambda: calls == [1], "tidied once")
    for _ in range(TIDY_CHECKS):
        delay.advance(1)
    delay.until(lambda: calls == [1, 1], "tidied twice")


def test_a_store_that_cannot_tidy_keeps_working(delay: DelayRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def tidy() -> None:
        raise StorageError("no space to compact in")

    monkeypatch.setattr(delay.disks.stores[0], "tidy", tidy)
    for _ in range(TIDY_CHECKS):
        delay.advance(1)
    delay.until(lambda: delay.value("ddmq_delay_failed_total", reason="StorageError"), "it is counted")
    delay.add(1, delay.clock.wall_ms() + 10)
    delay.settle()
    delay.advance(0.01)
    assert delay.bodies() == [b"1"]


@pytest.mark.parametrize("one_waits", [False, True])
def test_ids_are_forgotten_as_fast_as_they_come(delay: DelayRig, one_waits: bool) -> None:
    """However many ends of the same moment there are: one look after the other, a moment apart."""
    now = delay.clock.wall_ms()
    count = 4 * FORGET_MAX
    store = delay.disks.stores[0]
    cancelled = IdState(IdKind.CANCELLED, now, 1, now + delay.config.kept_ms)
    store.write(StoreChanges(ids={number.to_bytes(16, "big"): cancelled for number in range(count)}))
    ids = store._ids
    if one_waits:
        delay.add(1 << 100, now + 100 * 24 * 3_600_000)
    delay.advance(delay.config.kept_ms / 1e3 + 3_700)
    fire = delay.service.shards[0]._fire
    assert fire is not None
    left = len(ids)
    while left > one_waits:
        alarm = fire._alarm
        assert isinstance(alarm, HandAlarm)
        assert alarm.seconds is not None
        assert alarm.seconds <= FORGET_S
        delay.clock.advance(alarm.seconds)
        alarm.ring()
        delay.settle()
        left, before = len(ids), left
        assert before - left >= min(FORGET_MAX, before - one_waits)
    assert not store.forgettable(delay.clock.wall_ms(), 10)
