"""The producer service's calls of transactions: requests to bytes, answers to results."""

from __future__ import annotations

from typing import Any

from ddmq_client.core import frames
from ddmq_client.core.frames import FrameError
from ddmq_client.core.transactions import POLL, EndResult, PreparedResult
from ddmq_client.idl import producer as idl
from ddmq_client.idl.codes import OK_TEXT, Code, TransactionAction
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.printable import printable
from ddmq_client.transactions import UndecidedTransaction, reference_of
from ddmq_client.wire.codec import Specs, decode, encode
from ddmq_client.wire.producing import RESULT_NAMES, answer_at


class _Prepared:
    code: int = 0
    text: str = ""
    results: list[PreparedResult] | None = None
    through_offset: int | None = None


class _PreparedAnswer:
    success: _Prepared | None = None


class _EndAnswer:
    success: EndResult | None = None


class _PollAnswer:
    success: Any = None


_specs = Specs()
_MESSAGE = _specs.register_struct(idl.Message)
_specs.register_struct(idl.Result, PreparedResult, RESULT_NAMES)
_PREPARE = _specs.register_struct(idl.PrepareRequest)
_specs.register_struct(idl.PrepareResponse, _Prepared, {"msg": "text", "throughOffset": "through_offset"})
_PREPARED = _specs.register_struct(idl.ProducerService.sendPrepared_result, _PreparedAnswer)
_POLL = _specs.register_struct(idl.PollChecksRequest)
_POLLED = _specs.register_struct(idl.ProducerService.pollTransactionChecks_result, _PollAnswer)
_end_specs = Specs()
_end_specs.register_struct(idl.Result, SendResult, RESULT_NAMES)
_END = _end_specs.register_struct(idl.EndTransactionRequest)
_end_specs.register_struct(idl.EndTransactionResponse, EndResult, {"msg": "text", "results": "locations"})
_END_ANSWER = _end_specs.register_struct(idl.ProducerService.endTransaction_result, _EndAnswer)


def prepare_request(
    transaction_id: str,
    group: str,
    client_id: str,
    check_after_ms: int | None = None,
    due_times: bool = False,
) -> bytes:
    """Encode a PrepareRequest without messages and timeout, which frames.prepare_args adds."""
    wire: Any = _PREPARE[0]()
    wire.transactionId, wire.producerGroup, wire.clientId = transaction_id, group, client_id
    wire.checkAfterMs, wire.dueTimes = check_after_ms, due_times or None
    return encode(wire, _PREPARE)


def end_request(
    transaction_id: str,
    group: str,
    client_id: str,
    action: TransactionAction,
    through_offset: int | None,
    check: int | None = None,
    messages: int | None = None,
) -> bytes:
    """Encode an EndTransactionRequest without its timeout, which frames.end_args adds."""
    wire: Any = _END[0]()
    wire.transactionId, wire.producerGroup, wire.clientId = transaction_id, group, client_id
    wire.action, wire.throughOffset, wire.check = int(action), through_offset, check
    wire.messages = messages
    return encode(wire, _END)


def poll_frame(group: str, client_id: str, count_max: int, timeout_ms: int, sequence_id: int) -> bytes:
    """Encode the request that polls for undecided transactions."""
    wire: Any = _POLL[0]()
    wire.producerGroup, wire.clientId, wire.countMax, wire.timeout = group, client_id, count_max, timeout_ms
    return frames.build_frame(
        (frames.call_head(POLL, sequence_id), *frames.request_args(encode(wire, _POLL)))
    )


def read_prepared(payload: bytes, sequence_id: int, method: bytes) -> list[SendResult]:
    """Decode the answer to a prepare: one result per message, all prepared, or all with the same error."""
    answer = decode(payload, answer_at(payload, method, sequence_id), _PREPARED).success
    if answer is None:
        raise FrameError("answer without a result")
    results: list[SendResult] = list(answer.results or ())
    for answered in (answer, *results):
        answered.text = printable(answered.text or "")
    if answer.code == Code.OK:
        for result in results:
            if isinstance(result, PreparedResult):
                result.through_offset = answer.through_offset
        return results
    rejected = [result for result in results if result.code != Code.OK]
    code, text = (rejected[0].code, rejected[0].text) if rejected else (answer.code, answer.text)
    return [_build_rejection(code, text)]


def read_end_result(payload: bytes, sequence_id: int, method: bytes) -> list[SendResult]:
    """Decode the answer to an end."""
    answer = decode(payload, answer_at(payload, method, sequence_id), _END_ANSWER).success
    if answer is None:
        raise FrameError("answer without a result")
    answer.text = printable(answer.text or "")
    answer.locations = answer.locations or ()
    return [answer]


def read_checks(payload: bytes, sequence_id: int) -> tuple[int, str, list[UndecidedTransaction]]:
    """Decode the answer to a poll as (code, text, checks)."""
    answer = decode(payload, answer_at(payload, POLL, sequence_id), _POLLED).success
    if answer is None:
        raise FrameError("answer without a result")
    return answer.code or 0, printable(answer.msg or ""), [_open(wire) for wire in answer.checks or ()]


def _open(wire: Any) -> UndecidedTransaction:
    messages = [_outgoing_message(message) for message in wire.messages or ()]
    return UndecidedTransaction(
        wire.transactionId or "",
        messages,
        reference_of(messages),
        wire.check or 0,
        wire.preparedMs or 0,
        wire.throughOffset,
    )


def _outgoing_message(wire: Any) -> OutgoingMessage:
    body = wire.body if wire.body is not None else (wire.value or "").encode()
    return OutgoingMessage(
        wire.topic or "", body, wire.key or None, wire.tags or None, wire.properties or {},
        idempotency_key=wire.idempotencyKey,
    )  # fmt: skip


def _build_rejection(code: int, text: str) -> SendResult:
    result = PreparedResult()
    result.code, result.text = code, text or OK_TEXT
    return result
