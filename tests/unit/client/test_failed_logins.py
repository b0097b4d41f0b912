"""A login that fails is final for its call: the error says so, and it is not taken for a server that is
down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import (
    Consumer,
    Decision,
    FetchConsumer,
    LoginError,
    NotStoredError,
    OutgoingMessage,
    Producer,
    PullError,
    RangeReader,
    UndecidedTransaction,
)
from ddmq_client.aio import AsyncConsumer, AsyncFetchConsumer, AsyncProducer
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.idl.codes import Code
from ddmq_client.testing import TestBroker
from ddmq_client.wire.login import find_login_failure
from tests.support.one_answer import answering, login_answer
from tests.support.waits import until

REJECTED = login_answer(Code.TOPIC_REFUSED, b"the token was revoked")
MESSAGE = OutgoingMessage("orders", b"one espresso")
PATIENCE_MS = 600_000  # none of it is used


def send(proxies: str, **login: Any) -> None:
    with Producer(proxies, timeout_ms=PATIENCE_MS, **login) as producer:
        producer.send_message(MESSAGE)


def send_batch(proxies: str, **login: Any) -> None:
    with Producer(proxies, timeout_ms=PATIENCE_MS, **login) as producer:
        (result,) = producer.send_batch([MESSAGE])
        result.raise_for_error()


def send_oneway(proxies: str, **login: Any) -> None:
    with Producer(proxies, timeout_ms=PATIENCE_MS, **login) as producer:
        producer.send_oneway(MESSAGE)


def send_by_asyncio(proxies: str, **login: Any) -> None:
    async def work() -> None:
        async with AsyncProducer(proxies, timeout_ms=PATIENCE_MS, **login) as producer:
            await producer.send_message(MESSAGE)

    asyncio.run(work())


def pull(proxies: str, **login: Any) -> None:
    with Consumer(proxies, "billing", "orders", **login) as consumer:
        consumer.pull(timeout_ms=500)


def run(proxies: str, **login: Any) -> None:
    Consumer(proxies, "billing", "orders", handler=print, **login).run()


def run_broadcasting(proxies: str, **login: Any) -> None:
    Consumer(proxies, "billing", "orders", handler=print, model="broadcasting", **login).run()


def run_by_asyncio(proxies: str, **login: Any) -> None:
    async def handle(message: object) -> None: ...

    asyncio.run(AsyncConsumer(proxies, "billing", "orders", handler=handle, **login).run())


def fetch(proxies: str, **login: Any) -> None:
    with FetchConsumer(proxies, "billing", timeout_ms=PATIENCE_MS, **login) as consumer:
        consumer.fetch()


def fetch_by_asyncio(proxies: str, **login: Any) -> None:
    async def work() -> None:
        async with AsyncFetchConsumer(proxies, "billing", timeout_ms=PATIENCE_MS, **login) as consumer:
            await consumer.fetch()

    asyncio.run(work())


def read_ranges(proxies: str, **login: Any) -> None:
    with RangeReader(proxies, "archive", "orders", timeout_ms=PATIENCE_MS, **login) as reader:
        reader.bounds()


SENDS = (send, send_batch, send_oneway, send_by_asyncio)
CALLS = (*SENDS, pull, run, run_broadcasting, run_by_asyncio, fetch, fetch_by_asyncio, read_ranges)


@pytest.mark.parametrize("call", CALLS)
def test_a_rejected_login_is_an_error_at_once(call: Callable[..., None]) -> None:
    started = time.monotonic()
    with answering(REJECTED) as server, pytest.raises(LoginError, match="the token was revoked") as caught:
        call(server.address, token="old")
    assert "login was rejected" in str(caught.value)
    assert caught.value.proxy == server.address
    assert isinstance(caught.value, NotStoredError)
    assert isinstance(caught.value, PullError)
    assert time.monotonic() - started < 60
    assert call not in SENDS or server.connections == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_token_that_cannot_be_read_is_an_error_at_once(call: Callable[..., None], tmp_path: Path) -> None:
    with answering(REJECTED) as server, pytest.raises(LoginError, match=r"the token in .* cannot be read"):
        call(server.address, token_file=tmp_path / "none")
    assert server.connections == 0


@pytest.mark.parametrize("call", [send, send_by_asyncio])
def test_a_token_that_others_could_read_is_an_error_at_once(
    call: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IPv4Address, "is_loopback", False)
    with answering(REJECTED) as server, pytest.raises(LoginError, match="not sent in plain text"):
        call(server.address, token="secret")


@pytest.mark.parametrize("call", SENDS)
def test_another_proxy_may_accept_the_login(call: Callable[..., None]) -> None:
    with TestBroker() as broker, answering(REJECTED) as server:
        for _ in range(4):
            call(f"{server},{broker.producers}", token="new")
        assert len(broker.messages("orders")) == 4


def test_a_login_above_a_quota_is_tried_again() -> None:
    busy = login_answer(Code.BUSY, b"too many connections")
    with answering(busy) as server, Producer(server.address, attempts_max=3, token="mine") as producer:
        with pytest.raises(NotStoredError, match="too many connections") as caught:
            producer.send_message(MESSAGE, timeout_ms=PATIENCE_MS)
        assert not isinstance(caught.value, LoginError)
        assert server.connections == 3


def test_the_poll_for_checks_says_that_its_token_was_revoked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ddmq_client.producer")

    def decide(transaction: UndecidedTransaction) -> Decision:
        return Decision.NOT_KNOWN_YET

    with (
        answering(b"", REJECTED) as server,
        Producer(server.address, producer_group="shop", check=decide, token="old"),
    ):
        until(lambda: server.connections > 3, "the poll was repeated")
    texts = [record.getMessage() for record in caplog.records]
    assert ["connection closed" in text or "token was revoked" in text for text in texts] == [True, True]
    assert "token was revoked" in texts[1]


def test_an_answer_without_a_reason_is_a_rejection() -> None:
    failure = find_login_failure("a:1", login_answer(Code.TOPIC_REFUSED, b"")[4:])
    assert failure is not None
    assert failure.verdict is CallVerdict.LOGIN_FAILED
    assert find_login_failure("a:1", login_answer(Code.OK, b"OK")[4:]) is None
