"""Answers: constant ones encoded once per protocol, the others as structs of the IDL.

Fields of ours (100 and up) go only to callers whose request carried one of ours.
"""

from __future__ import annotations

from typing import Any

from backend.records import AppendResult, NewRecord
from ddmq_client.idl import producer
from ddmq_client.idl.codes import OK_TEXT
from ddmq_common.delays.command import ADDED, CommandOutcome
from ddmq_rpc.api import Call, Wire
from ddmq_rpc.codec import constant_result, structs
from proxy_producer.core.refusals import SendRefusal

_structs = structs(producer)
_Result = _structs.Result
SERVICE = "ProducerService"


# sendSync, sendAsync and sendBatchSync have the same result struct, so one template serves the three.
OK = constant_result(producer, SERVICE, "sendSync", success=_Result(code=0, msg=OK_TEXT))


def refused(refusal: SendRefusal) -> Any:
    """A Result for a message that was not stored."""
    return _Result(code=int(refusal.code), msg=refusal.text)


def delay_refused(refusal: SendRefusal, delay_id: bytes) -> Any:
    """A DelayResult for a request that was refused."""
    return _structs.DelayResult(code=int(refusal.code), msg=refusal.text, uniqDelayMsgId=delay_id)


_MARK = b"?"
_DELAYED = constant_result(
    producer,
    SERVICE,
    "sendDelaySync",
    success=_structs.DelayResult(code=0, msg=OK_TEXT, uniqDelayMsgId=_MARK),
)
_COMPACT_HEAD, _, _DELAY_TAIL = _DELAYED.compact.partition(b"\x01" + _MARK)
_BINARY_HEAD = _DELAYED.binary.partition(b"\x00\x00\x00\x01" + _MARK)[0]


def delay_stored(call: Call, delay_id: bytes) -> None:
    """Answer that a command is durable: a constant around the id."""
    size = len(delay_id)
    if call.wire is Wire.BINARY:
        call.reply_encoded(b"%b%b%b%b" % (_BINARY_HEAD, size.to_bytes(4), delay_id, _DELAY_TAIL))
    elif size < 128:
        call.reply_encoded(b"%b%c%b%b" % (_COMPACT_HEAD, size, delay_id, _DELAY_TAIL))
    else:
        call.reply(_structs.DelayResult(code=0, msg=OK_TEXT, uniqDelayMsgId=delay_id))


def delay_decided(delay_id: bytes, code: int, due_ms: int, outcome: CommandOutcome | None) -> Any:
    """A DelayResult with our own fields. `code`: what became of the order; `due_ms`: as far as it is known
    without an outcome, 0 = it is not."""
    fired_ms = 0
    text = OK_TEXT
    if outcome is not None:
        due_ms, fired_ms, text = outcome.due_ms or due_ms, outcome.fired_at_ms, outcome.text or OK_TEXT
    return _structs.DelayResult(
        code=0,
        msg=text,
        uniqDelayMsgId=delay_id,
        outcome=code,
        firedAtMs=fired_ms or None,
        dueMs=due_ms if due_ms and code == ADDED else None,
    )


def delayed(record: NewRecord, delay_id: bytes) -> Any:
    """A Result for a plain send that became a delay message."""
    return _Result(code=0, msg=OK_TEXT, messageId=record.message_id.hex(), delayId=delay_id or None)


def stored(record: NewRecord, result: AppendResult) -> Any:
    """A Result with our own fields, for callers that know them."""
    return _Result(
        code=0,
        msg=OK_TEXT,
        messageId=record.message_id.hex(),
        queueId=record.queue_id,
        offset=result.offset,
        durability=int(result.durability),
    )


def scheduled(record: NewRecord, result: AppendResult) -> Any:
    """The same for a message with a delay level: where it will stand is not known yet."""
    return _Result(code=0, msg=OK_TEXT, messageId=record.message_id.hex(), durability=int(result.durability))
