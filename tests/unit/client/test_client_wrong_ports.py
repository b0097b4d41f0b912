"""An address that is wrong shows at the first call; one at which no server runs yet is waited for."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import (
    Admin,
    Consumer,
    NotStoredError,
    Producer,
    PullError,
    RangeReader,
    UnavailableError,
    UnknownChangeError,
)
from ddmq_client.aio import AsyncAdmin, AsyncConsumer, AsyncProducer
from ddmq_client.core.frames import FrameBuffer, FrameError
from ddmq_client.idl.codes import Code
from ddmq_client.testing import TestBroker
from tests.support.one_answer import HTTP_ANSWER, answering, login_answer
from tests.support.ports import port_of, reserved

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
ROW = re.compile(
    r"^\| (?P<cause>.+) \| (?P<effect>raises `PullError`|logs a warning and waits.*) \|$", re.MULTILINE
)


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


def test_a_producer_at_the_consumer_port_names_the_port(broker: TestBroker) -> None:
    with (
        Producer(broker.consumers, timeout_ms=500) as producer,
        pytest.raises(NotStoredError, match=r"seems to be a consumer port: .* 9613 by default"),
    ):
        producer.send("orders", b"one espresso")


def test_an_asyncio_producer_at_the_consumer_port_names_the_port(broker: TestBroker) -> None:
    async def send() -> None:
        async with AsyncProducer(broker.consumers, timeout_ms=500) as producer:
            await producer.send("orders", b"one espresso", key="order-17")

    with pytest.raises(NotStoredError, match="seems to be a consumer port"):
        asyncio.run(send())


def test_a_pull_from_the_producer_port_names_the_port(broker: TestBroker) -> None:
    with (
        Consumer(broker.producers, "billing", "orders") as consumer,
        pytest.raises(PullError, match=r"seems to be a producer port: .* 9713 by default"),
    ):
        consumer.pull(timeout_ms=1_000)


def test_on_error_and_the_log_name_the_port(broker: TestBroker, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()
    errors: list[Exception] = []

    def note_error(error: Exception) -> None:
        errors.append(error)
        called.set()

    with Consumer(broker.producers, "billing", "orders", handler=print, on_error=note_error):
        assert called.wait(20)
    assert "seems to be a producer port" in str(errors[0])
    assert "seems to be a producer port" in caplog.text


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_a_send_to_the_admin_port_is_certainly_not_stored(kind: Any) -> None:
    async def send() -> None:
        producer = kind(server.address)
        answer = producer.send("orders", b"one espresso")
        if kind is AsyncProducer:
            await answer

    with answering(HTTP_ANSWER) as server, pytest.raises(NotStoredError, match="is this an admin port"):
        asyncio.run(send())


def test_a_range_reader_at_the_admin_port_does_not_wait() -> None:
    with (
        answering(HTTP_ANSWER) as server,
        RangeReader(server.address, "archive", "orders", timeout_ms=600_000) as reader,
        pytest.raises(PullError, match="is this an admin port"),
    ):
        reader.bounds()


def test_an_http_server_is_named_as_such() -> None:
    with pytest.raises(FrameError, match="an HTTP server answers; is this an admin port"):
        FrameBuffer(1 << 20).feed_bytes(HTTP_ANSWER)


def test_the_log_of_a_consumer_at_the_admin_port_names_the_port(caplog: pytest.LogCaptureFixture) -> None:
    with (
        answering(HTTP_ANSWER) as server,
        Consumer(server.address, "billing", "orders") as consumer,
        pytest.raises(PullError, match="is this an admin port"),
    ):
        consumer.pull(timeout_ms=1_000)
    assert "an HTTP server answers; is this an admin port" in caplog.text


@pytest.mark.parametrize("kind", [Admin, AsyncAdmin])
def test_an_admin_client_at_the_port_of_a_proxy_names_the_port(kind: Any) -> None:
    async def call(method: str, *arguments: str) -> None:
        admin = kind(server.address)
        answer = getattr(admin, method)(*arguments)
        if kind is AsyncAdmin:
            await answer

    with answering(b"") as server:
        hint = "connection ended before an answer; check the address, the admin port is 9813 by default"
        with pytest.raises(UnavailableError, match=hint):
            asyncio.run(call("list_topics"))
        with pytest.raises(UnknownChangeError, match=f"{hint}; the change may or may not have been made"):
            asyncio.run(call("create_topic", "orders"))


def run_rejected(broker: TestBroker) -> None:
    broker.create_group("billing", "orders", order_key="KEY")
    Consumer(broker.consumers, "billing", "orders", handler=print, order_key="QID").run()


def run_at_producer_port(broker: TestBroker) -> None:
    Consumer(broker.producers, "billing", "orders", handler=print).run()


def run_asyncio_at_producer_port(broker: TestBroker) -> None:
    async def handle(message: object) -> None: ...

    asyncio.run(AsyncConsumer(broker.producers, "billing", "orders", handler=handle).run())


def run_at_admin_port(_: TestBroker) -> None:
    with answering(HTTP_ANSWER) as server:
        Consumer(server.address, "billing", "orders", handler=print).run()


def run_broadcasting_at_admin_port(_: TestBroker) -> None:
    with answering(HTTP_ANSWER) as server:
        Consumer(server.address, "billing", "orders", handler=print, model="broadcasting").run()


def run_with_rejected_login(_: TestBroker) -> None:
    with answering(login_answer(Code.TOPIC_REFUSED, b"the token was revoked")) as server:
        Consumer(server.address, "billing", "orders", handler=print, token="old").run()


def run_at_closed_port(_: TestBroker) -> None:
    called = threading.Event()
    with closing(reserved()) as port:
        consumer = Consumer(
            f"127.0.0.1:{port_of(port)}",
            "billing",
            "orders",
            handler=print,
            on_error=lambda error: called.set(),
        )
        threading.Thread(target=lambda: (called.wait(20), consumer.stop())).start()
        assert consumer.run()
        assert called.is_set()


CAUSES: dict[str, tuple[Callable[[TestBroker], None], ...]] = {
    "the pulls are rejected": (run_rejected,),
    "the login is rejected": (run_with_rejected_login,),
    "the address is a producer port": (run_at_producer_port, run_asyncio_at_producer_port),
    "the address is an admin port": (run_at_admin_port, run_broadcasting_at_admin_port),
    "no connection can be made": (run_at_closed_port,),
}


def test_run_raises_or_waits_as_the_page_says(broker: TestBroker, caplog: pytest.LogCaptureFixture) -> None:
    rows = list(ROW.finditer(PAGE.read_text(encoding="utf-8")))
    assert len(rows) == len(CAUSES)
    for row, (cause, runs) in zip(rows, CAUSES.items(), strict=True):
        assert row["cause"].startswith(cause)
        for run in runs:
            caplog.clear()
            if row["effect"].startswith("raises"):
                with pytest.raises(PullError):
                    run(broker)
            else:
                with caplog.at_level(logging.WARNING):
                    run(broker)
                assert "cannot connect to" in caplog.text
