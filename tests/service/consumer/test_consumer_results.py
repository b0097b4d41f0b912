"""Acknowledgements, failures, leases, time-outs, dead letters, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from backend.records import CommitBatch, ProgressDelta
from ddmq_common.errors import RemoteError, StorageError
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, result
from tests.support.constants import build_options

QUICK = SubscriptionDefaults(start="first", ack_timeout_ms=1000)


def ready(count: int = 10, config: SubscriptionDefaults = QUICK) -> ConsumerRig:
    return ConsumerRig().ready(count, config)


def test_acks_in_any_order_and_twice_move_the_committed_offset_to_the_lowest_unfinished() -> None:
    rig = ready()
    assert rig.pull(count=6).offsets == [0, 1, 2, 3, 4, 5]
    rig.submit(result([5, 3, 4, 3]))
    assert (rig.progress().committed, rig.progress().finished) == (0, ((3, 6),))
    rig.submit(result([1, 0]))
    assert (rig.progress().committed, rig.progress().finished) == (2, ((3, 6),))
    rig.submit(result([0, 2, 2, 99]))
    assert rig.progress().committed == 6
    assert rig.counted("ddmq_acked_total") == 6


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


@pytest.mark.parametrize(
    "stranger",
    [{"group": "nobody"}, {"topic": "nothing"}, {"queue": 7}, {"group": ""}],
)
def test_unknown_groups_topics_and_queues_are_ignored_and_answered_true(stranger: dict[str, Any]) -> None:
    rig = ready()
    rig.pull()
    assert rig.submit(result([0, 1], **stranger)).result is True
    assert rig.progress().committed == 0
    assert rig.counted("ddmq_results_ignored_total") == 2


def test_successes_go_before_failures_of_the_same_result() -> None:
    rig = ready(1)
    rig.pull()
    rig.submit(result([0], [0]))
    assert rig.progress().committed == 1
    assert rig.counted("ddmq_failed_total") == 0


def test_submit_answers_only_when_durable() -> None:
    rig = ready()
    rig.pull()
    rig.backend.hold()
    call = rig.call("submit", METHODS["submit"].args[0](result=result([0])))
    rig.settle()
    assert not call.answered
    rig.backend.release_held()
    rig.settle()
    assert call.result is True


def test_a_repeated_ack_waits_for_the_first_ones_commit() -> None:
    rig = ready()
    rig.pull()
    rig.backend.hold()
    calls = [rig.call("submit", METHODS["submit"].args[0](result=result([0, 1]))) for _ in range(2)]
    rig.settle()
    assert [call.answered for call in calls] == [False, False]
    rig.backend.release_held()
    rig.settle()
    assert [call.result for call in calls] == [True, True]


@pytest.mark.parametrize("error", [StorageError("disk"), RemoteError("gone")])
def test_a_failed_commit_is_said_and_made_good_by_the_resend(error: Any) -> None:
    rig = ready()
    rig.pull(count=2)
    rig.backend.fail_next(error)
    assert rig.submit(result([0, 1])).outcome.error.code == 10
    assert rig.progress().committed in (0, None)
    assert rig.submit(result([0, 1])).result is True
    assert rig.progress().committed == 2


def test_a_failed_commit_is_repeated_without_a_resend() -> None:
    rig = ready()
    rig.pull(count=2)
    rig.backend.fail_next(StorageError("disk"))
    rig.submit(result([0, 1]))
    rig.advance(0.5)
    assert rig.progress().committed == 2


def test_failed_jobs_come_again_after_each_interval_and_then_are_dead_letters() -> None:
    rig = ready(1, SubscriptionDefaults(start="first", retry_steps=0))
    for attempt, wait in enumerate((0.1, 0.15, 0.3)):
        call = rig.pull(clientId=b"c")
        assert [(each.offset, each.attempt) for each in call.result.messages] == [(0, attempt + 1)]
        rig.submit(result(fail=[0]))
        early = rig.ask(linger=int(wait * 1000) - 10)
        rig.settle()
        rig.advance(wait - 0.005)
        assert early.result.messages == []
        rig.advance(0.005)
    assert rig.pull().offsets == [0]
    rig.submit(result(fail=[0]))
    rig.settle()
    assert rig.progress().committed == 1
    assert rig.counted("ddmq_dead_letters_total", reason="failed") == 1
    assert rig.pull().result.messages == []


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


def test_a_dead_letter_that_cannot_be_stored_is_tried_again_and_finished_only_then() -> None:
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


def test_timed_out_leases_come_again_at_once_and_at_most_so_often() -> None:
    rig = ready(
        2, SubscriptionDefaults(start="first", ack_timeout_ms=1000, max_timeout_redeliveries=2, retry_steps=0)
    )
    for _ in range(3):
        waiting = rig.ask(linger=30_000)
        rig.settle()
        assert waiting.offsets == [0, 1]
        rig.advance(0.99)
        rig.advance(0.02)
    rig.settle()
    assert rig.counted("ddmq_lease_timeouts_total") == 6
    assert rig.counted("ddmq_dead_letters_total", reason="timed-out") == 2
    assert rig.progress().committed == 2


def test_a_late_ack_without_lease_finishes_a_job_that_waits_for_redelivery() -> None:
    rig = ready(1)
    rig.pull()
    rig.advance(1.01)
    rig.submit(result([0]))
    assert rig.progress().committed == 1
    assert rig.pull().result.messages == []


def test_a_fail_without_lease_counts_only_while_leased() -> None:
    rig = ready(1)
    rig.pull()
    rig.advance(1.01)
    rig.submit(result(fail=[0]))
    assert rig.counted("ddmq_failed_total") == 0
    assert rig.counted("ddmq_results_ignored_total", reason="unknown offset") == 1
    assert rig.pull().offsets == [0]


def test_a_stale_lease_changes_nothing_and_is_counted_late() -> None:
    rig = ready(1)
    stale = rig.pull(clientId=b"c").result.messages[0].leaseId
    rig.advance(1.01)
    rig.submit(result([0], successLeases=[stale]))
    rig.submit(result(fail=[0], failLeases=[stale]))
    again = rig.pull(clientId=b"c").result.messages[0]
    assert again.attempt == 2
    assert again.leaseId != stale
    rig.submit(result([0], successLeases=[stale]))
    assert rig.progress().committed in (0, None)
    assert rig.counted("ddmq_results_ignored_total", reason="late") == 3
    rig.submit(result([0], successLeases=[again.leaseId]))
    assert rig.progress().committed == 1


def test_an_extended_lease_lasts_longer() -> None:
    rig = ready(1)
    lease = rig.pull(clientId=b"c").result.messages[0].leaseId
    for _ in range(4):
        rig.advance(0.7)
        rig.submit(result(extendLeases=[lease]))
    assert rig.counted("ddmq_lease_timeouts_total") == 0
    rig.advance(1.01)
    assert rig.counted("ddmq_lease_timeouts_total") == 1
    rig.submit(result(extendLeases=[lease]))
    assert rig.counted("ddmq_results_ignored_total", reason="late") == 1


def test_a_fail_with_a_delay_of_its_own_waits_that_long() -> None:
    rig = ready(2)
    messages = rig.pull(clientId=b"c").result.messages
    leases = [each.leaseId for each in messages]
    rig.submit(result(fail=[0, 1], failLeases=leases, failDelaysMs=[5000, -1]))
    rig.advance(0.11)
    assert rig.pull().offsets == [1]
    rig.submit(result([1]))
    rig.advance(4.0)
    assert rig.pull().result.messages == []
    rig.advance(1.0)
    assert rig.pull().offsets == [0]


def test_restart_redelivers_exactly_the_unfinished_with_their_attempts() -> None:
    rig = ready(10)
    rig.pull()
    rig.submit(result([0, 1, 4, 5, 6, 9], [3]))
    rig.restart()
    messages = rig.pull(clientId=b"c").result.messages
    assert [(each.offset, each.attempt) for each in messages] == [(2, 1), (3, 2), (7, 1), (8, 1)]
    rig.submit(result([each.offset for each in messages]))
    assert rig.progress().committed == 10


def test_one_held_many_acknowledged_after_it_one_redelivery() -> None:
    rig = ready(3000)
    held = rig.pull(count=1).offsets
    acknowledged: list[int] = []
    while len(acknowledged) < 2999:
        acknowledged += rig.pull(result=result(acknowledged[-100:])).offsets
    rig.submit(result(acknowledged[-100:]))
    rig.restart()
    assert rig.pull().offsets == held == [0]
    assert rig.pull().result.messages == []


def test_spent_jobs_become_dead_letters_after_a_restart_without_another_delivery() -> None:
    rig = ready(2, SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=0))
    rig.pull()
    rig.backend.fail_next(StorageError("disk"), times=0)
    rig.submit(result(fail=[0]))
    rig.restart()
    offsets = rig.pull().offsets
    assert 0 not in offsets
    rig.settle()
    assert rig.progress().committed == 1


def test_concurrency_bounds_what_is_leased_and_an_ack_wakes_who_waits() -> None:
    rig = ready(10, SubscriptionDefaults(start="first", concurrency=4))
    assert rig.pull().offsets == [0, 1, 2, 3]
    waiting = rig.ask(linger=30_000)
    rig.settle()
    assert not waiting.answered
    rig.submit(result([1, 2]))
    rig.settle()
    assert waiting.offsets == [4, 5]


def test_bytes_in_flight_are_bounded() -> None:
    rig = ConsumerRig().ready(config=SubscriptionDefaults(start="first", in_flight_bytes_max=5000))
    rig.send(10, size=2000)
    assert rig.pull(count=2).offsets == [0, 1]
    assert rig.pull(count=2).offsets == [2, 3]
    assert rig.pull(count=2).result.messages == []
    rig.submit(result([0, 1]))
    assert rig.pull(count=2).offsets == [4, 5]


def test_the_ack_span_is_bounded() -> None:
    rig = ready(100, SubscriptionDefaults(start="first", ack_span_max=50, batch_max=10))
    assert rig.pull(count=1).offsets == [0]
    seen: list[int] = []
    while True:
        offsets = rig.pull(result=result(seen[-10:])).offsets
        if not offsets:
            break
        seen += offsets
    assert 49 <= seen[-1] < 60
    rig.submit(result([0]))
    assert rig.pull().result.messages


def test_waiting_retries_are_bounded_and_others_still_come_again() -> None:
    rig = ready(10, SubscriptionDefaults(start="first", retrying_max=3, batch_max=3))
    rig.pull()
    rig.submit(result(fail=[0, 1, 2]))
    assert rig.pull().result.messages == []
    rig.advance(0.1)
    assert rig.pull().offsets == [0, 1, 2]
    assert rig.pull().offsets == [3, 4, 5]


def test_a_client_that_goes_while_its_results_are_stored_leases_nothing() -> None:
    rig = ready(4)
    rig.pull(count=2)
    rig.backend.hold()
    call = rig.ask(result=result([0, 1]))
    call.go()
    rig.backend.release_held()
    rig.settle()
    assert call.answered, "an answer, though dropped, ends the call"
    assert rig.progress().committed == 2
    assert rig.pull().offsets == [2, 3]


@pytest.mark.parametrize("lists", [{"success": [-5, -1, 1 << 62]}, {"fail": [-5, -1, 1 << 62]}])
def test_impossible_offsets_are_ignored_also_while_a_commit_is_open(lists: dict[str, Any]) -> None:
    rig = ready(4)
    rig.pull(count=2)
    rig.backend.hold()
    first = rig.call("submit", METHODS["submit"].args[0](result=result([0, 1])))
    again = rig.call("submit", METHODS["submit"].args[0](result=result(**lists)))
    assert again.result is True
    rig.backend.release_held()
    rig.settle()
    assert first.result is True
    assert rig.progress().committed == 2


def test_a_huge_result_is_cut_at_its_bound() -> None:
    rig = ConsumerRig(build_options(ConsumerConfig, offsets_per_call_max=100)).ready(3)
    rig.pull()
    rig.submit(result(range(1000)))
    assert rig.progress().committed in (0, None)
    assert rig.counted("ddmq_results_ignored_total", reason="over the bound of one call") == 1000


def test_a_reset_while_connected_starts_anew_and_ignores_older_acks() -> None:
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


def test_a_late_ack_without_lease_finishes_what_a_restarted_proxy_would_redeliver() -> None:
    rig = ConsumerRig().ready(6, SubscriptionDefaults(start="first", ack_timeout_ms=1_000))
    assert rig.pull(count=4).offsets == [0, 1, 2, 3]
    rig.submit(result([1]))
    rig.advance(1.1)
    rig.advance(0.6)
    assert set(rig.progress().attempts) == {0, 2, 3}
    rig.restart()
    assert rig.pull(count=1).offsets == [0]
    rig.submit(result([2, 3, 4]))  # 4 was never delivered, as far as anybody knows
    assert rig.progress().finished == ((1, 4),)
    assert rig.pull(count=10).offsets == [4, 5]


@pytest.mark.parametrize("pull_first", [True, False])
def test_a_late_ack_without_lease_finishes_it_after_a_restart_where_there_is_an_order_key_too(
    pull_first: bool,
) -> None:
    rig = ConsumerRig().ready(6, SubscriptionDefaults(start="first", ack_timeout_ms=1_000, order_key="KEY"))
    rig.send(6)  # the same keys, each behind its first
    assert rig.pull(count=4).offsets == [0, 1, 2, 3]
    rig.submit(result([1]))
    rig.advance(1.1)
    rig.advance(0.6)
    assert set(rig.progress().attempts) == {0, 2, 3}
    rig.restart()
    if pull_first:
        assert rig.pull(count=1).offsets == [0]
    else:
        rig.subscription().on_use(rig.clock.monotonic())
        rig.settle()
    rig.submit(result([2, 3, 4]))  # 4 was never delivered, as far as anybody knows
    assert rig.progress().finished == ((1, 4),)
    expected = [4, 5, 7, 8, 9] if pull_first else [0, 4, 5, 7, 8, 9]
    assert rig.pull(count=10).offsets == expected


def test_a_late_ack_without_lease_finishes_what_its_chain_has_let_out_again() -> None:
    rig = ConsumerRig().ready(config=SubscriptionDefaults(start="first", ack_timeout_ms=1_000))
    for _ in range(3):
        rig.send(1)  # of one key
    assert rig.pull(count=2).offsets == [0, 1]
    rig.advance(1.1)
    rig.advance(0.6)
    assert set(rig.progress().attempts) == {0, 1}
    rig.wait(rig.service.change_subscription("G", "T", {"order_key": "KEY"}))
    rig.restart()
    assert rig.pull().offsets == [0]
    rig.submit(result([0]))
    rig.submit(result([1]))
    assert rig.progress().committed == 2
    assert rig.pull().offsets == [2]
    rig.submit(result([2]))
    assert rig.pull().offsets == []
