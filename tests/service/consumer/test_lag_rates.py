"""The unfinished messages of a subscription, with rates and causes, at a proxy over the memory engine."""

from __future__ import annotations

from typing import Any

import pytest

from backend.completion import failed
from ddmq.server.admin.groups import PERIOD_S, AdminGroups
from ddmq.server.admin.lag import rates
from ddmq.server.admin.lag.causes import LagCause
from ddmq_common.errors import RemoteError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.service import USED_S
from tests.service.consumer.consumer_rig import ConsumerRig, result


class LagRig:
    """Group G of a proxy, as the admin API describes it."""

    def __init__(self, rig: ConsumerRig) -> None:
        self.rig = rig
        self.groups = AdminGroups(rig.backend, rig.service, rig.metrics, rig.clock)

    def row(self) -> dict[str, Any]:
        (row,) = self.groups.list_lags("G")
        (detail,) = self.groups.detail("G")["subscriptions"]
        names = ("unfinished", "arriving_per_s", "finished_per_s", "drain_s", "why", "consumed")
        assert {name: row[name] for name in names} == {name: detail[name] for name in names}
        return row

    def sample(self) -> None:
        self.groups.sample()
        self.rig.settle()


def test_finished_messages_above_an_unfinished_one_are_in_the_lag_alone(rig: ConsumerRig) -> None:
    rig.ready(10)
    lag = LagRig(rig)
    assert rig.pull(count=10).offsets == list(range(10))
    rig.submit(result([1, 2, 3, 7]))
    rig.advance(2)  # it is committed
    row = lag.row()
    assert (row["lag"], row["unfinished"]) == (10, 6)
    rig.submit(result([0]))
    rig.advance(2)
    assert lag.row()["unfinished"] == 5


def test_deleted_messages_are_not_unfinished(rig: ConsumerRig) -> None:
    rig.ready(10)
    assert rig.pull(count=2).offsets == [0, 1]
    rig.submit(result([0, 1]))
    rig.advance(2)
    rig.backend.expire(rig.ref(), 6)
    assert LagRig(rig).row()["unfinished"] == 4


def test_rates_and_the_time_to_drain_are_known_after_a_sample(rig: ConsumerRig) -> None:
    rig.ready(100)
    lag = LagRig(rig)
    rig.pull(count=1)
    lag.sample()
    row = lag.row()
    assert [row[name] for name in ("arriving_per_s", "finished_per_s", "drain_s")] == [None] * 3
    rig.submit(result([0]))
    pulled = rig.pull(count=39)
    rig.submit(result(pulled.offsets))
    rig.send(10)
    rig.advance(PERIOD_S)
    row = lag.row()
    assert row["unfinished"] == 70
    assert row["arriving_per_s"] == pytest.approx(2.0, rel=0.05)
    assert row["finished_per_s"] == pytest.approx(8.0, rel=0.05)
    assert row["drain_s"] == pytest.approx(70 / 6, rel=0.1)


def test_slower_than_arrivals_never_drains(rig: ConsumerRig) -> None:
    rig.ready(1)
    lag = LagRig(rig)
    rig.submit(result(rig.pull(count=1).offsets))
    lag.sample()
    rig.send(10)
    rig.advance(PERIOD_S)
    rig.start_pull(count=1)
    row = lag.row()
    assert (row["drain_s"], row["why"]) == (None, LagCause.SLOWER_THAN_ARRIVALS)
    assert row["finished_per_s"] < row["arriving_per_s"]


def test_with_another_proxy_the_rate_of_finishing_is_not_known(rig: ConsumerRig) -> None:
    rig.ready(4)
    first = LagRig(rig)
    rig.pull(count=1)
    second = rig.start()
    lag = LagRig(rig)
    assert second is not first
    lag.sample()
    rig.send(10)
    rig.advance(PERIOD_S)
    row = lag.row()
    assert row["arriving_per_s"] == pytest.approx(2.0, rel=0.05)
    assert (row["finished_per_s"], row["drain_s"]) == (None, None)


def test_nobody_consumes(rig: ConsumerRig) -> None:
    rig.ready(3)
    rig.advance(USED_S + 1)
    row = LagRig(rig).row()
    assert (row["unfinished"], row["why"], row["consumed"]) == (3, LagCause.NOBODY_CONSUMES, False)


def test_a_cause_that_cannot_be_looked_up_is_not_stated(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ready(3)
    rig.advance(USED_S + 1)
    monkeypatch.setattr(rig.backend, "holders", lambda *_: failed(RemoteError("no answer")))
    row = LagRig(rig).row()
    assert (row["consumed"], row["why"]) == (None, None)


def test_clients_hold_as_many_messages_as_they_may(rig: ConsumerRig) -> None:
    rig.ready(5, SubscriptionDefaults(start="first", concurrency=2))
    rig.pull(count=2)
    assert LagRig(rig).row()["why"] is LagCause.CONCURRENCY


def test_a_failed_head_blocks_its_key(rig: ConsumerRig) -> None:
    rig.ready(config=SubscriptionDefaults(start="first", order_key="KEY", handover_wait_ms=0))
    rig.keyed("a1", "a2")
    rig.submit(result(fail=rig.pull(count=1).offsets))
    assert LagRig(rig).row()["why"] is LagCause.KEYS_BLOCKED


def test_without_unfinished_messages_there_is_no_cause(rig: ConsumerRig) -> None:
    rig.ready()
    row = LagRig(rig).row()
    assert (row["unfinished"], row["drain_s"], row["why"]) == (0, 0.0, None)


def test_a_broadcasting_group_has_no_number_of_its_own(rig: ConsumerRig) -> None:
    rig.ready(3, SubscriptionDefaults(model="broadcasting"))
    row = LagRig(rig).row()
    assert (row["unfinished"], row["drain_s"], row["why"]) == (None, None, None)


def test_samples_are_taken_in_rounds(rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "QUEUES_MAX", 4)
    names = [f"T{number}" for number in range(5)]
    for name in names:
        rig.topic(name, 2)
        rig.subscribe("G", name)
    lag = LagRig(rig)
    sampled = []
    monkeypatch.setattr(rates.ProgressSamples, "record_sample", lambda _, name, __: sampled.append(name[1]))
    for _ in range(6):
        lag.sample()
    assert sampled[:5] == names
    assert sampled[5:10] == names
    monkeypatch.setattr(rig.backend, "bounds", lambda _: failed(RemoteError("no answer")))
    lag.sample()
    monkeypatch.undo()
    lag.sample()
