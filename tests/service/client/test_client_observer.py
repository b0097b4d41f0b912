"""What an observer is called for, by clients of both kinds: each send once, with the end that it came to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from types import TracebackType

import pytest

from ddmq_client import (
    ClosedError,
    Consumer,
    InvalidMessageError,
    Message,
    NotStoredError,
    OptionError,
    Outcome,
    OutgoingMessage,
    Producer,
    SendResult,
    UnknownOutcomeError,
)
from ddmq_client.aio import AsyncConsumer, AsyncProducer
from ddmq_client.observer import HandleCall, SendCall
from tests.service.client.either import KINDS, going
from tests.service.client.standin import AFTER, BEFORE, HOLD, Standin, refuse
from tests.support.waits import loop_until, until

M0, M1 = OutgoingMessage("t", b"m0"), OutgoingMessage("t", b"m1")


class RecordedSend:
    """Its messages carry a mark; its ends are all that were told."""

    def __init__(self, messages: Sequence[OutgoingMessage], call: SendCall) -> None:
        self.call = call
        self.messages = [replace(message, properties={"mark": "1"}) for message in messages]
        self.ends: list[object] = []

    def ended(self, results: Sequence[SendResult]) -> None:
        self.ends.append([result.stored for result in results])

    def failed(self, error: BaseException) -> None:
        self.ends.append(type(error))


class RecordedHandling:
    """Of one call of a handler: the errors, and what had become of its messages when it was over."""

    def __init__(self, messages: Sequence[Message], call: HandleCall) -> None:
        self.messages, self.call = messages, call
        self.errors: list[type] = []
        self.outcomes: list[Outcome | None] | None = None

    def raised(self, error: BaseException) -> None:
        self.errors.append(type(error))

    def __enter__(self) -> None:
        assert self.outcomes is None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.outcomes = [message.outcome for message in self.messages]


class Onlooker:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.sends: list[RecordedSend] = []
        self.handed: list[tuple[int, str, bool]] = []
        self.handlings: list[RecordedHandling] = []

    def sending(self, messages: Sequence[OutgoingMessage], call: SendCall) -> RecordedSend:
        self.sends.append(RecordedSend(messages, call))
        return self.sends[-1]

    def handed_out(self, messages: Sequence[Message], client_id: str, asked_ns: int | None) -> None:
        self.handed.append((len(messages), client_id, asked_ns is not None))

    def handling(self, messages: Sequence[Message], call: HandleCall) -> RecordedHandling:
        self.handlings.append(RecordedHandling(messages, call))
        return self.handlings[-1]

    @property
    def ends(self) -> list[object]:
        return [end for send in self.sends for end in send.ends]


def marked(proxy: Standin) -> list[bool]:
    """Of what is stored."""
    return [(message.properties or {}).get("mark") == "1" for message in proxy.stored]


@pytest.mark.parametrize("kind", KINDS)
def test_each_call_that_sends_is_one(proxy: Standin, kind: str) -> None:
    onlooker = Onlooker()
    with going(kind, proxy.address, producer_group="g", observer=onlooker) as producer:
        producer.send("t", b"x")
        producer.send_message(M0)
        producer.send_batch([M0, M1])
        producer.send_oneway(M0)
        with producer.transaction() as tx:
            tx.send("t", b"x")
            tx.send_batch([M0, M1])
            tx.send_batch([])
        proxy.wait(lambda: len(proxy.stored) == 8)
    assert marked(proxy) == [True] * 8
    assert [send.call for send in onlooker.sends] == [
        SendCall("me"), SendCall("me"), SendCall("me", batch=True), SendCall("me"),
        SendCall("me", transaction=tx.id), SendCall("me", batch=True, transaction=tx.id),
    ]  # fmt: skip
    assert onlooker.ends == [[True], [True], [True, True], [], [True], [True, True]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_observed_send_includes_its_resends(proxy: Standin, kind: str) -> None:
    onlooker = Onlooker()
    proxy.recognises = True
    with going(kind, proxy.address, observer=onlooker, timeout_ms=20_000) as producer:
        producer.send("t", b"first")
        proxy.faults["sendSync"].extend([BEFORE, AFTER, refuse(15)])
        producer.send("t", b"x", idempotency_key="k")
    assert onlooker.ends == [[True], [True]]
    assert len(proxy.stored) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_raises_has_failed(proxy: Standin, kind: str) -> None:
    onlooker = Onlooker()
    with going(kind, proxy.address, observer=onlooker, retry_unknown=False) as producer:
        for fault, error in ((refuse(11), InvalidMessageError), (AFTER, UnknownOutcomeError)):
            proxy.faults["sendSync"].append(fault)
            with pytest.raises(error):
                producer.send("t", b"x")
        with pytest.raises(OptionError):
            producer.send_batch([M0], timeout_ms=0)
        with pytest.raises(InvalidMessageError):
            producer.send_oneway(OutgoingMessage("t", b""))
        assert [one.stored for one in producer.send_batch([M0, OutgoingMessage("t", b"")])] == [True, False]
        producer.close()
        with pytest.raises(ClosedError):
            producer.send("t", b"x")
    assert onlooker.ends == [
        InvalidMessageError, UnknownOutcomeError, OptionError,
        InvalidMessageError, [True, False], ClosedError,
    ]  # fmt: skip


def test_sends_in_the_background_end_when_they_do(proxy: Standin) -> None:
    onlooker = Onlooker()
    proxy.faults["sendSync"].extend([HOLD, refuse(11)])
    with Producer(proxy.address, async_workers=1, observer=onlooker) as producer:
        first = producer.send_async(M0)
        proxy.wait(lambda: len(proxy.calls) == 1)
        cancelled, refused = producer.send_async(M0), producer.send_async(M0)
        assert cancelled.cancel()
        assert onlooker.ends == [CancelledError]
        proxy.release()
        assert first.result(60).stored
        assert isinstance(refused.exception(60), InvalidMessageError)
    assert [send.ends for send in onlooker.sends] == [[[True]], [CancelledError], [InvalidMessageError]]
    with pytest.raises(ClosedError):
        producer.send_async(M0)
    assert onlooker.sends[3].ends == [ClosedError]


def test_a_send_whose_task_is_cancelled(proxy: Standin) -> None:
    onlooker = Onlooker()

    async def test() -> None:
        proxy.faults["sendSync"].append(HOLD)
        async with AsyncProducer(proxy.address, observer=onlooker) as producer:
            task = asyncio.create_task(producer.send("t", b"x"))
            await loop_until(lambda: proxy.calls)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        proxy.release()

    asyncio.run(test())
    assert onlooker.ends == [asyncio.CancelledError]


def test_handlers_and_what_became_of_their_messages(proxy: Standin) -> None:
    onlooker = Onlooker()
    proxy.put("t", b"good", b"bad")

    def handle(message: Message) -> None:
        if message.body == b"bad":
            raise NotStoredError("no")

    with Consumer(proxy.address, "g", "t", handler=handle, threads=1, client_id="you", observer=onlooker):
        until(lambda: [one for one in onlooker.handlings if one.errors and one.outcomes])
    good, bad = onlooker.handlings[:2]
    assert (good.call, good.errors, good.outcomes) == (HandleCall("you"), [], [Outcome.ACKED])
    assert (bad.errors, bad.outcomes) == ([NotStoredError], [Outcome.FAILED])
    assert onlooker.handed[:2] == [(1, "you", False)] * 2


def test_handlers_of_batches_that_are_tasks(proxy: Standin) -> None:
    onlooker = Onlooker()
    proxy.put("t", b"x", b"y")

    async def handle(messages: list[Message]) -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        async with AsyncConsumer(
            proxy.address, "g", "t", batch_handler=handle, auto_ack=False, client_id="you", observer=onlooker
        ):
            await loop_until(lambda: sum(len(one.outcomes or ()) for one in onlooker.handlings) == 2)

    asyncio.run(test())
    assert {one.call for one in onlooker.handlings} == {HandleCall("you", batch=True)}
    assert [outcome for one in onlooker.handlings for outcome in one.outcomes or ()] == [None, None]


def test_pulled_messages_are_observed(proxy: Standin) -> None:
    """What a pull did not bring is not told."""
    onlooker = Onlooker()
    with Consumer(proxy.address, "g", "t", client_id="you", observer=onlooker) as consumer:
        assert consumer.pull(timeout_ms=1) == []
        proxy.put("t", b"x", b"y")
        for count, message in enumerate(consumer, 1):
            message.ack()
            if count == 2:
                break
    assert onlooker.handed == [(1, "you", True)] * 2
    assert onlooker.handlings == []
