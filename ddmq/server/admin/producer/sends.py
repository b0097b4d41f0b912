"""Sends a message for an operator, `POST /messages`: by the producer proxy, as a client does."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from ddmq.server.admin.contract.bodies import MessageSendBody
from ddmq.server.admin.producer.calls import CLIENT, IDL, ProducerCalls
from ddmq.server.http.routing import AdminRequest
from ddmq_client.core.selectors import make_placer
from ddmq_client.delays import When, to_datetime, when_of
from ddmq_client.errors import OptionError
from ddmq_client.idl.codes import DELAY_PROPERTY, DelayAction, DelayType
from ddmq_client.outgoing import STORED_DIFFERENTLY, OutgoingMessage
from ddmq_client.wire.wording import in_arguments
from ddmq_common.delays.levels import Levels
from ddmq_common.errors import CallerError
from ddmq_common.names import HEARTBEAT_TOPIC
from proxy_producer.core.validation import build_heartbeat_rejection

_ARGUMENT = re.compile(r"\b(delay|deliver_at|every)\b")
_KEYS = {"delay": "delay_ms", "deliver_at": "due_ms", "every": "every_ms"}
_place = make_placer("hash")


def send_message(calls: ProducerCalls, levels: Levels, request: AdminRequest) -> dict[str, Any]:
    """Send the message of the body, and return where it is stored; for a delayed message, its delay id and
    due time. `levels`: the delay levels that it may name."""
    body: MessageSendBody = request.body
    if body.topic == HEARTBEAT_TOPIC:  # the proxy would answer it, and store nothing
        raise CallerError(in_arguments(build_heartbeat_rejection().text))
    content = _read_content(body)
    properties = dict(body.properties or {})
    if body.level is not None:
        if not 1 <= body.level <= len(levels):
            raise CallerError(f"level is {body.level}; allowed: 1 to {len(levels)}")
        properties[DELAY_PROPERTY] = str(body.level)
    placement = _place(OutgoingMessage(body.topic, b"", queue=body.queue, shard_key=body.shard_key))
    fields: dict[str, Any] = {
        "topic": body.topic, "key": body.key or None, "tags": body.tags or None, "body": content,
        "properties": properties or None, "partitionId": placement.partition_id,
        "hashId": placement.hash_id, "clientId": CLIENT,
    }  # fmt: skip
    when, timeout_ms = _read_when(body), body.timeout_ms or 0
    if when is not None:
        return _send_delayed(calls, request, when, fields, timeout_ms)
    message = IDL.Message(**fields, idempotencyKey=body.idempotency_key)
    result = calls.call("sendSync", body.topic, request.caller, message=message, timeout=timeout_ms)
    row = {
        "topic": body.topic, "queue": result.queueId, "offset": result.offset,
        "id": _decode(result.messageId), "delay_id": _decode(result.delayId), "due_ms": None,
    }  # fmt: skip
    if result.duplicate is not None:
        row["duplicate"] = bool(result.duplicate)
        row["body_differs"] = result.duplicate == STORED_DIFFERENTLY
    return row


def _send_delayed(
    calls: ProducerCalls, request: AdminRequest, when: When, fields: dict[str, Any], timeout_ms: int
) -> dict[str, Any]:
    body: MessageSendBody = request.body
    if body.idempotency_key is not None:
        raise CallerError("idempotency_key of a delayed message; allowed: none")
    message = IDL.DelayMessage(
        **fields, action=int(DelayAction.ADD), dmsgtype=int(DelayType.SCHEDULE), dueMs=when.due_ms,
        delayMs=when.delay_ms, cron=when.cron, zone=when.zone, periodMs=when.period_ms, repeat=when.repeat,
        occurrencesMax=when.occurrences_max, catchUp=when.catch_up, fresh=True,
    )  # fmt: skip
    result = calls.call("sendDelaySync", body.topic, request.caller, delayMessage=message, timeout=timeout_ms)
    return {
        "topic": body.topic, "queue": None, "offset": None, "id": None,
        "delay_id": _decode(result.uniqDelayMsgId), "due_ms": result.dueMs,
    }  # fmt: skip


def _read_content(body: MessageSendBody) -> bytes:
    if (body.body is None) == (body.body_base64 is None):
        stated = "neither body nor body_base64 is" if body.body is None else "body and body_base64 are both"
        raise CallerError(f"{stated} set; allowed: exactly one of them")
    return body.body.encode() if body.body is not None else bytes(body.body_base64 or b"")


def _read_when(body: MessageSendBody) -> When | None:
    """Return when a delayed message is due; None for a message without a delay, or with a delay level."""
    try:
        return when_of(
            None if body.delay_ms is None else timedelta(milliseconds=body.delay_ms),
            None if body.due_ms is None else to_datetime(body.due_ms),
            body.cron,
            body.zone,
            None if body.every_ms is None else timedelta(milliseconds=body.every_ms),
            body.times,
            body.catch_up,
            body.level,
        )
    except OptionError as error:
        text = _ARGUMENT.sub(lambda name: _KEYS[name[0]], str(error))
        raise CallerError(text) from error


def _decode(text: bytes | None) -> str | None:
    return text.decode() if text else None
