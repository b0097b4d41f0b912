"""Acknowledgements that carry messages, without a socket: the block, the bytes, what each answer means."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.transport import TMemoryBuffer

from ddmq_client import (
    ClientError,
    InvalidMessageError,
    LeaseOverError,
    Message,
    NoSuchTopicError,
    NotStoredError,
    OptionError,
    OutgoingMessage,
    Replies,
    ThrottledError,
    UnknownOutcomeError,
)
from ddmq_client.core.frames import FrameError
from ddmq_client.core.prefetch_buffer import PrefetchBuffer, Source
from ddmq_client.core.replying import ReplyAnswer, ReplyJob, ReplyTo
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.idl import consumer as idl
from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_client.outgoing import SendResult
from ddmq_client.received import DeliveryContext, NothingToSettle, Origin, Outcome
from ddmq_client.replies import MESSAGES_MAX
from ddmq_client.wire.replying import read_reply, reply_request

TO = ReplyTo("g", "t", "R_default_a_1", 7, 77)


class Taker:
    """What a consumer does with acknowledgements."""

    def __init__(self, inline: bool = True, error: Exception | None = None) -> None:
        self.inline = inline
        self.replied: list[tuple[Sequence[bytes], int | None]] = []
        self.acked = 0
        self.error = error

    def ack(self) -> bool:
        self.acked += 1
        return True

    def reply(self, message: object, messages: Sequence[bytes], timeout_ms: int | None) -> Any:
        assert message is self
        self.replied.append((messages, timeout_ms))
        return self._outcome() if self.inline else self._soon()

    def _outcome(self) -> list[SendResult]:
        if self.error is not None:
            raise self.error
        return [SendResult()]

    async def _soon(self) -> list[SendResult]:
        return self._outcome()

    def replies(self, timeout_ms: int | None = None) -> Replies:
        return Replies(self, self, timeout_ms)


def sent(messages: Sequence[bytes]) -> Any:
    """The request as a server reads it."""
    frame = ReplyJob(reply_request(TO, "c"), messages, 10.0).encode_request(0.0, 1)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    reader = TCompactProtocol(TMemoryBuffer(frame[4:]))
    method, _, _ = reader.read_message_begin()
    args = getattr(idl.ConsumerService, method + "_args")()
    args.read(reader)
    return args.request


@pytest.fixture
def taker() -> Taker:
    return Taker()


# --- the block


def test_what_is_sent_in_the_block_goes_with_the_acknowledgement(taker: Taker) -> None:
    with taker.replies(timeout_ms=500) as tx:
        tx.send("out", "ü", key="k", tags="t", properties={"a": "b"}, shard_key="k")
        tx.send("later", b"\x00", delay=timedelta(seconds=5), queue=3)
        tx.send_message(OutgoingMessage("plain", b"x"))
        assert taker.replied == []
    ((messages, timeout_ms),) = taker.replied
    assert (timeout_ms, len(tx.results), taker.acked) == (500, 1, 0)
    request = sent(messages)
    assert (request.context.groupId, request.context.topic, request.context.qid) == TO[:3]
    assert (request.offset, request.lease, request.clientId, request.timeout) == (7, 77, "c", 4_950)
    first, second, third = request.messages
    assert (first.topic, first.body, first.key, first.tags, first.properties) == (
        "out", "ü".encode(), "k", "t", {"a": "b"},
    )  # fmt: skip
    assert (first.partitionId, first.dueTimes, third.partitionId) == (-1, None, -2)
    assert (second.partitionId, second.properties, second.dueTimes) == (3, {"deliver-after": "5000"}, True)


def test_many_are_one_list(taker: Taker) -> None:
    with taker.replies() as tx:
        for number in range(200):
            tx.send("out", str(number))
    request = sent(taker.replied[0][0])
    assert [one.body for one in request.messages] == [str(number).encode() for number in range(200)]


def test_an_exception_sends_nothing_and_goes_on_its_way(taker: Taker) -> None:
    with pytest.raises(ZeroDivisionError), taker.replies() as tx:
        tx.send("out", bytes(1 // len(taker.replied)))
    assert (taker.replied, taker.acked) == ([], 0)


def test_a_block_without_messages_is_a_plain_acknowledgement(taker: Taker) -> None:
    with taker.replies():
        pass
    assert (taker.replied, taker.acked) == ([], 1)


def test_in_asyncio_it_is_awaited() -> None:
    async def handle(taker: Taker) -> Replies:
        async with taker.replies() as tx:
            tx.send("out", b"x")
        return tx

    assert len(asyncio.run(handle(Taker(inline=False))).results) == 1
    with pytest.raises(ClientError, match="allowed: with"):
        asyncio.run(handle(Taker(inline=True)))
    with pytest.raises(ClientError, match="allowed: async with"), Taker(inline=False).replies():
        pass


def test_a_block_is_entered_once_and_sends_stand_in_it(taker: Taker) -> None:
    tx = taker.replies()
    with pytest.raises(ClientError, match="not entered"):
        tx.send("out", b"x")
    with tx:
        tx.send("out", b"x")
    with pytest.raises(ClientError, match="is over"):
        tx.send("out", b"x")
    with pytest.raises(ClientError, match="entered once"), tx:
        pass
    assert len(taker.replied) == 1


def test_invalid_sends_are_rejected_at_once(taker: Taker) -> None:
    with taker.replies() as tx:
        for invalid in ({"body": b""}, {"body": 7}, {"topic": "\ud800"}, {"properties": {"a": 1}}):
            with pytest.raises(InvalidMessageError):
                tx.send(**{"topic": "out", "body": b"x", **invalid})  # type: ignore[arg-type]
        with pytest.raises(OptionError):
            tx.send("out", b"x", level=0)
        with pytest.raises(OptionError, match="idempotency_key"):
            tx.send_message(OutgoingMessage("out", b"x", idempotency_key="k"))
        for _ in range(2):
            tx.send("out", bytes(FRAME_BYTES_MAX // 3))
        with pytest.raises(InvalidMessageError, match="allowed: about"):
            tx.send("out", bytes(FRAME_BYTES_MAX // 3))
    assert len(taker.replied[0][0]) == 2
    with pytest.raises(OptionError):
        taker.replies(timeout_ms=0)


def test_at_most_so_many(taker: Taker) -> None:
    with taker.replies() as tx:
        for _ in range(MESSAGES_MAX):
            tx.send("out", b"x")
        with pytest.raises(InvalidMessageError, match="4096"):
            tx.send("out", b"x")


def test_messages_that_were_fetched_have_no_acknowledgement() -> None:
    message = Message()
    message.delivery = DeliveryContext(Origin("g", "t", "q"), 0.0, None, NothingToSettle())
    with pytest.raises(ClientError, match="fetched by offset"), message.replies() as tx:
        tx.send("out", b"x")


# --- what a message is meanwhile


def test_a_message_is_settled_by_nothing_else_meanwhile() -> None:
    buffer = PrefetchBuffer(8, 30.0, 0.05, 1_000, lambda: 0.0)
    source = Source(buffer.get_proxy("p:1"), None)
    message = Message()
    message.offset, message.lease_id = 7, 77
    buffer.demand = None
    buffer.add_pulled(source, Origin("g", "t", "q"), [message], NothingToSettle(), 1_000)
    (message,) = buffer.take_messages(1)
    assert buffer.begin_reply(message)
    assert not buffer.begin_reply(message)
    assert not buffer.settle(message, Outcome.FAILED, None)
    assert not buffer.hand_back(message)
    assert buffer.extend(message), "its lease is kept"
    buffer.end_reply(message, stored=False)
    assert (message.outcome, source.open) == (None, 1)
    assert buffer.begin_reply(message)
    buffer.end_reply(message, stored=True)
    assert (message.outcome, source.open, buffer.counts.acked) == (Outcome.ACKED, 0, 1)
    assert not buffer.settle(message, Outcome.ACKED, None)


# --- what answers mean


def answer(code: int = 0, outcome: int | None = None, results: Sequence[SendResult] = ()) -> ReplyAnswer:
    reply = ReplyAnswer()
    reply.code, reply.text, reply.outcome, reply.results = code, "so it is", outcome, results
    return reply


def job() -> ReplyJob:
    return ReplyJob(reply_request(TO, "c"), [b"\x00"], 10.0)


@pytest.mark.parametrize(("outcome", "count"), [(1, 2), (2, 2), (2, 0)])
def test_stored_by_this_call_or_before(outcome: int, count: int) -> None:
    one, results = job(), [SendResult() for _ in range(count)]
    one.take_answer(answer(0, outcome, results), "p:1")
    assert (one.error, one.results, one.next_wait(0.0, True)) == (None, results, None)
    assert {result.proxy for result in results} <= {"p:1"}


@pytest.mark.parametrize(
    ("code", "outcome", "error"),
    [
        (11, 3, LeaseOverError),
        (11, 4, UnknownOutcomeError),
        (11, None, InvalidMessageError),
        (18, None, InvalidMessageError),
        (13, None, NoSuchTopicError),
    ],
)
def test_what_is_over(code: int, outcome: int | None, error: type[Exception]) -> None:
    one = job()
    one.take_failure(CallVerdict.TIMED_OUT, "silence", "p:1")
    one.take_answer(answer(code, outcome), "p:1")
    assert type(one.error) is error
    assert one.next_wait(0.0, True) is None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (14, NotStoredError),
        (15, ThrottledError),
        (20, NotStoredError),
        (21, NotStoredError),
        (10, UnknownOutcomeError),
        (12, UnknownOutcomeError),
        (99, UnknownOutcomeError),
    ],
)
def test_retryable_answers_are_retried(code: int, error: type[Exception]) -> None:
    one = job()
    assert isinstance(one.error, NotStoredError)
    one.take_answer(answer(code), "p:1")
    assert type(one.error) is error
    assert one.next_wait(0.0, True) == 0.0, "elsewhere at once"
    assert 0.0 < (one.next_wait(0.0, False) or 0.0) <= 0.5
    assert one.next_wait(10.0, True) is None, "the time is up"
    one.take_answer(answer(0, 2), "p:2")
    assert one.error is None


def test_a_server_that_is_no_proxy_is_tried_once() -> None:
    one = job()
    one.take_failure(CallVerdict.WRONG_SERVER, "an HTTP server answers", "p:1")
    assert one.next_wait(0.0, True) == 0.0, "elsewhere at once"
    assert one.next_wait(0.0, False) is None
    assert type(one.error) is NotStoredError


def test_what_was_unknown_once_stays_so_until_somebody_knows() -> None:
    one = job()
    one.take_failure(CallVerdict.LOST, "it broke", "p:1")
    one.take_answer(answer(15), "p:1")
    assert type(one.error) is UnknownOutcomeError
    one.take_failure(CallVerdict.NOT_SENT, "no connection", "p:1")
    assert type(one.error) is UnknownOutcomeError
    one.take_answer(answer(11, 3), "p:1")
    assert type(one.error) is LeaseOverError


def test_pauses_grow_and_end_in_time() -> None:
    one, waits, now = job(), list[float](), 0.0
    while (wait := one.next_wait(now, False)) is not None:
        waits.append(wait)
        now += wait
        one.take_answer(answer(15), "p:1")
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.02, 0.5)
    assert 9.0 < now < 10.0


def test_an_answer_is_read_or_is_none() -> None:
    with pytest.raises(FrameError):
        read_reply(b"\x82\x41\x01\x05reply\x00", 1)
    answer = read_reply(b"\x82\x41\x01\x05reply\x0c\x00\x15\x1e\x18\x02no\x00\x00", 1)
    assert (answer.code, answer.text, answer.outcome, answer.results) == (15, "no", None, ())
