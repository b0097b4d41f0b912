"""Request validation: every check that a send passes before it is accepted, once, in the order of the wire.

TABLE is that order; its columns say which requests a check is for. The first rejection is the answer. A batch
is checked for 20 and its size, then each member by its own column, then the batch for its bounds.
Nothing here changes anything: no topic is created, no token taken. Rate limits come afterwards, when it is
certain that the topic exists (pending.py).

`make_record` is the table once more in one function, the fast path for plain messages: what it accepts, each
row accepts. `check_messages` is the one loop over the messages of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

from backend.records import NewRecord
from ddmq_client.idl.codes import Code
from ddmq_common.delays.command import mark_sender
from ddmq_common.delivery import encode
from ddmq_common.send_identity import IDENTITY
from ddmq_rpc.access import record_over
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_requests import check_delay_request
from proxy_producer.core.dialects import counts_from_now, drop_dialects, read_command, select_dialects
from proxy_producer.core.identity import KEY_PROPERTY, IdentityOf, Sender
from proxy_producer.core.rejections import SendRejection, build_illegal_rejection, build_rejection
from proxy_producer.core.validation import (
    CHRONOS,
    DELAY,
    HEARTBEAT,
    build_heartbeat_rejection,
    check_batch_size,
    check_content,
    check_no_delay_property,
    check_topic_name,
    delay_level,
)
from proxy_producer.delay.context import DelayContext
from proxy_producer.flow import Flow
from proxy_producer.pending import SendMember
from proxy_producer.topics import CachedTopic, TopicTable
from proxy_producer.wire import RequestKind, SendRequest, flags_of, request_of

DRAINING = build_rejection(
    Code.SHUTTING_DOWN, "draining", "this proxy is shutting down", "send to another one"
)
NO_DELAY_SERVICE = build_rejection(
    Code.NO_SERVICE, "no_delay_service", "no delay service is running", "allowed here: sends without a delay"
)
DELAY_FULL = build_rejection(
    Code.BUSY,
    "delay_pending",
    "this topic has as many delayed messages waiting as it may",
    "allowed: later, when some were delivered or cancelled; more with a higher pending_count_max or "
    "pending_bytes_max of the delay service",
)
_ALONE = "allowed in a batch: messages without a delay; send it alone"


class Admission:
    """Checks every request of one proxy before it is accepted. Each check returns a rejection, or None."""

    def __init__(
        self,
        config: ProducerConfig,
        topics: TopicTable,
        flow: Flow,
        delay: DelayContext,
        wall_ms: Callable[[], int],
        new_id: Callable[[], bytes],
        identity_of: IdentityOf,
    ) -> None:
        self.identity_of = identity_of
        self._config = config
        self._topics = topics
        self._flow = flow
        self._delay = delay
        self.cached_topics = topics.cached
        self._spoken = delay.dialects.spoken
        self._wall_ms = wall_ms
        self._new_id = new_id

    def reconfigure(self, config: ProducerConfig) -> None:
        """Use the limits of `config` for all later requests."""
        self._config = config

    def check_request(self, request: SendRequest) -> SendRejection | None:
        """Return the rejection of the first failing check in TABLE, or None.

        Each call runs all checks again.
        """
        for check in _CHECKS[request.kind]:
            rejection = check(self, request)
            if rejection is not None:
                return rejection
        return None

    # --- the rows

    def check_draining(self, _: SendRequest) -> SendRejection | None:
        return DRAINING if self._flow.draining else None

    def check_name(self, request: SendRequest) -> SendRejection | None:
        """Check the topic's name and look the topic up. Return a rejection, or None."""
        name = request.name
        topic = self.cached_topics.get(name)
        if topic is None and (name or request.kind is not RequestKind.CHANGE):
            rejection = check_topic_name(name)
            if rejection is not None:
                return rejection
            if name == HEARTBEAT:  # never looked up, so that it cannot get into the cache
                return build_heartbeat_rejection()
            topic = self._topics.find_topic(name.decode())
        request.topic = topic
        request.topic_name = name.decode() if topic is None else topic.name
        return None

    def check_content(self, request: SendRequest) -> SendRejection | None:
        topic = request.topic
        limits = self._topics.default_limits if topic is None else topic.limits
        return check_content(request.key, request.tags, request.body, request.properties, limits)

    def check_properties(self, request: SendRequest) -> SendRejection | None:
        """Check the delay (in a dialect or as a level) and the delay-service flag in the properties, and
        store them in the request. Return a rejection, or None."""
        properties = request.properties
        if not properties:
            return None
        request.command, spoken = None, self._spoken.get(request.name)
        if request.due_times:
            spoken = select_dialects(("ddmq", *(() if spoken is None else spoken.spoken)))
        if spoken is not None and not spoken.properties.isdisjoint(properties):
            command = read_command(properties, spoken, request.now_ms, self._delay.limits)
            if isinstance(command, SendRejection):
                return command
            request.relative = (
                request.kind is RequestKind.PREPARED
                and command is not None
                and counts_from_now(properties, spoken, request.now_ms)
            )
            request.command, properties = command, drop_dialects(properties, spoken)
        request.chronos = CHRONOS in properties
        if DELAY in properties:
            request.level = delay_level(properties)
            properties = dict(properties)
            del properties[DELAY]
        request.delivered_properties = properties
        return None

    def check_identity(self, request: SendRequest) -> SendRejection | None:
        identity = request.identity
        return identity if isinstance(identity, SendRejection) else None

    def check_no_delay(self, request: SendRequest) -> SendRejection | None:
        if request.command is not None:
            what = "the batch holds a message whose properties ask for a delay"
            return build_illegal_rejection("delayed_in_batch", what, _ALONE)
        if request.level:
            what = f"the batch holds a message with property DELAY = {request.level}"
            return build_illegal_rejection("delayed_in_batch", what, _ALONE)
        return None

    def check_no_delay_property(self, request: SendRequest) -> SendRejection | None:
        return check_no_delay_property(request.properties) if request.properties else None

    def check_writable(self, request: SendRequest) -> SendRejection | None:
        topic = request.topic
        return self._topics.check_creation(request.topic_name) if topic is None else topic.check_writable()

    def check_mode(self, request: SendRequest) -> SendRejection | None:
        topic = request.topic
        if topic is None:
            return None
        if request.level or request.command is not None or request.delay is not None:
            return topic.check_delayed_send()
        return topic.check_plain_send(request.chronos)

    def check_delay_fields(self, request: SendRequest) -> SendRejection | None:
        if request.delay is None:
            return None
        return check_delay_request(request.delay, self._delay.limits, self._delay.shards, request.now_ms)

    def check_delay_service(self, request: SendRequest) -> SendRejection | None:
        if request.delay is None and request.command is None:
            return None
        return NO_DELAY_SERVICE if self._delay.presence.is_absent() else None

    def check_delay_capacity(self, request: SendRequest) -> SendRejection | None:
        if (request.delay is None and request.command is None) or not request.adds_message:
            return None
        names, topic, call = self._delay.full.names, request.topic, request.call
        if not names:
            return None
        if topic is not None and topic.name in names:
            return DELAY_FULL
        if call is None or call.caller is None or mark_sender(call.caller.name) not in names:
            return None
        usage = call.caller.usage
        what = "this identity has as many delayed messages waiting as it may"
        over = usage.reject_share("pending_delays", what, usage.quotas.pending_delays)
        record_over(call, over)
        return SendRejection(Code.BUSY, "quota", over)

    def check_bounds(self, request: SendRequest) -> SendRejection | None:
        return self._flow.check_bounds(request.frame_bytes)

    # --- the fast path

    # One function: it is the hot path, and each call costs it 0.05 µs.
    def make_record(
        self, message: Any, topic: CachedTopic, born_ms: int | None, sender: Sender | None
    ) -> NewRecord | SendRejection | None:
        """Check a plain message and build its record; return a rejection if its content is wrong.

        Return None for a message that only the table of checks can judge, such as one that asks for a delay.
        `born_ms`: the message's creation time in epoch milliseconds; None means now. `sender`: the call, or
        None for a message of a transaction or acknowledgement.
        """
        flags, system, properties = 0, None, message.properties
        if not topic.plain_now:
            return None
        if properties:
            if message.topic in self._spoken or DELAY in properties or CHRONOS in properties:
                return None
            flags = flags_of(properties)
        key, tags, body = message.key or b"", message.tags or b"", message.body or message.value
        rejection = check_content(key, tags, body, properties, topic.limits)
        if rejection is not None:
            return rejection
        delivery = encode(key, body, tags, properties)
        if born_ms is None:
            born_ms = self._wall_ms()
        if (
            message.sequence is not None
            or message.idempotencyKey is not None
            or (properties and KEY_PROPERTY in properties)
        ):
            identity = self.identity_of(message, properties, sender)
            if isinstance(identity, SendRejection):
                return identity
            system = None if identity is None else {IDENTITY: identity}
        return NewRecord(topic.name, -1, self._new_id(), born_ms, delivery, key, tags, flags, 0, system)

    # --- the messages of a call

    def check_batch(self, messages: list[Any]) -> SendRejection | None:
        """Return the rejection of a batch as a whole, or None."""
        if self._flow.draining:
            return DRAINING
        body_bytes = sum([len(message.body or message.value or b"") for message in messages])
        config = self._config
        return check_batch_size(len(messages), body_bytes, config.batch_messages_max, config.batch_bytes_max)

    def check_messages(
        self,
        kind: RequestKind,
        messages: Sequence[Any],
        *,
        partial: bool = False,
        due_times: Container[int] = (),
        sender: Sender | None = None,
    ) -> tuple[list[SendMember], dict[int, SendRejection]]:
        """Check the messages one by one; return the accepted ones, and the rejections of the others by index.

        Unless `partial`, stop at the first rejection. `due_times`: indexes of messages that may use the delay
        properties of dialect ddmq whatever their topic accepts. `sender`: see make_record.
        """
        members: list[SendMember] = []
        rejections: dict[int, SendRejection] = {}
        born_ms, topics = self._wall_ms(), self.cached_topics
        for index, message in enumerate(messages):
            record: NewRecord | SendRejection | None = None
            request: SendRequest | None = None
            topic = None if index in due_times else topics.get(message.topic)
            if topic is not None:
                record = self.make_record(message, topic, born_ms, sender)
            if record is None:
                identity = self.identity_of(message, message.properties, sender)
                request = request_of(kind, message, born_ms, 0, identity)
                request.due_times = index in due_times
                record = self.check_request(request) or request.make_record(self._new_id())
                topic = request.topic
            if isinstance(record, SendRejection):
                rejections[index] = record
                if partial:
                    continue
                break
            body = message.body or message.value
            members.append(
                SendMember(index, record, len(body), message.partitionId, message.hashId, topic, request)
            )
        return members, rejections


class CheckRow(NamedTuple):
    """One row of the table of checks: the check, the codes it may answer, and the kinds of requests it
    applies to."""

    codes: str
    check: Callable[[Admission, SendRequest], SendRejection | None]
    kinds: Iterable[RequestKind]


_S, _M, _D, _C = RequestKind.SINGLE, RequestKind.MEMBER, RequestKind.DELAY, RequestKind.CHANGE
_P = RequestKind.PREPARED
TABLE = (
    CheckRow("20",       Admission.check_draining,          (_S, _M, _D, _C, _P)),
    CheckRow("11",       Admission.check_name,              (_S, _M, _D, _C, _P)),
    CheckRow("11",       Admission.check_content,           (_S, _M, _D, _P)),
    CheckRow("11",       Admission.check_properties,        (_S, _M, _P)),
    CheckRow("11",       Admission.check_identity,          (_S, _M, _P)),
    CheckRow("11",       Admission.check_no_delay,          (_M,)),
    CheckRow("11",       Admission.check_no_delay_property, (_D,)),
    CheckRow("13 15",    Admission.check_writable,          (_S, _M, _D, _P)),
    CheckRow("18 19",    Admission.check_mode,              (_S, _M, _D, _P)),
    CheckRow("30-38 11", Admission.check_delay_fields,      (_D, _C)),
    CheckRow("21",       Admission.check_delay_service,     (_S, _D, _C, _P)),
    CheckRow("15",       Admission.check_delay_capacity,    (_S, _D, _P)),
    CheckRow("15",       Admission.check_bounds,            (_S, _D, _C)),
)  # fmt: skip
_CHECKS = tuple(tuple(row.check for row in TABLE if kind in row.kinds) for kind in RequestKind)
