"""Acknowledgements, failures, leases, time-outs, dead letters, restarts."""

from __future__ import annotations

from backend.records import CommitBatch, ProgressDelta
from ddmq_common.errors import StorageError
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, ConsumerRig, result
from tests.support.constants import build_options

QUICK = SubscriptionDefaults(start="first", ack_timeout_ms=1000)


def ready(count: int = 10, config: SubscriptionDefaults = QUICK) -> ConsumerRig:
    return ConsumerRig().ready(count, config)


def test_every_element_of_a_linked_list_counts_by_its_own_context() -> None:
    rig = ConsumerRig().ready(queues=2)
    rig.topic("U")
    rig.subscribe("H", "U")
    rig.send(2, 0)
    rig.send(2, 1)
    rig.send(2, 0, "U")
    rig.pull()
    rig.pull()
    rig.pull(b"H", b"U")
    linked = result([0], queue=0, then=result([0, 1], queue=1, then=result([1], group="H", topic="U")))
    rig.submit(linked)
    assert rig.progress(queue=0).committed == 1
    assert rig.progress(queue=1).committed == 2
    assert rig.progress("H", topic="U").finished == ((1, 2),)


def test_successes_go_before_failures_of_the_same_result() -> None:
    rig = ready(1)
    rig.pull()
    rig.submit(result([0], [0]))
    assert rig.progress().committed == 1
    assert rig.counted("ddmq_failed_total") == 0


def test_a_dead_letter_keeps_the_message_and_says_why() -> None:
    rig = ready(3, SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=0))
    rig.pull()
    rig.submit(result([0, 2], [1]))
    rig.settle()
    dlq = rig.wait(rig.backend.find("%DLQ%G", key=b"k1"))
    assert len(dlq) == 1
    assert dlq[0].message_id == bytes(15) + b"\x01"
    rig.subscribe("watcher", "%DLQ%G")
    message = rig.pull(b"watcher", b"%DLQ%G").result.messages[0]
    assert (message.key, message.value, message.tag) == (b"k1", b"m1", b"tag")
    time_ms = message.properties.pop(b"dead-letter-time")
    assert int(time_ms) == rig.clock.wall_ms()
    assert message.properties == {
        b"p": b"v",
        b"dead-letter-reason": b"failed",
        b"dead-letter-topic": b"T",
        b"dead-letter-queue": b"0",
        b"dead-letter-offset": b"1",
        b"dead-letter-attempts": b"1",
    }
    assert rig.progress().committed == 3


def test_a_dead_letter_is_retried_until_stored_and_finished_only_then() -> None:
    rig = ready(2, SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=0))
    rig.pull()
    rig.submit(result([1]))
    rig.submit(result(fail=[0]))
    rig.backend.fail_next(StorageError("disk"), times=1)
    rig.settle()
    assert rig.progress().committed == 0
    for _ in range(5):
        rig.advance(1.0)
    assert rig.progress().committed == 2


def test_a_last_minus_one_repeats_for_ever() -> None:
    rig = ready(1, SubscriptionDefaults(start="first", retry_intervals_ms=(100, -1)))
    for _ in range(30):
        assert rig.pull().offsets == [0]
        rig.submit(result(fail=[0]))
        rig.advance(0.1)
    assert rig.counted("ddmq_dead_letters_total") == 0


def test_one_unfinished_message_before_many_acknowledged_ones_is_redelivered_alone() -> None:
    rig = ready(3000)
    leased = rig.pull(count=1).offsets
    acknowledged: list[int] = []
    while len(acknowledged) < 2999:
        acknowledged += rig.pull(result=result(acknowledged[-100:])).offsets
    rig.submit(result(acknowledged[-100:]))
    rig.restart()
    assert rig.pull().offsets == leased == [0]
    assert rig.pull().result.messages == []


def test_the_ack_range_is_bounded() -> None:
    rig = ready(100, SubscriptionDefaults(start="first", ack_span_max=50, batch_max=10))
    assert rig.pull(count=1).offsets == [0]
    delivered: list[int] = []
    while True:
        offsets = rig.pull(result=result(delivered[-10:])).offsets
        if not offsets:
            break
        delivered += offsets
    assert 49 <= delivered[-1] < 60
    rig.submit(result([0]))
    assert rig.pull().result.messages


def test_a_huge_result_is_truncated_at_its_bound() -> None:
    rig = ConsumerRig(build_options(ConsumerConfig, offsets_per_call_max=100)).ready(3)
    rig.pull()
    rig.submit(result(range(1000)))
    assert rig.progress().committed in (0, None)
    assert rig.counted("ddmq_results_ignored_total", reason="over the bound of one call") == 1000


def test_a_reset_while_connected_restarts_delivery_and_ignores_older_acks() -> None:
    rig = ready(5)
    rig.pull(count=3)
    view = rig.progress()
    delta = ProgressDelta("G", rig.ref(), view.epoch, view.generation + 1, reset_to=2)
    rig.wait(rig.backend.commit(CommitBatch(progress=[delta], settings={"reset/G/T": b"{}"}), rig.deadline()))
    rig.settle()
    rig.submit(result([0]))
    assert rig.progress().committed == 2
    assert rig.pull().offsets == [2, 3, 4]
    rig.submit(result([2, 3, 4]))
    assert rig.progress().committed == 5


def test_a_reset_noticed_only_by_a_fenced_commit() -> None:
    rig = ready(5)
    rig.pull(count=3)
    view = rig.progress()
    delta = ProgressDelta("G", rig.ref(), view.epoch, view.generation + 1, reset_to=0)
    rig.wait(rig.backend.commit(CommitBatch(progress=[delta]), rig.deadline()))
    assert rig.submit(result([0, 1])).result is True
    assert rig.progress().committed == 0
    assert rig.pull().offsets == [0, 1, 2, 3, 4]


def test_no_result_at_all_in_a_submit_is_harmless() -> None:
    rig = ready()
    assert rig.submit(IDL.ConsumeResult()).result is True


def test_a_late_ack_without_lease_finishes_it_after_a_restart_before_any_pull_too() -> None:
    rig = ConsumerRig().ready(6, SubscriptionDefaults(start="first", ack_timeout_ms=1_000, order_key="KEY"))
    rig.send(6)  # the same keys, each behind its first
    assert rig.pull(count=4).offsets == [0, 1, 2, 3]
    rig.submit(result([1]))
    rig.advance(1.1)
    rig.advance(0.6)
    assert set(rig.progress().attempts) == {0, 2, 3}
    rig.restart()
    rig.subscription().on_use(rig.clock.monotonic())
    rig.settle()
    rig.submit(result([2, 3, 4]))  # 4 was never delivered, as far as anybody knows
    assert rig.progress().finished == ((1, 4),)
    assert rig.pull(count=10).offsets == [0, 4, 5, 7, 8, 9]
