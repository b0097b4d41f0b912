"""What a waiting message counts towards its topic's bound on bytes."""

from __future__ import annotations

import pytest

from ddmq_common.delays.command import (
    ADD,
    EXPONENTIAL,
    LOOP,
    SCHEDULE,
    DelayCommand,
    Schedule,
    encode_command,
)
from delay_service.store.port import RECORD_BYTES, Pending, deliveries_a_day, weigh_message


def order(kind: int = 2, **more: object) -> DelayCommand:
    return DelayCommand(ADD, "", "t", kind, **more)  # type: ignore[arg-type]


def schedule(**fields: object) -> DelayCommand:
    return order(SCHEDULE, schedule=Schedule(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "deliveries"),
    [
        (order(), 1),
        (schedule(delay_ms=5), 1),
        (schedule(period_ms=1_000, repeat=-1), 86_401),
        (schedule(period_ms=1_000, repeat=9), 10),
        (schedule(period_ms=1_000, repeat=-1, occurrences_max=3), 3),
        (schedule(period_ms=10 * 86_400_000, repeat=-1), 1),
        (schedule(cron="0 3 * * *"), 2),
        (schedule(cron="* * * * *"), 1_441),
        (order(LOOP, interval_s=3, times=1_000_000), 28_801),
        (order(LOOP, interval_s=3, times=7), 7),
        (order(EXPONENTIAL, interval_s=2, times=1_000_000), 27),
    ],
)
def test_deliveries_of_a_day(command: DelayCommand, deliveries: int) -> None:
    assert deliveries_a_day(command) == deliveries
    message = Pending(1, 2, 0, "t", b"", encode_command(command), b"", 0, 0, b"", b"12345")
    assert weigh_message(message) == deliveries * (5 + RECORD_BYTES)


def test_an_unreadable_schedule_counts_once() -> None:
    for text in (encode_command(schedule(cron="never", period_ms=1)), '{"kind":', "{}"):
        assert weigh_message(Pending(1, 2, 0, "t", b"", text, b"", 0, 0, b"", b"")) == RECORD_BYTES
