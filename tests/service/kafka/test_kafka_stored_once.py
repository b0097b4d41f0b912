"""Sends that are stored once, on a real broker: at any process, after kills, and in Kafka's own eyes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from backend.completion import Completion
from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.options import KafkaOptions, StoreOnce
from backend.kafka.sends.window import QUEUES
from backend.records import AppendResult, AppendStatus, NewRecord, TopicInfo
from backend.testing.engine_contract import once
from backend.testing.kit import Kit
from ddmq_client import OutgoingMessage, Producer
from ddmq_client.errors import ClientError
from ddmq_common.delivery import encode as encode_delivery
from ddmq_common.names import SENDS_GROUP, SENDS_TOPIC
from ddmq_common.send_identity import IDENTITY, key_identity, sequence_identity
from tests.contract.contract_kafka import KafkaEngine
from tests.service.kafka.cluster_kit import KafkaServer, Tools
from tests.service.kafka.process_kit import options
from tests.support.kafka import broker
from tests.support.rig import Rig
from tests.support.waits import done, soon, until

PRODUCER = b"\x05" * 16
IDS = count(1)


KEYED_CASES = (
    once.test_a_key_is_stored_once,
    once.test_another_body_is_reported,
    once.test_a_key_belongs_to_its_topic,
    once.test_the_identity_of_a_rejected_record_is_not_recorded,
    once.test_a_clock_that_is_set_forward_makes_nothing_older,
)


class DefaultEngine(KafkaEngine):
    """The engine of the contract with the default of `store_once`."""

    store_once: ClassVar[StoreOnce] = KafkaOptions().store_once


class Engines(Rig):
    """Engines of one installation on one hub, which call each other directly."""

    def __init__(self) -> None:
        super().__init__()
        self.options: KafkaOptions = options(store_once=StoreOnce.ALL)
        self.open_engines: list[KafkaBackend] = []
        self.addresses: dict[str, KafkaBackend] = {}

    def open(self) -> KafkaBackend:
        engine = KafkaBackend(self.options)
        until(lambda: engine.health().ready, lambda: engine.health().reason)
        address = f"engine:{len(self.addresses)}"
        self.addresses[address] = engine
        self.open_engines.append(engine)
        engine.serve_peers(address, self._call_peer)
        return engine

    def _call_peer(self, address: str, data: bytes, deadline: float) -> Completion[bytes]:
        return self.addresses[address].take_peer_call(data, deadline)

    def kill(self, engine: KafkaBackend) -> None:
        self.open_engines.remove(engine)
        engine.close()

    def settle(self) -> None:
        """Wait until each engine owns shards, and each shard has an owner."""

        def is_settled() -> bool:
            holders = done(self.open_engines[0].holders(SENDS_GROUP, SENDS_TOPIC, soon()))
            owners = {address.partition("/")[0] for address in holders.values()}
            return len(holders) == QUEUES and len(owners) == len(self.open_engines)

        until(is_settled, "all shards have owners")

    def stored(self, engine: KafkaBackend, queue_id: int = 0) -> list[bytes]:
        tools = Tools(self.options.bootstrap)
        return [message.value() for message in tools.read(f"{self.options.topic_prefix}orders", queue_id)]

    def close(self) -> None:
        for engine in self.open_engines:
            engine.close()


@pytest.fixture
def engines() -> Iterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


def record(identity: str, body: bytes, queue_id: int = 0) -> NewRecord:
    delivery = encode_delivery(b"", body, b"", None)
    return NewRecord("orders", queue_id, next(IDS).to_bytes(16), 0, delivery, system={IDENTITY: identity})


def key(number: int) -> NewRecord:
    return record(key_identity(b"orders", b"%d" % number, b"body"), b"key %d" % number)


def numbered(number: int, age_ms: int | None = None) -> NewRecord:
    return record(sequence_identity(PRODUCER, number, 0, age_ms), b"number %d" % number)


def append(engine: KafkaBackend, *records: NewRecord) -> list[AppendResult]:
    return done(engine.append(records, soon()))


def test_two_processes_store_each_send_once(engines: Engines) -> None:
    two = [engines.open(), engines.open()]
    done(two[0].put_topic(TopicInfo("orders", 0, 1), soon()))
    until(lambda: two[1].topic("orders"), "the topic is seen")
    engines.settle()
    calls = [engine.append([*map(key, range(50)), *map(numbered, range(50))], soon()) for engine in two * 2]
    results = [result for call in calls for result in done(call)]
    assert {result.status for result in results} == {AppendStatus.STORED}
    assert sum(result.first is None for result in results) == 100
    stored = engines.stored(two[0])
    assert len(stored) == len(set(stored)) == 100
    first = {result.first.offset for result in results if result.first is not None}
    assert first == {result.offset for result in results if result.first is None}


def test_an_owner_looks_for_a_topic_that_another_process_has_just_created(engines: Engines) -> None:
    engines.options = options(topics_poll_ms=60_000)
    two = [engines.open(), engines.open()]
    engines.settle()
    for number in range(4):
        names = [f"fresh-{number}-{shard}" for shard in range(4)]
        for name in names:
            done(two[0].put_topic(TopicInfo(name, 0, 1), soon()))
        sends = [key(number) for _ in names]
        for send, name in zip(sends, names, strict=True):
            send.topic = name
        assert {result.status for result in append(two[0], *sends)} == {AppendStatus.STORED}


def test_the_next_owner_reads_the_entries(engines: Engines) -> None:
    former = engines.open()
    done(former.put_topic(TopicInfo("orders", 0, 1), soon()))
    before = append(former, *map(key, range(20)), *map(numbered, range(20)))
    next_owner = engines.open()
    engines.settle()
    engines.kill(former)
    again = append(next_owner, *map(key, range(21)), *(numbered(number, 10) for number in range(21)))
    assert [result.first and result.first.offset for result in again[:20]] == [
        result.offset for result in before[:20]
    ]
    assert sum(result.first is None for result in again) == 2
    assert len(engines.stored(next_owner)) == 42


def test_by_default_keyed_sends_alone_are_stored_once(engines: Engines) -> None:
    engines.options = options()
    two = [engines.open(), engines.open()]
    assert [(each.capabilities.idempotent, each.recognises_numbers) for each in two] == [(True, False)] * 2
    done(two[0].put_topic(TopicInfo("orders", 0, 1), soon()))
    until(lambda: two[1].topic("orders"), "the topic is seen")
    engines.settle()
    batches = [[numbered(0), *map(key, range(3)), numbered(1), key(3)] for _ in range(2)]
    first, second = (append(engine, *batch) for engine, batch in zip(two, batches, strict=True))
    assert {result.status for result in first + second} == {AppendStatus.STORED}
    assert [result.first is None for result in first] == [True] * 6
    assert [result.first is None for result in second] == [True, False, False, False, True, False]
    assert [result.offset for result in second if result.first] == [
        first[index].offset for index in (1, 2, 3, 5)
    ]
    offsets = [result.offset for result in first]
    assert offsets == sorted(offsets), "a batch keeps its order in a queue"
    assert len(engines.stored(two[0])) == 8, "six, and the two numbered ones again"


@pytest.mark.parametrize("case", KEYED_CASES)
def test_keyed_cases_of_the_contract_hold_by_default(case: Callable[[Kit], None], tmp_path: Path) -> None:
    engine = DefaultEngine(tmp_path)
    try:
        case(Kit(engine))
    finally:
        engine.close()


def test_store_once_none_recognises_nothing(engines: Engines) -> None:
    engines.options = options(store_once=StoreOnce.NONE)
    engine = engines.open()
    assert engine.capabilities.idempotent is False
    done(engine.put_topic(TopicInfo("orders", 0, 1), soon()))
    results = [*append(engine, key(1)), *append(engine, key(1))]
    assert [result.first for result in results] == [None, None]
    assert engine.topic(SENDS_TOPIC) is None
    assert len(engines.stored(engine)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "suspended"])
def test_numbered_sends_are_stored_once_whatever_happens_to_servers(tmp_path: Path, way: str) -> None:
    """Two servers, of which one is killed with -9 or suspended in each round, while four threads send."""
    name = options().namespace
    terms: dict[str, Any] = {"namespace": name, "topic_prefix": f"{name}.", "store_once": "all"}
    servers = [KafkaServer(tmp_path / f"{number}", broker(), **terms) for number in range(2)]
    for server in servers:
        server.start()
    confirmed: set[bytes] = set()
    uncertain: set[bytes] = set()
    stop = threading.Event()
    proxies = [f"127.0.0.1:{server.ports['producer']}" for server in servers]

    def send(thread: int) -> None:
        with Producer(proxies, timeout_ms=15_000) as producer:
            for number in count():
                if stop.is_set():
                    return
                body = b"%d/%d" % (thread, number)
                try:
                    producer.send("orders", body)
                    confirmed.add(body)
                except ClientError:
                    uncertain.add(body)

    try:
        with Producer(proxies) as producer:
            until(lambda: producer.send_batch([OutgoingMessage("orders", b"first")])[0].error is None)
        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for round_number in range(4):
            goal = len(confirmed) + 100
            until(lambda goal=goal: len(confirmed) >= goal, "they go on", 60)
            victim = servers[round_number % 2]
            victim.kill() if way == "killed" else os.killpg(victim.pid, signal.SIGSTOP)
            goal = len(confirmed) + 100
            until(lambda goal=goal: len(confirmed) >= goal, "the other one takes over", 60)
            victim.start() if way == "killed" else os.killpg(victim.pid, signal.SIGCONT)
        stop.set()
        for thread in threads:
            thread.join(60)
        tools = Tools(broker())
        stored = [
            message.value()
            for queue_id in range(tools.count(f"{name}.orders"))
            for message in tools.read(f"{name}.orders", queue_id)
            if message.value() != b"first"
        ]
    finally:
        stop.set()
        for server in servers:
            server.end()
    assert len(stored) == len(set(stored)), "each is stored once"
    assert confirmed <= set(stored) <= confirmed | uncertain


def test_a_key_is_known_at_every_server(tmp_path: Path) -> None:
    name = options().namespace
    terms: dict[str, Any] = {"namespace": name, "topic_prefix": f"{name}."}
    servers = [KafkaServer(tmp_path / f"{number}", broker(), **terms) for number in range(2)]
    try:
        for server in servers:
            server.start()
        producers = [server.producer(timeout_ms=10_000) for server in servers]
        results = [
            producer.send("orders", b"body", idempotency_key=f"k{number}")
            for number in range(10)
            for producer in producers
        ]
        assert [result.duplicate for result in results] == [False, True] * 10
        numbered = producers[0].send("orders", b"numbered")
        assert numbered.duplicate_code is None, "by default, numbers are ignored, and the client knows it"
        assert [result.offset for result in results[::2]] == [result.offset for result in results[1::2]]
        servers[0].kill()
        again = [producers[1].send("orders", b"body", idempotency_key=f"k{number}") for number in range(10)]
        assert all(result.duplicate for result in again)
        for producer in producers:
            producer.close()
    finally:
        for server in servers:
            server.end()
