"""What a consumer proxy counts about waiting, processing and redelivering, seen through real calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.completion import Completion
from backend.records import NewRecord
from ddmq_common.delivery import encode
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import Histogram
from ddmq_common.metrics.metric import Metric
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import SCHEDULE_TOPIC
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.groups import gauges
from proxy_consumer.groups.unowned import REFRESH_S
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, directory
from tests.service.consumer.consumer_rig import result as answer
from tests.service.consumer.fetch_calls import ack, fetch

HERE = {"group": "G", "topic": "T"}
BY_KEY = SubscriptionDefaults(
    start="first", order_key="KEY", retry_intervals_ms=(100,), ordered_deliveries_max=-1
)


def histogram(rig: ConsumerRig, metric: Metric) -> Histogram:
    return rig.metrics.histogram(metric, "G", "T")


def value(rig: ConsumerRig, metric: Metric, *labels: str) -> float:
    """After a look: gauges are filled in, as a scrape or a sample does it."""
    rig.clock.advance(1)
    rig.metrics.run_collectors()
    rig.settle()
    return rig.metrics.cell(metric, *(labels or ("G", "T"))).value


# --- times


def test_the_queue_wait_is_that_of_the_oldest_and_once_an_answer(rig: ConsumerRig) -> None:
    rig.ready(3)
    rig.clock.advance(2)
    rig.send(3)
    rig.clock.advance(5)
    assert rig.pull(count=100).offsets == [0, 1, 2, 3, 4, 5]
    waits = histogram(rig, catalogue.QUEUE_WAIT)
    assert (sum(waits.counts), waits.total) == (1, pytest.approx(7e6, rel=0.01))


def test_a_repeated_message_has_no_queue_wait_but_counts_as_redelivered(rig: ConsumerRig) -> None:
    rig.ready(3, SubscriptionDefaults(start="first", retry_intervals_ms=(1000,), ack_timeout_ms=60_000))
    rig.pull(count=2)
    rig.submit(answer([0], [1]))
    rig.advance(3)
    waits = histogram(rig, catalogue.QUEUE_WAIT)
    before = sum(waits.counts)
    assert rig.pull(count=1).offsets == [1]
    assert sum(waits.counts) == before
    assert rig.counted("ddmq_redelivered_total", **HERE) == 1
    rig.submit(answer([1]))
    assert rig.pull(count=1).offsets == [2]
    assert sum(waits.counts) == before + 1
    assert rig.counted("ddmq_redelivered_total", **HERE) == 1


def test_a_lease_that_ran_out_is_redelivered(rig: ConsumerRig) -> None:
    rig.ready(2, SubscriptionDefaults(start="first", ack_timeout_ms=1000))
    rig.pull(count=2)
    rig.advance(2)
    rig.pull(count=2)
    assert rig.counted("ddmq_redelivered_total", **HERE) == 2


def test_the_process_time_counts_once_a_result_whatever_it_finishes(rig: ConsumerRig) -> None:
    rig.ready(10)
    rig.pull(count=10)
    rig.clock.advance(4)
    rig.submit(answer(range(6)))
    rig.clock.advance(1)
    rig.submit(answer(range(6, 10)))
    took = histogram(rig, catalogue.PROCESS)
    assert (sum(took.counts), took.total) == (2, pytest.approx(9e6))
    rig.submit(answer(range(10)))  # late: nothing is leased any more
    assert sum(took.counts) == 2


def test_extending_a_lease_does_not_shorten_the_process_time(rig: ConsumerRig) -> None:
    rig.ready(1, SubscriptionDefaults(start="first", ack_timeout_ms=10_000))
    message = rig.pull(count=1, clientId=b"me").result.messages[0]
    rig.clock.advance(8)
    rig.submit(answer(extendLeases=[message.leaseId]))
    rig.clock.advance(8)
    rig.submit(answer([0], successLeases=[message.leaseId]))
    assert histogram(rig, catalogue.PROCESS).total == pytest.approx(16e6)


def test_only_subscriptions_in_use_have_histograms(rig: ConsumerRig) -> None:
    rig.ready()
    rig.subscribe(group="idle")
    rig.send(3)
    for _ in range(2):
        rig.pull(count=1)
    rig.submit(answer([0]))
    rig.submit(answer([1]))
    histograms = {metric.name: cells for metric, cells in rig.metrics.histograms()}
    for metric in (catalogue.QUEUE_WAIT, catalogue.PROCESS):
        assert list(histograms[metric.name]) == [("G", "T")]
        assert sum(histograms[metric.name]["G", "T"].counts) == 2


# --- gauges


def test_lag_and_its_age_are_those_of_unfinished_messages(rig: ConsumerRig) -> None:
    rig.ready(queues=2)
    rig.send(4, queue=0)
    rig.clock.advance(10)
    rig.send(3, queue=1)
    rig.clock.advance(5)
    rig.pull(count=1)
    assert value(rig, catalogue.LAG) == 7
    assert value(rig, catalogue.LAG_AGE) == pytest.approx(17_000, abs=100)
    assert value(rig, catalogue.INFLIGHT) == 1
    delivered: dict[int, list[int]] = {0: [], 1: []}
    while sum(map(len, delivered.values())) < 6:
        call = rig.pull(count=10)
        delivered[call.queue] += call.offsets
    rig.submit(answer(range(4), queue=0))
    rig.submit(answer([2], queue=1))
    assert value(rig, catalogue.LAG) == 3
    assert value(rig, catalogue.ACK_SPAN) == 3
    assert 10_000 <= value(rig, catalogue.LAG_AGE) < 20_000
    rig.submit(answer(range(3), queue=1))
    assert [value(rig, each) for each in (catalogue.LAG, catalogue.LAG_AGE, catalogue.ACK_SPAN)] == [0, 0, 0]


def test_messages_waiting_for_redelivery_count_as_retrying(rig: ConsumerRig) -> None:
    rig.ready(3, SubscriptionDefaults(start="first", retry_intervals_ms=(60_000,), ack_timeout_ms=60_000))
    rig.pull(count=3)
    rig.submit(answer([], [0, 1]))
    assert value(rig, catalogue.RETRYING) == 2
    assert value(rig, catalogue.INFLIGHT) == 1


def put(rig: ConsumerRig, *keys: str) -> None:
    records = [
        NewRecord("T", 0, bytes(16), rig.clock.wall_ms(), encode(key.encode(), b"x", b"", None), key.encode())
        for key in keys
    ]
    rig.wait(rig.backend.append(records, rig.deadline()))


def test_keys_whose_head_failed_are_blocked_until_it_is_finished(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    put(rig, "a", "a", "b", "c")
    call = rig.pull(count=10)
    assert call.offsets == [0, 2, 3]
    assert value(rig, catalogue.BLOCKED_KEYS) == 0
    rig.submit(answer([3], [0, 2]))
    rig.clock.advance(30)
    assert value(rig, catalogue.BLOCKED_KEYS) == 2
    assert value(rig, catalogue.BLOCKED_KEY_AGE) == pytest.approx(32_000, abs=100)
    rig.service.tick()
    redelivered = rig.pull(count=10)
    assert redelivered.offsets == [0, 2]
    rig.submit(answer([0, 2]))
    assert value(rig, catalogue.BLOCKED_KEYS) == value(rig, catalogue.BLOCKED_KEY_AGE) == 0


def test_a_key_stays_blocked_while_one_head_after_the_other_becomes_a_dead_letter(rig: ConsumerRig) -> None:
    rig.ready(config=replace(BY_KEY, ordered_deliveries_max=1))
    put(rig, "a", "a", "a", "a", "a")
    for offset in range(3):
        assert rig.pull(count=10).offsets == [offset]
        rig.submit(answer([], [offset]))
        rig.clock.advance(30)
        rig.service.tick()
    age_ms = value(rig, catalogue.BLOCKED_KEY_AGE)
    assert age_ms >= 90_000, "it began with the first failure, and no message of the key was acknowledged"
    assert rig.pull(count=10).offsets == [3]
    assert value(rig, catalogue.BLOCKED_KEY_AGE) >= age_ms, "also while the next head is at a client"
    (row,) = rig.service.order_keys("G").blocked_keys(10)
    assert rig.clock.wall_ms() - row.since_ms >= age_ms
    rig.submit(answer([3]))
    assert value(rig, catalogue.BLOCKED_KEY_AGE) == 0


def test_gauges_of_a_deleted_group_become_zero(rig: ConsumerRig) -> None:
    rig.ready(5)
    rig.pull(count=2)
    assert value(rig, catalogue.LAG) == 5
    rig.wait(rig.service.delete_group("G"))
    rig.settle()
    assert [value(rig, each) for each in (catalogue.LAG, catalogue.INFLIGHT, catalogue.LAG_AGE)] == [0, 0, 0]


def unowned_lag(rig: ConsumerRig) -> float:
    """Who tells of it, and who holds what, is asked for at one look and shown at the next."""
    value(rig, catalogue.LAG)
    rig.clock.advance(REFRESH_S)
    value(rig, catalogue.LAG)
    return value(rig, catalogue.LAG)


def test_lag_is_reported_without_any_consumer(rig: ConsumerRig) -> None:
    rig.topic(SCHEDULE_TOPIC, 18)
    rig.ready(5)
    assert unowned_lag(rig) == 5
    assert value(rig, catalogue.LAG_AGE) == pytest.approx(1000 * (REFRESH_S + 4), abs=100)
    rig.pull(count=5)
    rig.submit(answer([0, 1]))
    assert value(rig, catalogue.LAG) == 3
    rig.advance(rig.config.idle_ms / 1000 + 60)
    rig.advance(rig.config.idle_ms / 1000)
    assert not rig.subscription().joined
    rig.send(4)
    assert unowned_lag(rig) == 7
    assert value(rig, catalogue.INFLIGHT) == 0


def test_a_lag_does_not_vanish_with_its_consumers(rig: ConsumerRig) -> None:
    rig.topic(SCHEDULE_TOPIC, 18)
    rig.ready(5)
    rig.pull(count=1)
    rig.submit(answer([0]))
    assert value(rig, catalogue.LAG) == 4
    subscription = rig.subscription()
    lookups: list[Any] = []
    holders = rig.backend.holders

    def later(*args: Any) -> Any:
        """The backend's answer, when it is wanted."""
        answered: Completion[Any] = Completion()
        lookups.append(lambda: holders(*args).then(lambda owners: answered.succeed(owners.value)))
        return answered

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.backend, "holders", later)
        give_up = rig.clock.monotonic() + 600
        while subscription.joined:
            assert rig.clock.monotonic() < give_up
            rig.advance(5)
            assert value(rig, catalogue.LAG) == 4
        assert [value(rig, catalogue.LAG) for _ in range(3)] == [4, 4, 4]
        before = value(rig, catalogue.LAG_AGE)
        for answer_now in lookups:
            answer_now()
        rig.settle()
    assert rig.metrics.cell(catalogue.LAG, "G", "T").value == 4
    assert value(rig, catalogue.LAG_AGE) >= before


def test_answers_requested_at_one_check_are_shown_after_it(rig: ConsumerRig) -> None:
    rig.topic(SCHEDULE_TOPIC, 18)
    rig.ready(5)
    value(rig, catalogue.LAG)  # this proxy asks to be the one that tells
    assert value(rig, catalogue.LAG) == 5
    assert rig.metrics.cell(catalogue.LAG_AGE, "G", "T").value == pytest.approx(2_000, abs=100)


class Proxies:
    """Two over one backend, each with metrics of its own."""

    def __init__(self, rig: ConsumerRig) -> None:
        self.rig = rig
        first, rig.metrics = (rig.metrics, rig.service), Registry()
        self.each = [first, (rig.metrics, rig.start())]

    def lag(self, number: int) -> float:
        self.rig.metrics = self.each[number][0]
        return unowned_lag(self.rig)


def test_one_proxy_at_a_time_reports_the_lag(rig: ConsumerRig) -> None:
    rig.topic(SCHEDULE_TOPIC, 18)
    rig.ready(5)
    both = Proxies(rig)
    assert [both.lag(0), both.lag(1)] == [5, 0]
    both.each[0][1].drain(rig.deadline())
    rig.settle()
    assert [both.lag(0), both.lag(1)] == [0, 5]


def test_what_another_proxy_holds_is_left_to_it(rig: ConsumerRig) -> None:
    rig.topic(SCHEDULE_TOPIC, 18)
    rig.ready(5)
    both = Proxies(rig)
    assert both.lag(0) == 5
    rig.pull(count=1)
    assert [both.lag(0), both.lag(1)] == [0, 5]
    assert not directory(both.each[0][1]).groups[b"G"].subscriptions[b"T"].joined


def test_what_is_fetched_has_its_lag_too(rig: ConsumerRig) -> None:
    rig.ready(queues=2)
    for queue in range(2):
        rig.send(3, queue=queue)
    fetch(rig)
    assert value(rig, catalogue.LAG) == 6
    rig.clock.advance(3)
    assert ack(rig, {"T": {0: 3, 1: 1}})
    assert value(rig, catalogue.LAG) == 2
    assert value(rig, catalogue.LAG_AGE) == pytest.approx(5_000, abs=1_000)


def test_a_check_reads_a_bounded_number_of_queues_and_only_moved_ones(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.service._gauges._oldest, "_reads_max", 3)
    rig.ready(queues=8)
    for queue in range(8):
        rig.send(1, queue=queue)
    rig.pull(count=1)
    reads: list[Any] = []
    read = rig.backend.read

    def counted(*args: Any, **named: Any) -> Any:
        reads.append(args)
        return read(*args, **named)

    monkeypatch.setattr(rig.backend, "read", counted)
    reads_per_check = []
    for _ in range(4):
        before = len(reads)
        value(rig, catalogue.LAG_AGE)
        reads_per_check.append(len(reads) - before)
    assert reads_per_check == [3, 3, 2, 0]
    assert gauges.READS_MAX == 64


def test_a_backend_that_fails_leaves_the_last_values(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ready(5)
    rig.pull(count=1)
    assert value(rig, catalogue.LAG) == 5

    def fails(*_: Any) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(rig.backend, "bounds", fails)
        assert value(rig, catalogue.LAG) == 5
    assert rig.metrics.cell(catalogue.COLLECT_FAILED).value == 1
    rig.send(2)
    assert value(rig, catalogue.LAG) == 7


def names(rig: ConsumerRig) -> set[str]:
    """Every label value there is."""
    families = [*rig.metrics.numbers(), *rig.metrics.histograms()]
    return {label for _, cells in families for labels in cells for label in labels}


def test_names_that_clients_invent_make_no_labels(rig: ConsumerRig) -> None:
    rig.ready()
    rig.pull()
    for number in range(50):
        rig.submit(answer([1], group=f"invented-{number}"))
        rig.submit(answer([1], topic=f"invented-{number}"))
        rig.start_pull(group=b"", topic=b"invented-%d" % number)
        request = IDL.FetchRequest(consumerId=b"me", groupId=b"invented-%d" % number, cluster=b"R_default")
        rig.call("fetch", METHODS["fetch"].args[0](request=request))
    rig.settle()
    assert not [name for name in names(rig) if "invented" in name]


def test_groups_and_so_their_labels_have_a_bound() -> None:
    rig = ConsumerRig(ConsumerConfig(groups_max=3))
    rig.topic()
    for number in range(20):
        rig.start_pull(group=b"made-%d" % number)
        rig.start_pull(group=b"made-0", topic=b"missing-%d" % number)
    rig.settle()
    created = {name for name in names(rig) if "made" in name}
    assert created == {"made-0", "made-1", "made-2"}
