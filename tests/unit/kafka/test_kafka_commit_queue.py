"""CommitQueue on the hub: what is answered, done again or left open when names and outcomes are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from test_kafka_commit_plan import KEY, QUEUE, State, Topics, entry

from backend.completion import Completion
from backend.kafka.clients.writing import OutcomeKind, WriteOutcome
from backend.kafka.commits.commit_queue import CommitQueue
from backend.kafka.records import ProducerRecord
from backend.kafka.state.tables import encode_record
from backend.progress.group_progress import GroupProgress
from backend.records import CommitBatch, NewRecord, ProgressDelta
from ddmq_common.errors import FencedError, RemoteError
from tests.support.waits import soon, until

Then = Callable[[WriteOutcome], None]
UNKNOWN = WriteOutcome(OutcomeKind.UNCERTAIN, [], RemoteError("no answer"))


class FollowedState(State):
    """With barriers that are over at once."""

    ready, reason, other_cluster = True, "", ""

    def catch_up(self) -> Completion[None]:
        over: Completion[None] = Completion()
        over.succeed(None)
        return over


class FakeProducers:
    """Keeps what it is asked; the test answers. A name is given at once."""

    free_ids = 4

    def __init__(self) -> None:
        self.requests: list[tuple[Sequence[ProducerRecord], Then]] = []
        self.names: list[str] = []
        self.late: list[Any] = []  # of the transactions

    def write_plain(self, writes: Sequence[ProducerRecord], then: Then) -> None:
        self.requests.append((writes, then))

    def write_transaction(
        self,
        writes: Sequence[ProducerRecord],
        once: bool,
        limit_s: float,
        then: Then,
        on_slow: Any,
        late: Any = None,
    ) -> None:
        self.requests.append((writes, then))
        self.late.append(late)

    def take_new_id(self, name: str, then: Then) -> None:
        self.names.append(name)
        then(WriteOutcome(OutcomeKind.STORED, [], None))


class QueueRig:
    def __init__(self) -> None:
        self.state, self.producers = FollowedState(), FakeProducers()
        self.floor = 0
        state: Any = self.state
        producers: Any = self.producers
        topics: Any = Topics()
        self.line = CommitQueue(
            state,
            producers,
            topics,
            lambda: 0.0,
            when_appended=lambda queues, then: then(),
            epoch_floor=lambda key, epoch: self.floor,
            is_alive=lambda: True,
            on_name_lost=lambda reason: None,
            on_named=lambda name: None,
            on_progress=lambda keys: None,
        )
        until(lambda: self.line.name, "it has a name")

    def finish(self, offset: int, epoch: int = 1) -> Completion[Any]:
        delta = ProgressDelta("g", QUEUE, epoch, 0, ((offset, offset + 1),))
        return self.line.commit(CommitBatch(progress=[delta]), soon())

    def under_way(self, count: int) -> tuple[Sequence[ProducerRecord], Then]:
        until(lambda: len(self.producers.requests) == count, "it is under way")
        return self.producers.requests[-1]

    def follow(self, writes: Sequence[ProducerRecord]) -> None:
        for write in writes:
            assert write.key is not None
            self.state.progress.apply(write.key, write.value)


@pytest.fixture
def rig() -> Iterator[QueueRig]:
    rig = QueueRig()
    yield rig
    rig.line.close()


def stored(writes: Sequence[ProducerRecord]) -> WriteOutcome:
    return WriteOutcome(OutcomeKind.STORED, list(range(len(writes))), None)


def test_what_is_stored_is_answered(rig: QueueRig) -> None:
    call = rig.finish(0)
    writes, then = rig.under_way(1)
    then(stored(writes))
    assert call.done
    assert call.error is None


def test_a_commit_stored_under_a_former_name_may_not_count(rig: QueueRig) -> None:
    call = rig.finish(0)
    writes, then = rig.under_way(1)
    rig.line.renew("it was stopped")
    then(stored(writes))
    assert isinstance(call.error, RemoteError)
    until(lambda: len(rig.producers.names) == 2, "another name")


def test_an_unknown_outcome_that_is_there_is_answered_well(rig: QueueRig) -> None:
    call = rig.finish(0)
    writes, then = rig.under_way(1)
    rig.follow(writes)
    then(UNKNOWN)
    until(lambda: call.done, "looked up")
    assert call.error is None
    assert len(rig.producers.requests) == 1


def test_an_uncertain_commit_that_was_not_stored_is_retried(rig: QueueRig) -> None:
    call = rig.finish(0)
    first, then = rig.under_way(1)
    then(UNKNOWN)
    repeated, then = rig.under_way(2)
    assert repeated == first
    then(stored(repeated))
    assert call.error is None


def test_a_retried_commit_is_checked_first(rig: QueueRig) -> None:
    call = rig.finish(0)
    _, then = rig.under_way(1)
    rig.floor = 2  # the queue was lost with the name
    then(UNKNOWN)
    until(lambda: call.done, "looked up")
    assert isinstance(call.error, FencedError)


@pytest.mark.parametrize("there", [True, False])
def test_the_outcome_stays_uncertain_after_a_later_holder(rig: QueueRig, there: bool) -> None:
    """It has written its epoch above, and takes lower keys away: that ours is not there says nothing."""
    call = rig.finish(0)
    writes, then = rig.under_way(1)
    if there:
        rig.follow(writes)
    later = GroupProgress()
    later.apply(ProgressDelta("g", QUEUE, 2, 0))
    rig.state.progress.apply(*encode_record(KEY, later))
    then(UNKNOWN)
    until(lambda: call.done, "looked up")
    assert isinstance(call.error, RemoteError)
    assert len(rig.producers.requests) == 1


def test_a_commit_with_an_entry_writes_it_after_its_records(rig: QueueRig) -> None:
    record = NewRecord("orders", 0, bytes(16), 1, b"body")
    call = rig.line.commit(CommitBatch([record]), soon(), None, entry())
    writes, then = rig.under_way(1)
    (late,) = rig.producers.late[0]([17])
    assert (late.value, len(writes)) == (b"[17]", 1)
    then(WriteOutcome(OutcomeKind.STORED, [17, 4], None))
    assert [result.offset for result in call.value] == [17]
    rig.line.commit(CommitBatch([record]), soon())
    rig.under_way(2)
    assert rig.producers.late == [rig.producers.late[0], None]


def test_a_commit_whose_entry_is_over_is_not_sent_again(rig: QueueRig) -> None:
    record = NewRecord("orders", 0, bytes(16), 1, b"body")
    is_current = True
    own = entry()._replace(is_current=lambda: is_current)
    delta = ProgressDelta("g", QUEUE, 1, 0, ((0, 1),))
    call = rig.line.commit(CommitBatch([record], [delta]), soon(), None, own)
    _, then = rig.under_way(1)
    is_current = False
    then(WriteOutcome(OutcomeKind.FENCED, [], RemoteError("another process took the ids over")))
    until(lambda: call.done, "it is given up")
    assert isinstance(call.error, FencedError)
    assert len(rig.producers.requests) == 1


def test_nothing_is_written_and_no_name_taken_while_the_brokers_are_another_cluster(rig: QueueRig) -> None:
    rig.state.other_cluster = "it is another cluster"
    rig.line.renew("it is another cluster")
    call = rig.finish(0)
    rig.line.resume()
    until(lambda: not rig.line.is_busy)
    assert (rig.producers.requests, len(rig.producers.names), call.done) == ([], 1, False)
    rig.state.other_cluster = ""
    rig.line.resume()
    writes, then = rig.under_way(1)
    assert len(rig.producers.names) == 2
    then(stored(writes))
    assert call.error is None


def test_what_another_cluster_has_stored_does_not_count(rig: QueueRig) -> None:
    call = rig.finish(0)
    writes, then = rig.under_way(1)
    rig.state.other_cluster = "it is another cluster"
    then(stored(writes))
    assert isinstance(call.error, RemoteError)
    assert rig.state.progress.view(KEY).committed is None
