"""CommitQueue with several transactions in flight: what waits for what, and what one outcome costs others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from test_kafka_commit_queue import QueueRig, stored

from backend.completion import Completion
from backend.kafka.clients.writing import OutcomeKind, WriteOutcome
from backend.kafka.targets import NO_LEADER
from backend.records import CommitBatch, NewRecord, ProgressDelta, QueueRef
from ddmq_common.errors import FencedError, RemoteError, TopicUnavailableError, TryLaterError
from tests.support.waits import soon, until

FENCED = WriteOutcome(OutcomeKind.FENCED, [], TryLaterError("taken over"))
UNKNOWN = WriteOutcome(OutcomeKind.UNCERTAIN, [], RemoteError("no answer"))
BLOCKED = WriteOutcome(OutcomeKind.REFUSED, [], TryLaterError("timed out"), {"dead": NO_LEADER})


class LanesRig(QueueRig):
    def ack(self, queue: int, offset: int = 0) -> Completion[Any]:
        delta = ProgressDelta("g", QueueRef("orders", 7, queue), 1, 0, ((offset, offset + 1),))
        return self.line.commit(CommitBatch(progress=[delta]), soon())

    def move(self, queue: int, to: int, topic: str = "orders", offset: int = 0) -> Completion[Any]:
        """A retry, say: a record, and the progress of the message that it comes from."""
        delta = ProgressDelta("g", QueueRef("orders", 7, queue), 1, 0, ((offset, offset + 1),))
        record = NewRecord(topic, to, bytes(16), 1, b"%d" % queue)
        return self.line.commit(CommitBatch([record], [delta]), soon())

    def requests(self, count: int) -> list[Any]:
        until(lambda: len(self.producers.requests) == count, "it is asked")
        return self.producers.requests

    def quiet(self, count: int) -> None:
        """Nothing more starts."""
        for _ in range(5):
            gevent.sleep(0)
        assert len(self.producers.requests) == count


@pytest.fixture
def rig() -> Iterator[LanesRig]:
    rig = LanesRig()
    yield rig
    rig.line.close()


def test_an_acknowledgement_does_not_wait_for_a_transaction_of_another_queue(rig: LanesRig) -> None:
    rig.move(0, to=0)
    rig.requests(1)
    other = rig.ack(1)
    writes, then = rig.requests(2)[1]
    then(stored(writes))
    assert other.done
    assert other.error is None


def test_one_of_the_same_queue_does(rig: LanesRig) -> None:
    move = rig.move(0, to=0)
    rig.requests(1)
    ack = rig.ack(0, 1)
    rig.quiet(1)
    writes, then = rig.requests(1)[0]
    then(stored(writes))
    assert move.done
    rig.requests(2)
    assert not ack.done


def test_transactions_to_one_queue_go_in_the_order_of_the_calls_and_others_beside_them(rig: LanesRig) -> None:
    rig.move(0, to=0)
    rig.requests(1)
    rig.move(1, to=0)
    rig.move(2, to=1)
    (_, _), (other, _) = rig.requests(2)
    assert other[0].partition == 1
    rig.quiet(2)
    writes, then = rig.producers.requests[0]
    then(stored(writes))
    assert rig.requests(3)[2][0][0].value == b"1"


def test_there_are_no_more_transactions_than_ids(rig: LanesRig) -> None:
    rig.producers.free_ids = 1
    rig.move(0, to=0)
    rig.requests(1)
    rig.producers.free_ids = 0
    rig.move(1, to=1)
    ack = rig.ack(2)
    rig.requests(2)[1][1](stored(rig.producers.requests[1][0]))
    assert ack.done
    rig.producers.free_ids = 1
    rig.line.resume()
    assert rig.requests(3)[2][0][0].partition == 1


def test_a_topic_that_takes_nothing_costs_those_that_went_with_it_a_moment(rig: LanesRig) -> None:
    dead, live = rig.move(0, to=0, topic="dead"), rig.move(0, to=0, offset=1)
    (writes, then) = rig.requests(1)[0]
    assert [write.topic for write in writes] == ["dead", "orders", "progress"], "they share a transaction"
    then(BLOCKED)
    assert isinstance(dead.error, TopicUnavailableError)
    assert dead.error.topics == {"dead": NO_LEADER}
    writes, then = rig.requests(2)[1]
    assert [write.topic for write in writes] == ["orders", "progress"]
    then(stored(writes))
    assert live.error is None
    rejected = rig.move(3, to=0, topic="dead")
    until(lambda: rejected.done, "it is not even tried")
    assert isinstance(rejected.error, TopicUnavailableError)
    assert len(rig.producers.requests) == 2


def test_a_fenced_id_costs_the_name_once_all_outcomes_are_certain(rig: LanesRig) -> None:
    first, second = rig.move(0, to=0), None
    rig.requests(1)
    second = rig.move(1, to=1)
    rig.requests(2)[0][1](FENCED)
    rig.quiet(2)
    assert len(rig.producers.names) == 1, "the other one is in flight"
    rig.producers.requests[1][1](UNKNOWN)
    until(lambda: len(rig.producers.names) == 2, "another name")

    def resent() -> list[bytes | None]:  # two that wait may share a transaction; the hash of a queue decides
        writes = [write for request, _ in rig.producers.requests[2:] for write in request]
        return sorted(write.value for write in writes if write.topic == "orders")

    until(lambda: resent() == [b"0", b"1"], "neither is there, both go again")
    for writes, then in rig.producers.requests[2:]:
        then(stored(writes))
    assert first.error is None
    assert second.error is None


def test_uncertain_outcomes_are_looked_up_one_by_one(rig: LanesRig) -> None:
    there, missing = rig.move(0, to=0), None
    rig.requests(1)
    missing = rig.move(1, to=1)
    (first, then), (_, other) = rig.requests(2)
    rig.follow(write for write in first if write.topic == "progress")
    then(UNKNOWN._replace(offsets=list(range(len(first)))))
    other(UNKNOWN)
    until(lambda: there.done, "it is found")
    assert there.error is None
    writes, then = rig.requests(3)[2]
    assert writes[0].value == b"1"
    then(stored(writes))
    assert missing.error is None


def test_a_release_waits_for_the_commits_of_its_queues_alone(rig: LanesRig) -> None:
    rig.move(0, to=0)
    rig.requests(1)
    done: list[int] = []
    rig.line.run_after_progress([QueueRef("orders", 7, 1)], lambda: done.append(1))
    rig.line.run_after_progress([QueueRef("orders", 7, 0)], lambda: done.append(0))
    until(lambda: done == [1], "no commit of it is in flight")
    rig.quiet(1)
    assert done == [1]
    writes, then = rig.producers.requests[0]
    then(stored(writes))
    until(lambda: done == [1, 0], "behind the commit")


def test_what_is_called_after_a_release_waits_for_it(rig: LanesRig) -> None:
    """In whatever group: it would be in flight while the queue is another process's."""
    rig.line.commit(CommitBatch(settings={"k": b"1"}), soon())
    rig.requests(1)
    rig.line.run_after_progress([QueueRef("orders", 7, 1)], lambda: setattr(rig, "floor", 2))
    late = rig.move(1, to=1)
    rig.quiet(1)
    writes, then = rig.producers.requests[0]
    then(stored(writes))
    until(lambda: late.done, "it is checked after the release")
    assert isinstance(late.error, FencedError)
    assert len(rig.producers.requests) == 1


def test_an_append_waits_for_commits_to_its_queue_alone(rig: LanesRig) -> None:
    rig.move(0, to=0)
    rig.requests(1)
    assert rig.line.touches_queues([NewRecord("orders", 0, bytes(16), 1, b"")])
    assert not rig.line.touches_queues([NewRecord("orders", 1, bytes(16), 1, b"")])


def test_a_call_that_expires_while_it_waits_is_not_written(rig: LanesRig) -> None:
    rig.move(0, to=0)
    rig.requests(1)
    delta = ProgressDelta("g", QueueRef("orders", 7, 0), 1, 0, ((5, 6),))
    late = rig.line.commit(CommitBatch(progress=[delta]), 0.0)
    until(lambda: late.done, "its deadline is over")
    assert isinstance(late.error, TryLaterError)
    writes, then = rig.producers.requests[0]
    then(stored(writes))
    rig.quiet(1)
    assert not rig.line.is_busy
