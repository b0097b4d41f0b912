"""The wire format of requests and answers, as the rest of this package sees it.

The wire's field names are used here alone. Everything is taken out of a message at once: the RPC layer may
use its argument objects again. Constant answers are encoded once per protocol, the others are structs of the
IDL. Fields that ddmq added (100 and up) go only to callers whose request carried one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from backend.records import FLAG_PRESSURE, AppendResult, NewRecord
from ddmq_client.idl import producer
from ddmq_client.idl.codes import OK_TEXT, DelayAction, DelayType
from ddmq_common.delays.command import ADDED, CommandOutcome, DelayCommand, Schedule
from ddmq_common.delivery import encode
from ddmq_common.send_identity import IDENTITY
from ddmq_rpc.api import Call, Wire
from ddmq_rpc.codec import constant_result, structs
from proxy_producer.core.delay_requests import ANY_QUEUE, DelayRequest
from proxy_producer.core.rejections import SendRejection
from proxy_producer.core.validation import PRESSURE
from proxy_producer.topics import CachedTopic

SERVICE = "ProducerService"
_PRESSURE_ON = b"true"


class RequestKind(IntEnum):
    """The kinds of requests; each has its column in the table of checks (admission.py)."""

    SINGLE = 0
    MEMBER = 1  # of a batch
    DELAY = 2  # sendDelaySync
    CHANGE = 3  # the same, of what waits already, by an extended client: the id says it all
    PREPARED = 4  # of a transaction


@dataclass(slots=True)
class SendRequest:
    """A request to send one message or to change a delayed one. Bytes are exactly as received.

    `queue_choice`: (partitionId, hashId). `extended_client`: the caller uses fields that ddmq added.
    `born_ms`: epoch milliseconds. `delay`: the delay fields of a sendDelaySync.
    """

    kind: RequestKind
    name: bytes
    key: bytes
    tags: bytes
    body: bytes
    properties: Mapping[bytes, bytes] | None
    queue_choice: tuple[int, int]
    extended_client: bool
    born_ms: int
    frame_bytes: int
    delay: DelayRequest | None = None

    # set by the checks
    topic: CachedTopic | None = None  # as long as it does not exist, or where a change names none
    topic_name: str = ""
    delivered_properties: Mapping[bytes, bytes] | None = None  # of a plain send
    level: int = 0  # the requested delay level, 0 = none
    chronos: bool = False  # a delay service sends it
    command: DelayCommand | None = None  # what it asks of the delay service in the words of a dialect
    identity: str | SendRejection | None = None  # by what a second send is recognised, or a rejection
    relative: bool = False  # the due time of `command` counts from now
    due_times: bool = False  # its topic is taken to speak dialect ddmq
    call: Call | None = None  # whose request it is, if rights are on

    @property
    def own_topic(self) -> bool:
        """Return whether a change applies only to a delayed message of the stated topic."""
        return self.call is not None and bool(self.topic_name)

    @property
    def sender_name(self) -> str:
        """Return the identity that sends; "" without rights."""
        return "" if self.call is None or self.call.caller is None else self.call.caller.name

    @property
    def now_ms(self) -> int:
        """Return the base time of relative delays: the end of the current millisecond, so that none is
        early."""
        return self.born_ms + 1

    @property
    def adds_message(self) -> bool:
        """Return whether the request adds a message; otherwise it changes a delayed one."""
        return self.delay is None or self.delay.action == DelayAction.ADD

    def make_record(self, message_id: bytes) -> NewRecord:
        """Build the record to append. The delivery bytes are encoded here, once for all consumers."""
        properties = self.delivered_properties
        delivery = encode(self.key, self.body, self.tags, properties)
        system = {IDENTITY: self.identity} if isinstance(self.identity, str) else None
        flags = flags_of(properties)
        return NewRecord(
            self.topic_name, -1, message_id, self.born_ms, delivery, self.key, self.tags, flags, 0, system
        )


def request_of(
    kind: RequestKind,
    message: Any,
    born_ms: int,
    frame_bytes: int,
    identity: str | SendRejection | None = None,
) -> SendRequest:
    """Convert a wire Message to a SendRequest without checking it."""
    return SendRequest(
        kind,
        message.topic or b"",
        message.key or b"",
        message.tags or b"",
        message.body or message.value or b"",
        message.properties,
        (message.partitionId, message.hashId),
        is_extended(message),
        born_ms,
        frame_bytes,
        identity=identity,
    )


def is_extended(message: Any) -> bool:
    """Return whether a wire Message has a field that ddmq added."""
    return (
        message.clientId is not None
        or message.producerGroup is not None
        or message.idempotencyKey is not None
        or message.sequence is not None
    )


def flags_of(properties: Mapping[bytes, bytes] | None) -> int:
    """Return the record flags that the checked properties set."""
    return FLAG_PRESSURE if properties and properties.get(PRESSURE) == _PRESSURE_ON else 0


_EXTENSION_FIELDS = (
    "clientId", "dueMs", "cron", "zone", "delayMs", "periodMs", "repeat", "occurrencesMax", "catchUp", "key",
    "partitionId", "hashId",
)  # fmt: skip
_CRON_CHARACTERS_SHOWN = 256  # longer ones are rejected by their length, and need not be stored completely


def delay_request_of(message: Any, born_ms: int, frame_bytes: int) -> SendRequest:
    """Convert a wire DelayMessage to a SendRequest without checking it. `born_ms`: epoch milliseconds."""
    is_extended_message = any(getattr(message, name) is not None for name in _EXTENSION_FIELDS)
    schedule = (
        _read_schedule(message) if is_extended_message and message.dmsgtype == DelayType.SCHEDULE else None
    )
    return SendRequest(
        RequestKind.CHANGE
        if is_extended_message and message.action != DelayAction.ADD
        else RequestKind.DELAY,
        message.topic or b"",
        (message.key or b"") if schedule is not None else b"",
        message.tags or b"",
        message.body or b"",
        message.properties,
        (ANY_QUEUE if message.partitionId is None else message.partitionId, message.hashId or 0),
        is_extended_message,
        born_ms,
        frame_bytes,
        DelayRequest(
            message.action,
            message.uniqDelayMsgId or b"",
            message.timestamp,
            message.dmsgtype,
            message.interval,
            message.expire,
            message.times,
            message.uuid or b"",
            _read_due_ms(message, born_ms + 1),
            is_extended_message,
            schedule,
            bool(message.fresh) or not message.uuid,
        ),
    )


def _read_due_ms(message: Any, now_ms: int) -> int | None:
    """Return the due time in epoch milliseconds; None if the timestamp or the schedule states it."""
    if message.dueMs is not None:
        due_ms: int = message.dueMs
        return due_ms
    if message.dmsgtype == DelayType.SCHEDULE and message.action == DelayAction.ADD:
        timestamp = message.timestamp
        return None if not timestamp or message.delayMs is not None else int(timestamp) * 1_000
    return None if message.delayMs is None else now_ms + int(message.delayMs)


def _read_schedule(message: Any) -> Schedule:
    text = {name: _decode_text(getattr(message, name)) for name in ("cron", "zone", "catchUp")}
    return Schedule(
        message.delayMs or 0,
        message.periodMs or 0,
        message.repeat or 0,
        text["cron"],
        text["zone"] or "UTC",
        message.occurrencesMax or 0,
        text["catchUp"] or "fire_once",
    )


def _decode_text(raw: bytes | None) -> str:
    return (raw or b"")[:_CRON_CHARACTERS_SHOWN].decode("utf-8", "backslashreplace")


# --- answers

_structs = structs(producer)
_Result = _structs.Result

# sendSync, sendAsync and sendBatchSync have the same result struct, so one template serves the three.
OK = constant_result(producer, SERVICE, "sendSync", success=_Result(code=0, msg=OK_TEXT))


def rejected_result(rejection: SendRejection) -> Any:
    """Return the Result of a message that was rejected."""
    return _Result(code=int(rejection.code), msg=rejection.text)


def rejected_delay_result(rejection: SendRejection, delay_id: bytes) -> Any:
    """Return the DelayResult of a request that was rejected."""
    return _structs.DelayResult(code=int(rejection.code), msg=rejection.text, uniqDelayMsgId=delay_id)


_MARK = b"?"
_DELAYED = constant_result(
    producer,
    SERVICE,
    "sendDelaySync",
    success=_structs.DelayResult(code=0, msg=OK_TEXT, uniqDelayMsgId=_MARK),
)
_COMPACT_HEAD, _, _DELAY_TAIL = _DELAYED.compact.partition(b"\x01" + _MARK)
_BINARY_HEAD = _DELAYED.binary.partition(b"\x00\x00\x00\x01" + _MARK)[0]


def reply_delay_stored(call: Call, delay_id: bytes) -> None:
    """Answer that a delay command is durable. The answer is pre-encoded apart from the id."""
    size = len(delay_id)
    if call.wire is Wire.BINARY:
        call.reply_encoded(b"%b%b%b%b" % (_BINARY_HEAD, size.to_bytes(4), delay_id, _DELAY_TAIL))
    elif size < 128:
        call.reply_encoded(b"%b%c%b%b" % (_COMPACT_HEAD, size, delay_id, _DELAY_TAIL))
    else:
        call.reply(_structs.DelayResult(code=0, msg=OK_TEXT, uniqDelayMsgId=delay_id))


def delay_result(delay_id: bytes, code: int, due_ms: int, outcome: CommandOutcome | None) -> Any:
    """Return a DelayResult with the fields that ddmq added.

    `code`: the code of the outcome. `due_ms`: the due time if there is no outcome; 0 if it is unknown.
    """
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


def delayed_result(record: NewRecord, delay_id: bytes) -> Any:
    """Return the Result of a plain send that was stored as a delayed message."""
    return _Result(code=0, msg=OK_TEXT, messageId=record.message_id.hex(), delayId=delay_id or None)


def stored_result(record: NewRecord, result: AppendResult) -> Any:
    """Return the Result, with the fields that ddmq added, of a stored message."""
    first = result.first
    return _Result(
        code=0,
        msg=OK_TEXT,
        messageId=(record if first is None else first).message_id.hex(),
        queueId=(record if first is None else first).queue_id,
        offset=result.offset,
        durability=int(result.durability),
        duplicate=_duplicate_field(record, result) if record.system else None,
    )


def scheduled_result(record: NewRecord, result: AppendResult) -> Any:
    """Return the Result of a message with a delay level; its final queue and offset are not known yet."""
    message_id = (record if result.first is None else result.first).message_id
    return _Result(
        code=0,
        msg=OK_TEXT,
        messageId=message_id.hex(),
        durability=int(result.durability),
        duplicate=_duplicate_field(record, result),
    )


def _duplicate_field(record: NewRecord, result: AppendResult) -> int | None:
    """Return Result field 105, which says whether the message is a duplicate, and whether its body
    differs."""
    if not record.system or IDENTITY not in record.system:
        return None
    return 0 if result.first is None else 1 + result.first.differs
