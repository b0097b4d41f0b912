"""Answers: constant ones encoded once per protocol, the others as structs of the IDL.

Fields of ours (100 and up) go only to callers whose request carried one of ours.
"""

from __future__ import annotations

from typing import Any

from backend.records import AppendResult, NewRecord
from ddmq_client.idl import producer
from ddmq_client.idl.codes import OK_TEXT
from ddmq_rpc.structs import structs
from ddmq_rpc.templates import constant_result
from proxy_producer.core.refusal import Refusal

_structs = structs(producer)
SERVICE = "ProducerService"


# sendSync, sendAsync and sendBatchSync have the same result struct, so one template serves the three.
OK = constant_result(producer, SERVICE, "sendSync", success=_structs.Result(code=0, msg=OK_TEXT))


def refused(refusal: Refusal) -> Any:
    """A Result for a message that was not stored."""
    return _structs.Result(code=int(refusal.code), msg=refusal.text)


def delay_refused(refusal: Refusal, delay_id: bytes) -> Any:
    """A DelayResult for a request that was refused."""
    return _structs.DelayResult(code=int(refusal.code), msg=refusal.text, uniqDelayMsgId=delay_id)


def stored(record: NewRecord, result: AppendResult) -> Any:
    """A Result with our own fields, for callers that know them."""
    return _structs.Result(
        code=0,
        msg=OK_TEXT,
        messageId=record.message_id.hex(),
        queueId=record.queue_id,
        offset=result.offset,
        durability=int(result.durability),
    )


def scheduled(record: NewRecord, result: AppendResult) -> Any:
    """The same for a message with a delay level: where it will stand is not known yet."""
    return _structs.Result(
        code=0, msg=OK_TEXT, messageId=record.message_id.hex(), durability=int(result.durability)
    )
