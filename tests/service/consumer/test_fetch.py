"""Low-level fetch and ack over the memory engine with a moved clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.completion import Completion
from backend.port import ReadCall
from backend.records import CommitBatch, ProgressDelta, ReadBatch
from ddmq_common.errors import StorageError
from ddmq_rpc.api import Wire
from proxy_consumer.config import ConsumerConfig
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig
from tests.service.consumer.fetch_calls import ack, fetch, finish, shown, start_fetch, values


def ready(rig: ConsumerRig, queues: int = 1, count: int = 0, topic: str = "T") -> None:
    rig.topic(topic, queues)
    rig.subscribe(topic=topic)
    for queue in range(queues if count else 0):
        rig.send(count, queue, topic)


@pytest.mark.parametrize("wire", list(Wire))
def test_every_assigned_queue_answers_with_its_messages_and_next_offset(rig: ConsumerRig, wire: Wire) -> None:
    ready(rig, queues=3)
    rig.send(2, queue=0)
    rig.send(1, queue=2)
    results = fetch(rig, wire=wire)
    assert list(results) == [("T", 0), ("T", 1), ("T", 2)]
    assert [values(one) for one in results.values()] == [[b"m0", b"m1"], [], [b"m0"]]
    assert [one.nextRequestOffset for one in results.values()] == [2, 0, 1]
    message = results["T", 0].messages[1]
    assert (message.key, message.tag, message.offset, message.properties) == (b"k1", b"tag", 1, {b"p": b"v"})
    assert (message.messageId, message.leaseId) == (None, None)


def test_an_absent_batch_size_means_one_and_the_subscription_has_the_last_word(rig: ConsumerRig) -> None:
    rig.ready(10, replace(FIRST, batch_max=3))
    assert len(fetch(rig, count=None)["T", 0].messages) == 1
    assert len(fetch(rig, count=0)["T", 0].messages) == 1
    assert len(fetch(rig, count=2)["T", 0].messages) == 2
    assert len(fetch(rig, count=1_000_000)["T", 0].messages) == 3


def test_without_progress_it_starts_at_the_newest_and_passes_nothing_by_afterwards(rig: ConsumerRig) -> None:
    rig.subscribe()
    rig.topic()  # after the group: no progress is stored
    rig.send(3)
    assert fetch(rig)["T", 0].nextRequestOffset == 3
    rig.send(1)
    result = fetch(rig)["T", 0]
    assert (values(result), result.nextRequestOffset) == ([b"m0"], 4)


def test_our_clients_hear_why_and_see_ids(rig: ConsumerRig) -> None:
    call = start_fetch(rig, group="nobody", clientId=b"me")
    assert b"does not exist" in call.outcome.success.error
    ready(rig, count=3)
    message = fetch(rig, clientId=b"me", count=1)["T", 0].messages[0]
    assert (len(message.messageId), message.nextOffset) == (32, 3)
    assert message.storedMs >= message.bornMs > 0


def test_a_fenced_ack_says_retry_and_then_reaches_the_new_generation(rig: ConsumerRig) -> None:
    ready(rig, count=10)
    fetch(rig)
    view = rig.progress()
    reset = ProgressDelta("G", rig.ref(), view.epoch, view.generation + 1, reset_to=1)
    rig.wait(rig.backend.commit(CommitBatch(progress=[reset]), rig.deadline()))
    assert not ack(rig, {"T": {0: 8}})
    rig.settle()
    assert ack(rig, {"T": {0: 8}}), "an ack of what was fetched before the reset: ignored"
    assert rig.progress().committed == 1


def test_after_a_reset_the_clients_own_offset_is_passed_over_once(rig: ConsumerRig) -> None:
    ready(rig, count=10)
    fetch(rig)
    view = rig.progress()
    reset = ProgressDelta("G", rig.ref(), view.epoch, view.generation + 1, reset_to=5)
    batch = CommitBatch(progress=[reset], settings={"reset/G/T": b"1"})
    rig.wait(rig.backend.commit(batch, rig.deadline()))
    rig.settle()
    assert values(fetch(rig, offsets={"T": {0: 9}}, count=1)["T", 0]) == [b"m5"]
    assert values(fetch(rig, offsets={"T": {0: 6}}, count=1)["T", 0]) == [b"m6"]
    assert ack(rig, {"T": {0: 7}})
    assert rig.progress().committed == 7


def test_a_group_is_pulled_from_or_fetched_from(rig: ConsumerRig) -> None:
    ready(rig, count=2)
    fetch(rig)
    refused = rig.pull()
    assert b"fetched from at this proxy" in refused.outcome.error.message
    assert rig.start_pull(topic=None).outcome.error is not None
    rig.advance(31)
    assert rig.pull().values == [b"m0", b"m1"]
    call = start_fetch(rig, clientId=b"me")
    assert b"pulled from at this proxy" in call.outcome.success.error
    rig.advance(31)
    rig.advance(62)
    rig.advance(62)
    assert len(fetch(rig)["T", 0].messages) == 2


def test_an_answer_stops_growing_at_its_bound_and_no_queue_starves() -> None:
    rig = ConsumerRig(ConsumerConfig(answer_bytes_max=10_000)).ready(queues=4)
    for queue in range(4):
        rig.send(100, queue, size=3_000)
    offsets = dict.fromkeys(range(4), 0)
    fetched: dict[int, int] = dict.fromkeys(offsets, 0)
    for _ in range(40):
        rig.advance(0.001)
        results = fetch(rig, offsets={"T": offsets})
        assert 1 <= sum(len(one.messages) for one in results.values()) <= 3
        for (_, queue), one in results.items():
            offsets[queue] = one.nextRequestOffset
            fetched[queue] += len(one.messages)
    assert all(offsets[queue] == fetched[queue] for queue in fetched), "nothing is passed by"
    assert min(fetched.values()) > 0


def test_a_client_that_goes_leaves_nothing_behind(rig: ConsumerRig) -> None:
    ready(rig)
    fetch(rig)
    call = start_fetch(rig, linger=30_000)
    rig.settle()
    call.go()
    rig.send(1)
    rig.settle()
    assert not call.answered
    assert rig.service._fetches.wheel.count == 0
    rig.advance(31)
    assert rig.service._fetches.groups == {}


def test_bad_requests(rig: ConsumerRig) -> None:
    ready(rig)
    for bad in ({"consumer": ""}, {"consumer": "x" * 256}, {"linger": -1}, {"model": b"both"}):
        call = finish(rig, start_fetch(rig, clientId=b"me", **bad))  # type: ignore[arg-type]
        assert (call.outcome.success.code, bool(call.outcome.success.error)) == (11, True)
    assert rig.service._fetches.groups == {}


def test_what_cannot_be_read_is_not_read_without_end(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(rig, queues=2, count=1)
    failed: list[ReadCall] = []

    def read(call: ReadCall, completion: Completion[ReadBatch]) -> None:
        failed.append(call)
        completion.fail(StorageError("the disk is gone"))

    monkeypatch.setattr(rig.backend, "start_read", read)
    call = start_fetch(rig, linger=1_000)
    for _ in range(10):
        rig.settle()
    assert 2 <= len(failed) <= 6
    assert not call.answered
    assert all(not one.messages for one in shown(finish(rig, call)).values())
    monkeypatch.undo()
    assert len(fetch(rig)["T", 0].messages) == 1
