"""Transactions without a socket: ids, the state against a naive model, bytes, what an end's answer means."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.transport import TMemoryBuffer

from ddmq_client import (
    NotCommittedError,
    OutgoingMessage,
    TransactionError,
    UnknownEndError,
)
from ddmq_client.core.nodes import Node, ProxyAddress
from ddmq_client.core.selectors import ANY
from ddmq_client.core.sending import ResendPolicy
from ddmq_client.core.transactions import (
    COMMIT,
    RANDOM_BYTES,
    ROLLBACK,
    EndJob,
    EndResult,
    PreparedResult,
    PrepareJob,
    TransactionState,
    end_error,
    new_id,
)
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.errors import ClientError, ClosedError
from ddmq_client.idl import producer as idl
from ddmq_client.idl.codes import TransactionAction, TransactionOutcome
from ddmq_client.outgoing import SendResult
from ddmq_client.wire.producing import encode_message
from ddmq_client.wire.transactions import end_request, poll_frame, prepare_request
from tests.examples import examples

FIXED = settings(deadline=None, derandomize=True)
NODE = Node(ProxyAddress("127.0.0.1", 1))
NAME = "0" * 32


def read(frame: bytes) -> Any:
    """A request as the server reads it."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    reader = TCompactProtocol(TMemoryBuffer(frame[4:]))
    method, _, _ = reader.read_message_begin()
    args = getattr(idl.ProducerService, method + "_args")()
    args.read(reader)
    return args.request


@settings(FIXED, max_examples=examples(300))
@given(st.integers(0, 2**48 - 1), st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES))
def test_an_id_is_a_uuid_of_version_7(now_ms: int, random: bytes) -> None:
    name = new_id(now_ms, random)
    uuid = UUID(name)
    assert (uuid.version, uuid.variant) == (7, UUID(int=8 << 60).variant)
    assert uuid.int >> 80 == now_ms
    assert uuid.hex == name
    bits = int.from_bytes(random, "big")
    assert uuid.int & (1 << 62) - 1 == bits & (1 << 62) - 1


def test_ids_of_different_chance_differ() -> None:
    ids = {new_id(5, (1 << bit).to_bytes(RANDOM_BYTES, "big")) for bit in range(62)}
    assert len(ids) == 62


# --- the state

CALLS = ["begin", "sent", "failed", "uncertain", "commit", "roll_back", "leave"]


@settings(FIXED, max_examples=examples(500))
@given(st.lists(st.sampled_from(CALLS), max_size=12))
def test_the_state_against_a_model(calls: list[str]) -> None:
    state = TransactionState(NAME)
    under_way = stored = 0
    broken = uncertain = closed = False
    for call in calls:
        if call == "begin":
            if closed or broken:
                with pytest.raises(ClosedError if closed else NotCommittedError):
                    state.begin_send()
            else:
                state.begin_send()
                under_way += 1
        elif call in ("sent", "failed", "uncertain"):
            if not under_way:
                continue
            under_way -= 1
            if call == "sent":
                state.record_sent([SendResult()])
                stored += 1
            else:
                state.send_failed(RuntimeError("x"), call == "uncertain")
                broken = True
                uncertain = uncertain or call == "uncertain"
        elif closed:
            with pytest.raises(ClosedError):
                getattr(state, call)()
        else:
            action = getattr(state, call)()
            closed = True
            something = bool(stored or under_way or uncertain)
            if call == "commit":
                broken = broken or bool(under_way)
            expected = {"commit": ROLLBACK if broken else COMMIT, "roll_back": ROLLBACK}.get(call)
            assert action == (expected if something else None)
        assert (state.is_closed, state.must_roll_back) == (closed, broken)


def test_the_highest_offset_counts() -> None:
    state = TransactionState(NAME)
    for offset in (7, None, 12, 9):
        result = PreparedResult()
        result.through_offset = offset
        state.begin_send()
        state.record_sent([result])
    assert state.through_offset == 12


def test_what_was_sent_twice_under_one_key_counts_once() -> None:
    state = TransactionState(NAME)
    for message_id in ("a", "b", "a"):
        result = PreparedResult()
        result.message_id = message_id
        state.begin_send()
        state.record_sent([result])
    assert state.message_count == 2


# --- the bytes


@pytest.mark.parametrize("check_after_ms", [None, 90_000])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_prepare_is_what_the_server_reads(check_after_ms: int | None, count: int) -> None:
    message = OutgoingMessage("t", b"body", key="k")
    encoded = [encode_message(message, ANY, "me", "bank")] * count
    request = prepare_request(NAME, "bank", "me", check_after_ms)
    job = PrepareJob(request, encoded, 100.0, ResendPolicy(), None)
    job.begin(NODE)
    received = read(job.encode_request(90.0, 7))
    assert (received.transactionId, received.producerGroup, received.clientId) == (NAME, "bank", "me")
    assert received.checkAfterMs == check_after_ms
    assert received.timeout == 9_950
    assert [(one.topic, one.body, one.key) for one in received.messages] == [("t", b"body", "k")] * count


@pytest.mark.parametrize("action", list(TransactionAction))
@pytest.mark.parametrize(
    ("through", "check", "messages"), [(None, None, None), (0, 1, None), (2**40, 15, 1_000)]
)
def test_an_end_is_what_the_server_reads(
    action: TransactionAction, through: int | None, check: int | None, messages: int | None
) -> None:
    job = EndJob(end_request(NAME, "bank", "me", action, through, check, messages), 100.0, ResendPolicy())
    job.begin(NODE)
    received = read(job.encode_request(90.0, 7))
    assert (received.transactionId, received.producerGroup, received.clientId) == (NAME, "bank", "me")
    assert (received.action, received.throughOffset, received.check) == (action, through, check)
    assert received.messages == messages
    assert received.timeout == 4_950, "some is left for another attempt"
    assert received.forwardedBy is None


def test_a_poll_is_what_the_server_reads() -> None:
    poll = read(poll_frame("bank", "me", 16, 10_000, 7))
    assert (poll.producerGroup, poll.clientId, poll.countMax, poll.timeout) == ("bank", "me", 16, 10_000)


# --- answers to an end


def answer(code: int, outcome: int | None) -> EndResult:
    result = EndResult()
    result.code, result.outcome, result.text = code, outcome, "said"
    return result


def test_a_late_answer_goes_before_an_earlier_failure() -> None:
    job = EndJob(end_request(NAME, "g", "me", COMMIT, None), 100.0, ResendPolicy())
    job.begin(NODE)
    job.take_failure(NODE, CallVerdict.LOST, "lost", False)
    assert job.next_wait(0.0, False) is not None
    job.begin(NODE)
    assert job.take_results(NODE, [answer(11, TransactionOutcome.ROLLED_BACK)], False) is CallVerdict.STORED
    assert job.next_wait(0.0, False) is None
    assert isinstance(end_error(COMMIT, NAME, job.results[0]), NotCommittedError)


def test_an_invalid_end_is_not_retried() -> None:
    job = EndJob(end_request(NAME, "g", "me", COMMIT, None), 100.0, ResendPolicy())
    job.begin(NODE)
    assert job.take_results(NODE, [answer(11, TransactionOutcome.OPEN)], True) is CallVerdict.INVALID
    assert job.next_wait(0.0, True) is None
    assert isinstance(end_error(COMMIT, NAME, job.results[0]), UnknownEndError)


O = TransactionOutcome  # noqa: E741
MEANING: dict[tuple[TransactionAction, int | None, int], type[ClientError] | None] = {
    **{(action, None, 0): None for action in TransactionAction},
    **{(action, O.NO_LONGER_KNOWN, 11): UnknownEndError for action in (COMMIT, ROLLBACK)},
    (COMMIT, O.COMMITTED, 0): None,
    (COMMIT, O.COMMITTED, 11): TransactionError,  # a message came behind it: somebody else had committed it
    (COMMIT, O.ROLLED_BACK, 11): NotCommittedError,
    (COMMIT, O.NEVER_THERE, 11): NotCommittedError,
    (COMMIT, O.DEAD_LETTER, 11): NotCommittedError,
    (ROLLBACK, O.ROLLED_BACK, 0): None,
    (ROLLBACK, O.NEVER_THERE, 11): None,
    (ROLLBACK, O.COMMITTED, 11): TransactionError,
    (TransactionAction.NOT_KNOWN_YET, O.OPEN, 0): None,
}


@pytest.mark.parametrize(("case", "kind"), MEANING.items())
def test_what_an_answer_means(
    case: tuple[TransactionAction, int | None, int], kind: type[ClientError] | None
) -> None:
    action, outcome, code = case
    error = end_error(action, NAME, answer(code, outcome))
    assert type(error) is (kind or type(None))
    assert error is None or NAME in str(error)


def test_a_dead_letter_is_reported_with_its_reason() -> None:
    dead = answer(11, O.DEAD_LETTER)
    dead.text = "1 of 2 messages are damaged"
    error = end_error(COMMIT, NAME, dead)
    assert str(error).endswith("it became a dead letter: 1 of 2 messages are damaged")
