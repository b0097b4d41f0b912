"""A topic whose delayed messages are at their bound: told to the producer proxies, and free again."""

from __future__ import annotations

import pytest

from ddmq_common.delays.command import SCHEDULE, Schedule, decode_full
from ddmq_common.names import DELAY_FULL_PREFIX
from delay_service.config import DelayConfig
from tests.service.delay.delay_rig import DelayRig


@pytest.fixture(params=[1, 4])
def delay(request: pytest.FixtureRequest) -> DelayRig:
    rig = DelayRig(DelayConfig(shards=request.param, pending_count_max=20, pending_bytes_max=100_000))
    for topic in ("orders", "mails"):
        rig.make(topic)
    return rig


def read_full_topics(delay: DelayRig) -> list[list[str]]:
    return [decode_full(value) for value in delay.backend.settings(DELAY_FULL_PREFIX).values()]


def far(delay: DelayRig) -> int:
    return delay.clock.wall_ms() + 3_600_000


def test_the_count_fills_a_topic_and_a_tenth_frees_it(delay: DelayRig) -> None:
    for number in range(1, 20):
        delay.add(number, far(delay))
    delay.add(100, far(delay), topic="mails")
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == []
    delay.add(20, far(delay))
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == [["orders"]] * delay.config.shards, "each shard's owner says so"
    assert delay.value("ddmq_delay_full") == 1
    for number in range(1, 3):
        delay.cancel(number)
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == [["orders"]] * delay.config.shards, "18 of 20: not a tenth yet"
    delay.cancel(3)
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == []
    assert delay.value("ddmq_delay_full") == 0


def test_bytes_fill_a_topic_and_a_full_topic_stays_reported_after_a_restart(delay: DelayRig) -> None:
    delay.add(1, far(delay), b"x" * 100_000)
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == [["orders"]] * delay.config.shards
    delay.service.close()
    delay.start()
    assert delay.value("ddmq_delay_pending_bytes", topic="orders") >= 0
    delay.cancel(1)
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == []


def test_an_endless_schedule_counts_for_what_it_writes_in_a_day(delay: DelayRig) -> None:
    endless = Schedule(period_ms=1_000, repeat=-1)
    delay.add(1, far(delay), b"x", kind=SCHEDULE, schedule=endless)
    delay.add(2, far(delay), b"x", topic="mails")
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == [["orders"]] * delay.config.shards
    assert delay.value("ddmq_delay_pending_bytes", topic="orders") > 86_400 * 256
    assert 256 < delay.value("ddmq_delay_pending_bytes", topic="mails") < 512


@pytest.mark.parametrize("shards", [1, 4])
def test_an_identity_at_its_quota_is_reported_until_a_tenth_is_free(shards: int) -> None:
    quotas = {"app": 20, "free": 0}
    delay = DelayRig(DelayConfig(shards=shards), quota_of=quotas.__getitem__)
    delay.make("orders")
    for number in range(1, 21):
        delay.add(number, far(delay), sender="app")
        delay.add(100 + number, far(delay), sender="free")
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == [["@app"]] * shards
    assert delay.service.sender_counts() == {"app": 20, "free": 20}
    delay.service.close()
    delay.start()
    delay.advance(1)
    assert read_full_topics(delay) == [["@app"]] * shards, "the counts are stored"
    for number in range(1, 4):
        delay.cancel(number)
    delay.settle()
    delay.advance(1)
    assert read_full_topics(delay) == []
