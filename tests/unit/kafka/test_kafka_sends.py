"""SendRouter and SendShard over the memory engine: what is stored once, whoever is killed and when.

Each router is a process: a member of the shards' group, which commits through `EntryLog.commit_entry`. The
test says how commits end, and takes shards away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from backend.completion import Completion, failed
from backend.kafka.commits.plan import OffsetEntry
from backend.kafka.sends import calls
from backend.kafka.sends.routing import SendRouter
from backend.kafka.sends.window import NUMBERS_MS, QUEUES, queue_of_identity
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    Durability,
    FirstStored,
    NewRecord,
    QueueRef,
    StoredRecord,
    TopicInfo,
)
from backend.testing.kit import KitClock
from ddmq_common.delivery import encode as encode_delivery
from ddmq_common.errors import (
    CallerError,
    FencedError,
    RemoteError,
    TryLaterError,
    UnknownTopicError,
)
from ddmq_common.names import SENDS_GROUP, SENDS_TOPIC
from ddmq_common.send_identity import IDENTITY, key_identity, sequence_identity
from tests.played_memory import PlayedMemory
from tests.support.rig import Rig
from tests.support.waits import done, soon, until

LOST = RemoteError("the coordinator has not answered")
PRODUCER = b"\x07" * 16


class EntryLog(PlayedMemory):
    """The log of all processes. `outcomes`: of the next commits with messages; see `commit_entry`."""

    def __init__(self, clock: KitClock) -> None:
        super().__init__(clock)
        self.outcomes: list[str] = []
        self.held: list[Callable[[], None]] = []
        self.unavailable: set[str] = set()
        self.rejected: set[bytes] = set()  # ids of records that make a commit fail

    def addresses(self) -> Mapping[QueueRef, str]:
        return self._members.holders(SENDS_GROUP, SENDS_TOPIC)

    def append_plain(
        self, records: Sequence[NewRecord], deadline: float, into: Completion[list[AppendResult]]
    ) -> None:
        self.append(records, deadline, into)

    def why_unavailable(self, topic: str) -> str:
        return "it has no leader" if topic in self.unavailable else ""

    def commit_entry(
        self, batch: CommitBatch, deadline: float, entry: OffsetEntry
    ) -> Completion[list[AppendResult]]:
        """Commit messages and their entry. It ends as the next of `outcomes` says:

        `lost`: nothing is stored, and nobody says so; `unanswered`: it is stored, and nobody says so;
        `held`: it is sent when the test calls what is in `held`.
        """
        answer: Completion[list[AppendResult]] = Completion()
        is_marker = batch.records[0].topic == SENDS_TOPIC
        outcome = self.outcomes.pop(0) if self.outcomes and not is_marker else ""

        def send() -> None:
            if not entry.is_current():
                answer.fail(FencedError("it is not current"))
            elif outcome == "lost":
                answer.fail(LOST)
            elif any(record.message_id in self.rejected for record in batch.records):
                answer.fail(CallerError("one of them is too long"))
            else:
                self.commit(batch, deadline).then(on_stored)

        def on_stored(commit: Completion[list[AppendResult]]) -> None:
            if commit.error is not None:
                answer.fail(commit.error)
                return
            value = entry.encode([result.offset for result in commit.value])
            queue, delivery = entry.queue, encode_delivery(b"", value, b"", None)
            record = NewRecord(queue.topic, queue.queue_id, bytes(16), 0, delivery)
            self.commit(CommitBatch([record]), deadline).then(
                lambda _: answer.fail(LOST) if outcome == "unanswered" else answer.succeed(commit.value)
            )

        if outcome == "held":
            self.held.append(send)
        else:
            send()
        return answer


class RouterTopics:
    """What a router sees of the TopicRegistry."""

    def __init__(self, log: EntryLog) -> None:
        self._log = log

    @property
    def topics(self) -> Mapping[str, Any]:
        return {name: SimpleNamespace(info=info) for name, info in self._log.topics().items()}

    def rejection_of(self, record: NewRecord) -> Exception | None:
        info = self._log.topic(record.topic)
        if info is None or record.queue_id >= info.queues:
            return UnknownTopicError(f"no queue {record.queue_id} of {record.topic}")
        return None

    def durability_of(self, topic: str) -> Durability:
        return Durability.DURABLE


class SendsRig(Rig):
    """A log with the topic `orders`, and as many processes as the test opens."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = KitClock()
        self.log = EntryLog(self.clock)
        self.routers: list[SendRouter] = []
        self.cut_off: set[str] = set()  # addresses that answer nothing
        self.refused: set[str] = set()  # addresses that take no connection
        self._ids = count(1)
        done(self.log.put_topic(TopicInfo("orders", 0, 2), soon()))
        done(self.log.put_topic(TopicInfo(SENDS_TOPIC, 0, QUEUES), soon()))

    def open(self, numbers: bool = True) -> SendRouter:
        """Start a process, which can be reached by the others. `numbers`: it stores numbered sends once."""
        topics: Any = RouterTopics(self.log)
        router = SendRouter(
            self.log, self.clock, topics, self.log._loop.run_callback, self.log.commit_entry,
            self.log.append_plain,
            self.log.addresses, 1_000, 1 << 20, numbers, lambda records, then: then(None),
        )  # fmt: skip
        address = f"process:{len(self.routers)}"
        self.routers.append(router)
        router.serve_peers(address, self._call_peer)
        return router

    def _call_peer(self, address: str, data: bytes, deadline: float) -> Completion[bytes]:
        if address in self.refused:
            return failed(TryLaterError("no connection"))
        answer = self.routers[int(address.partition(":")[2])].take_peer_call(data, deadline)
        if address not in self.cut_off:
            return answer
        lost: Completion[bytes] = Completion()
        answer.then(lambda _: lost.fail(RemoteError("the connection broke")))
        return lost

    def owner_of(self, router: SendRouter) -> set[int]:
        return {queue.queue_id for queue, shard in router._owned.items() if shard.is_ready}

    def settle(self) -> None:
        """Wait until each shard has an owner that is ready, and each process has shards."""

        def is_settled() -> bool:
            owned = [self.owner_of(each) for each in self.routers if not each._stopping]
            return all(owned) and sorted(chain(*owned)) == list(range(QUEUES))

        until(is_settled, "all shards have owners")

    def key(self, key: bytes, body: bytes = b"body", queue_id: int = 0) -> NewRecord:
        return self._record(key_identity(b"orders", key, body), body, queue_id)

    def number(
        self, number: int, below: int = 0, age_ms: int | None = None, producer: bytes = PRODUCER
    ) -> NewRecord:
        return self._record(sequence_identity(producer, number, below, age_ms), b"%d" % number, 0)

    def of_every_shard(self) -> list[NewRecord]:
        """Twenty first messages, each of a producer of its own."""
        return [self.number(0, producer=bytes([number])) for number in range(20)]

    def _record(self, identity: str | None, body: bytes, queue_id: int) -> NewRecord:
        system = None if identity is None else {IDENTITY: identity}
        message_id = next(self._ids).to_bytes(16)
        delivery = encode_delivery(b"", body, b"", None)
        return NewRecord("orders", queue_id, message_id, 0, delivery, system=system)

    def plain(self) -> NewRecord:
        return self._record(None, b"plain", 0)

    def begin(
        self, router: SendRouter, *records: NewRecord, wait_s: float = 10.0
    ) -> Completion[list[AppendResult]]:
        answer: Completion[list[AppendResult]] = Completion()
        router.append(records, self.clock.monotonic() + wait_s, answer)
        return answer

    def append(self, router: SendRouter, *records: NewRecord) -> list[AppendResult]:
        return done(self.begin(router, *records))

    def stored(self, queue_id: int = 0) -> list[StoredRecord]:
        info = self.log.topic("orders")
        assert info is not None
        batch = done(self.log.read(QueueRef("orders", info.incarnation, queue_id), 0, 1_000, 1 << 20))
        return [batch.record(index) for index in range(len(batch.offsets))]

    def end(self, router: SendRouter) -> None:
        """End a process; others are granted its shards."""
        router.close()
        router._leave()

    def close(self) -> None:
        for router in self.routers:
            router.close()
        self.log.close()


def shard_of(record: NewRecord) -> int:
    assert record.system is not None
    return queue_of_identity(record.system[IDENTITY], record.topic)


def statuses(results: Sequence[AppendResult]) -> list[AppendStatus]:
    return [result.status for result in results]


STORED, UNKNOWN = [AppendStatus.STORED], [AppendStatus.UNKNOWN]
NOT_STORED, REFUSED = [AppendStatus.NOT_STORED], [AppendStatus.REFUSED]


def test_a_repeated_key_is_stored_once_whatever_its_queue() -> None:
    rig = SendsRig()
    router = rig.open()
    first = rig.key(b"1", b"ten")
    assert statuses(rig.append(router, rig.plain(), first)) == STORED * 2
    [result] = rig.append(router, rig.key(b"1", b"eleven", queue_id=1))
    assert result.first == FirstStored(first.message_id, 0, result.offset, True)
    assert [record.message_id for record in rig.stored()][-1] == first.message_id
    assert rig.stored(1) == []


def test_repeats_that_are_under_way_together_get_one_answer() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    rig.log.outcomes = ["held"]
    records = [rig.number(5) for _ in range(3)]
    begun = [rig.begin(router, records[0], records[1]), rig.begin(router, records[2])]
    rig.log.held.pop()()
    results = [result for call in begun for result in done(call)]
    assert [result.first is None for result in results] == [True, False, False]
    assert len(rig.stored()) == 1


def test_a_batch_keeps_its_order_in_a_queue() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    batch = [rig.key(b"%d" % number) for number in range(10)]
    mixed = [rig.key(b"k"), rig.plain(), rig.number(1), rig.plain(), rig.key(b"l")]
    calls_begun = [rig.begin(router, *batch), rig.begin(router, *mixed)]
    assert [statuses(done(call)) for call in calls_begun] == [STORED * 10, STORED * 5]
    ids = [record.message_id for record in rig.stored()]
    assert ids[:10] == [record.message_id for record in batch]
    assert [each for each in ids if each not in ids[:10]] == [record.message_id for record in mixed]


def test_without_numbers_only_keyed_sends_are_commits() -> None:
    rig = SendsRig()
    router = rig.open(numbers=False)
    rig.settle()
    assert not router.are_concerned([rig.plain(), rig.number(1)])
    assert router.are_concerned([rig.plain(), rig.key(b"k")])
    rig.log.outcomes.append("held")
    assert statuses(rig.append(router, rig.number(0), rig.number(1))) == STORED * 2
    mixed = [rig.number(2), rig.key(b"k"), rig.number(3), rig.plain(), rig.key(b"l"), rig.key(b"k")]
    call = rig.begin(router, *mixed)
    until(lambda: rig.log.held, "the first key is being committed")
    assert len(rig.stored()) == 3, "what comes before it in its queue is stored, what comes after it is not"
    rig.log.held.pop()()
    results = done(call)
    assert statuses(results) == STORED * 6
    assert [result.first is None for result in results] == [True] * 5 + [False]
    ids = [record.message_id for record in rig.stored()]
    assert ids[2:] == [record.message_id for record in mixed[:5]]


def test_a_forwarded_number_is_stored_once_whatever_the_owner_s_setting() -> None:
    rig = SendsRig()
    one, other = rig.open(), rig.open(numbers=False)
    rig.settle()
    sends = rig.of_every_shard()
    assert rig.owner_of(other), "some of them are forwarded"
    assert all(result.first is None for result in rig.append(one, *sends))
    assert all(result.first is not None for result in rig.append(one, *rig.of_every_shard()))


def test_what_arrives_during_a_commit_shares_the_next_one() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    rig.log.outcomes = ["held", "held"]
    begun = [rig.begin(router, rig.number(number)) for number in range(5)]
    assert len(rig.log.held) == 1
    rig.log.held.pop()()
    assert statuses(done(begun[0])) == STORED
    until(lambda: rig.log.held, "the next commit")
    router.lost([queue for queue, shard in router._owned.items() if shard.is_busy])
    rig.log.held.pop()()
    assert [statuses(done(call)) for call in begun[1:]] == [NOT_STORED] * 4
    assert len(rig.stored()) == 1


def test_a_stored_send_whose_answer_was_lost_is_recognised() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    rig.log.outcomes = ["unanswered"]
    first = rig.number(1)
    assert statuses(rig.append(router, first)) == UNKNOWN
    [result] = rig.append(router, rig.number(1, age_ms=50))
    assert result.first == FirstStored(first.message_id, 0, 0, False)
    assert len(rig.stored()) == 1


def test_a_send_that_was_lost_is_stored_when_it_is_sent_again() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    rig.log.outcomes = ["lost"]
    assert statuses(rig.append(router, rig.number(1))) == UNKNOWN
    [result] = rig.append(router, rig.number(1, age_ms=50))
    assert (result.status, result.first) == (AppendStatus.STORED, None)
    assert len(rig.stored()) == 1


def test_the_next_owner_knows_what_the_former_one_stored() -> None:
    rig = SendsRig()
    router = rig.open()
    sent = [rig.key(b"1"), rig.number(4, below=2)]
    rig.append(router, *sent)
    rig.end(router)
    results = rig.append(rig.open(), rig.key(b"1"), rig.number(4, below=2), rig.number(1))
    assert [result.first and result.first.message_id for result in results[:2]] == [
        record.message_id for record in sent
    ]
    assert isinstance(results[2].error, CallerError), "the producer has its answer"
    assert len(rig.stored()) == 2


def test_what_a_former_owner_still_has_is_not_stored() -> None:
    rig = SendsRig()
    former = rig.open()
    rig.settle()
    rig.log.outcomes = ["held"]
    late = rig.begin(former, rig.key(b"1"))
    until(lambda: rig.log.held, "it is being committed")
    current = rig.open()
    former._stopping = True
    former._leave()  # as a process that was declared dead
    assert statuses(rig.append(current, rig.key(b"1"))) == STORED
    rig.log.held.pop()()
    assert statuses(done(late)) == NOT_STORED
    assert isinstance(done(late)[0].error, TryLaterError), "its client may send again"
    assert len(rig.stored()) == 1


def test_a_send_is_passed_on_when_its_owner_lost_the_shard_before_the_commit() -> None:
    rig = SendsRig()
    owner, other = rig.open(), rig.open()
    rig.settle()
    record = next(each for each in rig.of_every_shard() if shard_of(each) in rig.owner_of(owner))
    rig.log.outcomes = ["held"]
    forwarded = rig.begin(other, record)
    until(lambda: rig.log.held, "its owner commits it")
    owner._stopping = True
    owner._leave()  # as a process that was declared dead
    rig.log.held.pop()()
    assert statuses(done(forwarded)) == STORED
    assert len(rig.stored()) == 1


def test_a_send_goes_to_the_owner_of_its_shard() -> None:
    rig = SendsRig()
    two = [rig.open(), rig.open()]
    rig.settle()
    assert all(rig.owner_of(router) for router in two)
    for router in two:
        results = rig.append(router, *rig.of_every_shard())
        assert statuses(results) == STORED * 20
        assert [result.first is None for result in results] == [router is two[0]] * 20
    assert len(rig.stored()) == 20


def test_repeats_at_two_processes_at_once_are_stored_once() -> None:
    rig = SendsRig()
    two = [rig.open(), rig.open()]
    begun = [rig.begin(router, *(rig.number(number) for number in range(10))) for router in two * 3]
    results = [result for call in begun for result in done(call)]
    assert sum(result.first is None for result in results) == 10
    assert len(rig.stored()) == 10


def test_an_owner_that_does_not_answer_leaves_the_outcome_open() -> None:
    rig = SendsRig()
    two = [rig.open(), rig.open()]
    rig.settle()
    rig.cut_off = {"process:0", "process:1"}
    results = rig.append(two[0], *rig.of_every_shard())
    assert set(statuses(results)) == {AppendStatus.STORED, AppendStatus.UNKNOWN}
    rig.cut_off = set()
    again = rig.append(two[1], *rig.of_every_shard())
    assert all(result.first is not None for result in again)
    assert len(rig.stored()) == 20


def test_a_send_waits_while_the_owner_takes_no_connection() -> None:
    rig = SendsRig()
    two = [rig.open(), rig.open()]
    rig.settle()
    rig.refused = {"process:0"}
    begun = [rig.begin(two[1], record) for record in rig.of_every_shard()]
    until(lambda: rig.stored(), "its own shards go on")
    rig.refused = set()
    assert [statuses(done(call)) for call in begun] == [STORED] * 20
    assert len(rig.stored()) == 20


def test_a_call_without_the_token_is_rejected() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    answer = router.take_peer_call(calls.encode_call("guessed", [rig.key(b"1")]), soon())
    [result] = calls.decode_results(done(answer))
    assert isinstance(result.error, calls.NotOwnerError)
    assert isinstance(router.take_peer_call(b"\xc1", soon()).error, CallerError)
    assert rig.stored() == []


def test_the_deadline_says_whether_a_send_may_be_stored() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    rig.log.outcomes = ["held"]
    late = rig.begin(router, rig.key(b"1"), wait_s=0.05)
    assert statuses(done(late)) == UNKNOWN
    rig.log.held.pop()()
    until(lambda: len(rig.stored()) == 1, "it is stored later")
    assert rig.append(router, rig.key(b"1"))[0].first is not None
    router._stopping = True
    router._leave()  # no process has the shards
    assert statuses(done(rig.begin(router, rig.key(b"2"), wait_s=0.05))) == NOT_STORED


def test_one_rejected_record_does_not_keep_others_from_being_stored() -> None:
    rig = SendsRig()
    router = rig.open()
    records = [rig.number(number) for number in range(3)]
    rig.log.rejected = {records[1].message_id}
    assert statuses(rig.append(router, *records)) == STORED + REFUSED + STORED
    assert len(rig.stored()) == 2
    rig.log.rejected = set()
    assert statuses(rig.append(router, rig.number(1))) == STORED
    rig.log.unavailable = {"orders"}
    assert statuses(rig.append(router, rig.number(9), rig.number(2))) == NOT_STORED + NOT_STORED


def test_a_resend_older_than_what_a_take_over_reads_is_rejected() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.append(router, rig.number(1), rig.key(b"1"))
    rig.end(router)
    rig.clock.now_ms += NUMBERS_MS + 60_000
    router = rig.open()
    older = rig.number(1, age_ms=NUMBERS_MS + 60_000)
    results = rig.append(router, older, rig.key(b"1"), rig.number(2))
    assert isinstance(results[0].error, CallerError)
    assert results[1].first is not None, "a key is known for an hour"
    assert statuses(results[2:]) == STORED
    assert len(rig.stored()) == 3


class OwnAnswer(Completion[list[AppendResult]]):
    """As the producer proxy's: it has its own `settled`, and calls no callbacks."""

    def settled(self) -> None:
        """Do nothing."""


def test_answered_sends_leave_the_bounds() -> None:
    rig = SendsRig()
    router = rig.open()
    for number in range(3):
        answer = OwnAnswer()
        router.append([rig.number(number)] * 400, soon(), answer)
        until(lambda answer=answer: answer.done, "it is answered")
        assert set(statuses(answer.value)) == {AppendStatus.STORED}, "a thousand may be under way"


def test_after_its_deadline_nothing_of_a_call_is_begun() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    rig.log.outcomes = ["held"]
    late = rig.begin(router, rig.key(b"1"), rig.plain(), rig.number(1), wait_s=0.05)
    assert statuses(done(late)) == UNKNOWN + NOT_STORED * 2
    rig.log.held.pop()()
    assert statuses(rig.append(router, rig.plain())) == STORED
    assert len(rig.stored()) == 2


def test_closing_answers_everything() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.settle()
    rig.log.outcomes = ["held"]
    begun = rig.begin(router, rig.key(b"1"))
    until(lambda: rig.log.held, "it is being committed")
    drained: list[bool] = []
    router.when_answered(lambda: drained.append(True))
    assert not drained
    router.close()
    assert begun.done
    assert statuses(begun.value) == UNKNOWN


@pytest.mark.parametrize("seed", range(4))
def test_a_random_history_stores_each_message_once(seed: int) -> None:
    """Two processes of which one is killed now and then, lost outcomes, broken connections, and resends."""
    random, rig = Random(seed), SendsRig()
    alive = [rig.open(), rig.open()]
    started_at: dict[int, float] = {}
    answered: set[int] = set()

    def resend(number: int) -> None:
        age_ms = round((rig.clock.monotonic() - started_at[number]) * 1000)
        router = random.choice(alive)
        [result] = rig.append(router, rig.number(number, below=0, age_ms=age_ms))
        assert result.status is not AppendStatus.REFUSED, result
        if result.status is AppendStatus.STORED:
            answered.add(number)

    for step in range(60):
        rig.log.outcomes = [random.choice(["", "", "lost", "unanswered"]) for _ in range(2)]
        rig.cut_off = {"process:0", "process:1", "process:2"} if random.random() < 0.1 else set()
        if step % 15 == 14:
            victim = alive.pop(random.randrange(len(alive)))
            rig.end(victim)
            alive.append(rig.open())
        open_numbers = sorted(started_at.keys() - answered)
        if open_numbers and random.random() < 0.5:
            resend(random.choice(open_numbers))
            continue
        started_at[step] = rig.clock.monotonic()
        [result] = rig.append(random.choice(alive), rig.number(step, below=0))
        if result.status is AppendStatus.STORED:
            answered.add(step)
    rig.log.outcomes, rig.cut_off = [], set()
    for number in sorted(started_at.keys() - answered):
        resend(number)
    assert answered == started_at.keys()
    bodies = [record.delivery for record in rig.stored()]
    assert len(bodies) == len(set(bodies)) == len(started_at)


def test_a_wall_clock_that_is_ahead_hides_no_entry() -> None:
    rig = SendsRig()
    router = rig.open()
    rig.append(router, rig.key(b"1"), rig.number(1))
    rig.end(router)
    next_router = rig.open()
    rig.settle()
    rig.clock.now_ms += 24 * 3_600_000
    results = rig.append(next_router, rig.key(b"1"), rig.number(1, age_ms=20))
    assert all(result.first is not None for result in results)
