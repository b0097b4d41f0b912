"""Producers with a librdkafka that gives up on a producer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from backend.kafka.clients import producers as module
from backend.kafka.clients import transactions
from backend.kafka.clients.producers import Producers
from backend.kafka.clients.transactions import LANES_MAX
from backend.kafka.clients.writing import OutcomeKind, WriteOutcome
from backend.kafka.options import KafkaOptions
from backend.kafka.records import ProducerRecord
from backend.kafka.targets import NO_LEADER, UNREACHABLE
from ddmq_common.errors import CallerError, TryLaterError, UnknownTopicError
from tests.support.constants import build_options
from tests.support.ports import port_of, reserved
from tests.support.waits import until

TIMEOUT_MS = 50
FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "no such sequence", True)
UNKNOWN_TOPIC = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
PURGED = KafkaError(-152)  # as librdkafka numbers it: purged in its line
LOST_BROKER = 4
FENCED = KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "by a newer instance", True)


class FakeProducer:
    """Delivers at `poll`; one that is `dead` fails what it has, and refuses more."""

    created: list[FakeProducer]
    brokers: Mapping[int, Any] = {}  # of the metadata

    def __init__(self, config: dict[str, Any]) -> None:
        self.waiting: list[Callable[..., object]] = []
        self.values: list[bytes] = []
        self.errors: list[KafkaError] = []  # of the next that are delivered
        self.dead = self.silent = False
        self.commit_error: KafkaError | None = None
        self.failing_aborts = 0
        self.config = config
        self.created.append(self)

    def produce(
        self, topic: str, value: bytes, on_delivery: Callable[..., object] = lambda *_: None, **_: Any
    ) -> None:
        if self.dead:
            raise KafkaException(FATAL)
        self.values.append(value)
        self.waiting.append(on_delivery)

    def poll(self, timeout: float) -> None:
        if self.silent:
            return
        waiting, self.waiting = self.waiting, []
        for report in waiting:
            report(FATAL if self.dead else self.errors.pop(0) if self.errors else None, self)

    def __len__(self) -> int:
        return len(self.waiting)

    def list_topics(self, topic: str, timeout: float) -> Any:
        error = UNKNOWN_TOPIC if topic == "gone" else None
        leader = {"leaderless": -1, "lost": LOST_BROKER}.get(topic, 1)
        partition = SimpleNamespace(leader=leader, isrs=[abs(leader)], replicas=[abs(leader)])
        return SimpleNamespace(
            topics={topic: SimpleNamespace(error=error, partitions={0: partition})}, brokers=self.brokers
        )

    def offset(self) -> int:
        return 7

    def purge(self) -> None:
        self.dead, self.silent = True, False

    def flush(self, timeout: float) -> int:
        if self.dead and self.is_transactional:
            raise SystemError(
                "<method 'append'> returned a result with an exception set"
            ) from KafkaException(FENCED)
        self.poll(0)
        return len(self.waiting)

    @property
    def is_transactional(self) -> bool:
        return "transactional.id" in self.config

    def init_transactions(self, timeout: float) -> None:
        pass

    def begin_transaction(self) -> None:
        pass

    def commit_transaction(self, timeout: float) -> None:
        if self.commit_error is not None:
            raise KafkaException(self.commit_error)

    def abort_transaction(self, timeout: float) -> None:
        if self.failing_aborts:
            self.failing_aborts -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self.waiting.clear()


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(FakeProducer, "created", [], raising=False)
    monkeypatch.setattr(module, "Producer", FakeProducer)
    return []


@pytest.fixture
def producers(failed: list[object]) -> Any:
    created = Producers(
        build_options(KafkaOptions, transaction_timeout_ms=TIMEOUT_MS),
        lambda function, *args: function(*args),
        lambda tag, reason: failed.append(tag),
    )
    yield created
    assert created.close(5)


def test_after_an_event_that_is_refused_for_good_there_is_another_one(
    producers: Producers, failed: list[object]
) -> None:
    FakeProducer.created[0].dead = True
    producers.write_event("coordination", b"beat", "name")
    assert failed == ["name"]
    until(lambda: len(FakeProducer.created) == 2, "another one")
    until(lambda: not producers._broken)
    producers.write_event("coordination", b"beat", "other")
    assert FakeProducer.created[1].values == [b"beat"]
    assert failed == ["name"]


def test_progress_that_is_refused_for_good_is_unknown_and_the_next_is_written(producers: Producers) -> None:
    FakeProducer.created[0].dead = True
    outcomes: list[WriteOutcome] = []
    for _ in range(2):
        producers.write_plain([ProducerRecord("progress", 0, b"k", b"v")], outcomes.append)
    until(lambda: len(outcomes) == 2)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNCERTAIN, OutcomeKind.STORED]
    assert outcomes[1].offsets == [7]


def renamed(producers: Producers, name: str) -> FakeProducer:
    """The transactional producer under a new name."""
    outcomes: list[WriteOutcome] = []
    producers.take_new_id(name, outcomes.append)
    until(lambda: outcomes, "renamed")
    assert outcomes[0].error is None
    return next(
        each for each in FakeProducer.created if str(each.config.get("transactional.id", "")).endswith(name)
    )


def plain() -> list[FakeProducer]:
    return [each for each in FakeProducer.created if not each.is_transactional]


def test_the_plain_producer_gives_no_single_record_up(producers: Producers) -> None:
    assert plain()[0].config["message.timeout.ms"] == 0
    assert renamed(producers, "one").config["message.timeout.ms"] == TIMEOUT_MS, "that aborts, and no more"


def test_progress_without_an_answer_is_uncertain_and_records_in_flight_are_dropped(
    producers: Producers, failed: list[object]
) -> None:
    plain()[0].silent = True
    producers.write_event("coordination", b"release", "name")
    outcomes: list[WriteOutcome] = []
    for _ in range(2):
        producers.write_plain([ProducerRecord("progress", 0, b"k", b"v")], outcomes.append)
    until(lambda: len(outcomes) == 2)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNCERTAIN, OutcomeKind.STORED]
    assert failed == ["name"], "whoever wrote the event hears that it may not be there"
    assert plain()[1].values == [b"v"], "nothing is sent again by itself"


def test_a_new_name_takes_over_no_event_that_is_on_its_way(
    producers: Producers, failed: list[object]
) -> None:
    renamed(producers, "one")
    renamed(producers, "first")
    assert len(plain()) == 1, "nothing was on its way"
    plain()[0].silent = True
    producers.write_event("coordination", b"release", "one")
    renamed(producers, "two")
    assert len(plain()) == 2
    assert failed == ["one"], "what was on its way under the old name is over"


def test_a_report_behind_a_fatal_error_tells_of_that_error(producers: Producers) -> None:
    renamed(producers, "one").dead = True
    outcomes: list[WriteOutcome] = []
    producers.write_transaction([], False, 1.0, outcomes.append)
    until(lambda: outcomes)
    assert outcomes[0].kind is OutcomeKind.FENCED


def transacted(producers: Producers, *topics: str) -> WriteOutcome:
    outcomes: list[WriteOutcome] = []
    producers.write_transaction(
        [ProducerRecord(topic, 0, b"k", b"v") for topic in topics], False, 1.0, outcomes.append
    )
    until(lambda: outcomes)
    return outcomes[0]


def test_a_transaction_does_not_wait_for_a_deleted_topic(producers: Producers) -> None:
    """librdkafka waits until the transaction is over, and everything of the process with it."""
    renamed(producers, "one").silent = True
    outcome = transacted(producers, "there", "gone")
    assert (outcome.kind, type(outcome.error)) == (OutcomeKind.REFUSED, UnknownTopicError)


def test_a_record_that_no_broker_accepts_is_distinguished_from_its_batch(producers: Producers) -> None:
    renamed(producers, "one").errors = [PURGED, KafkaError(KafkaError.INVALID_RECORD)]
    outcome = transacted(producers, "other", "compacted")
    assert (outcome.kind, type(outcome.error)) == (OutcomeKind.REFUSED, CallerError)


# --- partitions that take nothing


def test_a_transaction_does_not_wait_for_a_partition_without_a_leader(producers: Producers) -> None:
    renamed(producers, "one").silent = True
    outcome = transacted(producers, "there", "leaderless")
    assert (outcome.kind, type(outcome.error)) == (OutcomeKind.REFUSED, TryLaterError)
    assert outcome.blocked == {"leaderless": NO_LEADER}


def test_a_transaction_does_not_wait_for_a_broker_that_is_lost_before_the_cluster_knows_it(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserved() as closed:
        address = SimpleNamespace(host="127.0.0.1", port=port_of(closed))
        monkeypatch.setattr(FakeProducer, "brokers", {LOST_BROKER: address})
        renamed(producers, "one").silent = True
        outcome = transacted(producers, "there", "lost")
    assert (outcome.kind, type(outcome.error)) == (OutcomeKind.REFUSED, TryLaterError)
    assert outcome.blocked == {"lost": UNREACHABLE}


def test_an_id_whose_last_transaction_cannot_end_is_not_waited_for(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit was answered, but a partition has no marker of it, and so it can begin nothing."""
    producers.use_lanes(1)
    first = renamed(producers, "one")
    assert transacted(producers, "there", "lost").kind is OutcomeKind.STORED
    first.silent = True
    with reserved() as closed:
        address = SimpleNamespace(host="127.0.0.1", port=port_of(closed))
        monkeypatch.setattr(FakeProducer, "brokers", {LOST_BROKER: address})
        outcome = transacted(producers, "there")
    assert outcome.kind is OutcomeKind.REFUSED
    assert outcome.blocked == {"lost": UNREACHABLE}, "so that the others are sent again, by another id"
    assert producers.free_ids == 0


def test_a_broker_that_accepts_connections_is_waited_for(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as server:
        address = SimpleNamespace(host="127.0.0.1", port=server.getsockname()[1])
        monkeypatch.setattr(FakeProducer, "brokers", {LOST_BROKER: address})
        renamed(producers, "one").silent = True
        outcome = transacted(producers, "there", "lost")
    assert (outcome.kind, outcome.blocked) == (OutcomeKind.REFUSED, {})


def test_where_nothing_was_answered_no_topic_is_blamed(producers: Producers) -> None:
    """It may be the coordinator of the transactions."""
    renamed(producers, "one").silent = True
    outcome = transacted(producers, "there", "other")
    assert (outcome.kind, outcome.blocked) == (OutcomeKind.REFUSED, {})


def test_an_id_whose_transaction_does_not_end_is_retired_until_the_name_changes(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "RETIRE_S", 0.0)
    first = renamed(producers, "one")
    first.silent = True
    transacted(producers, "there", "leaderless")
    until(lambda: producers.retired == {0}, "it is given up")
    assert producers.free_ids == LANES_MAX - 1
    assert producers.lanes[0].producer is None, "nothing can use it any more"
    created = len(FakeProducer.created)
    for _ in range(LANES_MAX):
        assert transacted(producers, "there").kind is OutcomeKind.STORED
    assert len(FakeProducer.created) == created, "no id is taken over again: that would undo a fence"
    renamed(producers, "two")
    assert producers.retired == set()
    until(lambda: producers.free_ids == LANES_MAX, "the new ids are all there")
    ids = [each.config.get("transactional.id") for each in FakeProducer.created[created:]]
    assert not any("one" in str(each) for each in ids), "the outcomes of all old transactions are known"


def test_an_id_whose_last_transaction_may_be_committed_is_taken_over_before_the_name_changes(
    producers: Producers,
) -> None:
    renamed(producers, "one").commit_error = KafkaError(KafkaError._FAIL)
    assert transacted(producers, "there").kind is OutcomeKind.UNCERTAIN
    created = len(FakeProducer.created)
    renamed(producers, "two")
    ids = [each.config.get("transactional.id") for each in FakeProducer.created[created:]]
    assert [each for each in ids if "one" in str(each)] == ["ddmq.m.one"]


def test_a_transaction_that_cannot_be_aborted_costs_its_id_and_not_the_name(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced: list[str] = []
    monkeypatch.setattr(module, "fence_names", lambda client, names: fenced.extend(names))
    first = renamed(producers, "one")
    first.silent, first.failing_aborts = True, 1
    outcome = transacted(producers, "there", "leaderless")
    assert (outcome.kind, outcome.blocked) == (OutcomeKind.REFUSED, {"leaderless": NO_LEADER})
    until(lambda: fenced == ["ddmq.m.one"], "so that the coordinator aborts it")
    assert producers.retired == {0}
    assert producers.lanes[0].producer is None, "nothing is written with the id any more"


def test_an_id_that_can_begin_a_transaction_is_reused(producers: Producers) -> None:
    first = renamed(producers, "one")
    first.silent = True
    transacted(producers, "there", "leaderless")
    assert producers.free_ids == LANES_MAX - 1
    first.silent = False
    until(lambda: producers.free_ids == LANES_MAX, "it is free again")
    assert producers.retired == set()


# --- records that state the offsets of others


def late_of(producers: Producers, late: Any) -> WriteOutcome:
    outcomes: list[WriteOutcome] = []
    records = [ProducerRecord(topic, 0, None, b"first") for topic in ("one", "two")]
    producers.write_transaction(records, False, 1.0, outcomes.append, late=late)
    until(lambda: outcomes)
    return outcomes[0]


def test_a_record_that_states_offsets_is_in_the_same_transaction(producers: Producers) -> None:
    producer = renamed(producers, "one")
    outcome = late_of(producers, lambda offsets: [ProducerRecord("log", 0, None, repr(offsets).encode())])
    assert (outcome.kind, outcome.offsets) == (OutcomeKind.STORED, [7, 7, 7])
    assert producer.values == [b"first", b"first", b"[7, 7]"]


def test_where_it_is_refused_nothing_is_stored(producers: Producers) -> None:
    producer = renamed(producers, "one")

    def late(offsets: Any) -> list[ProducerRecord]:
        producer.errors = [KafkaError(KafkaError.INVALID_RECORD)]
        return [ProducerRecord("log", 0, None, b"")]

    outcome = late_of(producers, late)
    assert (outcome.kind, type(outcome.error)) == (OutcomeKind.REFUSED, CallerError)
    assert late_of(producers, None).offsets == [7, 7]
