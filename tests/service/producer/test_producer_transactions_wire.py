"""Transactions over loopback, seen by Apache's own Thrift library in both protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.records import TopicInfo
from ddmq_common.delivery import decode
from ddmq_common.names import TRANSACTION_DEAD_TOPIC
from proxy_producer.config import TransactionLimits
from tests.interop.apache_client import (
    EndTransactionRequest,
    EndTransactionResponse,
    Message,
    PollChecksRequest,
    PrepareRequest,
)
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer
from tests.support.transaction_calls import COMMIT, ROLLBACK, new_id
from tests.support.waits import until


@pytest.fixture(scope="module")
def server() -> Iterator[ProducerServer]:
    limits = TransactionLimits(shards=2, check_after_ms=1, check_interval_ms=1, checks_max=2)
    server = ProducerServer((TopicInfo("orders", 0, 4),), transactions=limits)
    yield server
    server.stop()


def prepared(client: Client, transaction: str, group: str, *texts: bytes) -> int:
    messages = [Message(topic="orders", key="k", tags="t", body=text, partitionId=1) for text in texts]
    request = PrepareRequest(
        transactionId=transaction, producerGroup=group, messages=messages, checkAfterMs=60_000
    )
    answer = client.call("sendPrepared", request=request)
    assert (answer.code, len(answer.results)) == (0, len(texts)), answer
    through: int = answer.throughOffset
    return through


def end_transaction(client: Client, transaction: str, group: str, **fields: int) -> EndTransactionResponse:
    def try_end() -> EndTransactionResponse | None:
        request = EndTransactionRequest(
            transactionId=transaction, producerGroup=group, clientId="c", **fields
        )
        answer: EndTransactionResponse = client.call("endTransaction", request=request)
        return None if answer.code == 15 else answer

    return until(try_end, "the transaction is ended")  # type: ignore[return-value]


def stored(server: ProducerServer, beginning: bytes) -> list[bytes]:
    bodies = [decode(bytes(record.delivery)).value for record in server.stored("orders")]
    return [body for body in bodies if body.startswith(beginning)]


def test_prepared_and_committed(server: ProducerServer, client: Client) -> None:
    transaction = new_id()
    own = transaction.encode()
    through = prepared(client, transaction, "bank", own + b"1", own + b"2")
    assert stored(server, own) == []
    answer = end_transaction(client, transaction, "bank", action=COMMIT, throughOffset=through)
    assert (answer.code, answer.outcome) == (0, 1)
    assert [result.queueId for result in answer.results] == [1, 1]
    assert answer.results[1].offset == answer.results[0].offset + 1
    assert stored(server, own) == [own + b"1", own + b"2"]
    assert end_transaction(client, transaction, "bank", action=ROLLBACK).set_fields().keys() == {
        "code",
        "msg",
        "outcome",
    }


def test_rolled_back(server: ProducerServer, client: Client) -> None:
    transaction = new_id()
    prepared(client, transaction, "bank", transaction.encode())
    assert end_transaction(client, transaction, "bank", action=ROLLBACK).outcome == 2
    assert stored(server, transaction.encode()) == []


@pytest.mark.slow
def test_an_undecided_transaction_is_checked_and_becomes_a_dead_letter(
    server: ProducerServer, client: Client
) -> None:
    transaction, group = new_id(), f"silent-{new_id()}"
    own = transaction.encode()
    request = PrepareRequest(
        transactionId=transaction,
        producerGroup=group,
        messages=[Message(topic="orders", body=own, properties={"p": "v"})],
    )
    assert client.call("sendPrepared", request=request).code == 0
    numbers: list[int] = []

    def polled() -> bool:
        request = PollChecksRequest(producerGroup=group, clientId="c", countMax=5, timeout=100)
        for check in client.call("pollTransactionChecks", request=request).checks:
            assert check.transactionId == transaction
            assert check.messages[0].properties == {"p": "v"}
            numbers.append(check.check)
        return len(numbers) >= 2

    until(polled, "both checks came")
    assert numbers == [1, 2]
    until(
        lambda: any(
            transaction.encode() in bytes(one.delivery) for one in server.stored(TRANSACTION_DEAD_TOPIC)
        )
    )
    assert end_transaction(client, transaction, group, action=COMMIT).outcome == 5
