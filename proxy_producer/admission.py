"""Request validation: every check that a send passes before it is accepted, once, in the order of the wire.

TABLE is that order; its columns say which requests a check is for. The first fault is the answer. A batch is
checked for 20 and its size as a whole, then each member by its own column, then for its bounds as a whole.
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
from ddmq_common.delivery import encode
from ddmq_common.send_identity import IDENTITY
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_requests import delay_fault
from proxy_producer.core.dialects import counts_from_now, dialects, drop_dialects, read_command
from proxy_producer.core.identity import KEY_PROPERTY, IdentityOf
from proxy_producer.core.refusals import SendRefusal, illegal, refusal
from proxy_producer.core.validation import (
    CHRONOS,
    DELAY,
    HEARTBEAT,
    batch_fault,
    content_fault,
    delay_level,
    heartbeat_only,
    no_delay_property,
    topic_name_fault,
)
from proxy_producer.delay.context import DelayContext
from proxy_producer.flow import Flow
from proxy_producer.pending import SendMember
from proxy_producer.topics import CachedTopic, TopicTable
from proxy_producer.wire import RequestKind, SendRequest, flags_of, request_of

DRAINING = refusal(Code.SHUTTING_DOWN, "draining", "this proxy is shutting down", "send to another one")
NO_DELAY_SERVICE = refusal(
    Code.NO_SERVICE, "no_delay_service", "no delay service is running", "allowed here: sends without a delay"
)
DELAY_FULL = refusal(
    Code.BUSY,
    "delay_pending",
    "this topic has as many delayed messages waiting as it may",
    "allowed: later, when some were delivered or cancelled; more with a higher pending_count_max or "
    "pending_bytes_max of the delay service",
)
_ALONE = "allowed in a batch: messages without a delay; send it alone"


class Admission:
    """Checks every request of one proxy before it is accepted. Each check returns a refusal, or None."""

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
        self.known = topics.known
        self._spoken = delay.dialects.spoken
        self._wall_ms = wall_ms
        self._new_id = new_id

    def reconfigure(self, config: ProducerConfig) -> None:
        """Use the limits of `config` for all later requests."""
        self._config = config

    def find_fault(self, request: SendRequest) -> SendRefusal | None:
        """Return the refusal of the first failing check in TABLE, or None.

        Each call runs all checks again.
        """
        for check in _CHECKS[request.kind]:
            fault = check(self, request)
            if fault is not None:
                return fault
        return None

    # --- the rows

    def not_draining(self, _: SendRequest) -> SendRefusal | None:
        return DRAINING if self._flow.draining else None

    def legal_name(self, request: SendRequest) -> SendRefusal | None:
        """Check the topic's name and look the topic up. Return a refusal, or None."""
        name = request.name
        topic = self.known.get(name)
        if topic is None and (name or request.kind is not RequestKind.CHANGE):
            fault = topic_name_fault(name)
            if fault is not None:
                return fault
            if name == HEARTBEAT:  # never looked up, so that it cannot get into the cache
                return heartbeat_only()
            topic = self._topics.find_topic(name.decode())
        request.topic = topic
        request.topic_name = name.decode() if topic is None else topic.name
        return None

    def legal_content(self, request: SendRequest) -> SendRefusal | None:
        topic = request.topic
        limits = self._topics.default_limits if topic is None else topic.limits
        return content_fault(request.key, request.tags, request.body, request.properties, limits)

    def legal_properties(self, request: SendRequest) -> SendRefusal | None:
        """Check the delay (in a dialect or as a level) and the delay-service flag in the properties, and
        store them in the request. Return a refusal, or None."""
        properties = request.properties
        if not properties:
            return None
        request.command, spoken = None, self._spoken.get(request.name)
        if request.due_times:
            spoken = dialects(("ddmq", *(() if spoken is None else spoken.spoken)))
        if spoken is not None and not spoken.properties.isdisjoint(properties):
            command = read_command(properties, spoken, request.now_ms, self._delay.limits)
            if isinstance(command, SendRefusal):
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

    def legal_identity(self, request: SendRequest) -> SendRefusal | None:
        identity = request.identity
        return identity if isinstance(identity, SendRefusal) else None

    def no_delay(self, request: SendRequest) -> SendRefusal | None:
        if request.command is not None:
            what = "the batch holds a message whose properties ask for a delay"
            return illegal("delayed_in_batch", what, _ALONE)
        if request.level:
            what = f"the batch holds a message with property DELAY = {request.level}"
            return illegal("delayed_in_batch", what, _ALONE)
        return None

    def no_delay_property(self, request: SendRequest) -> SendRefusal | None:
        return no_delay_property(request.properties) if request.properties else None

    def writable(self, request: SendRequest) -> SendRefusal | None:
        topic = request.topic
        return self._topics.creation_fault(request.topic_name) if topic is None else topic.write_fault()

    def mode(self, request: SendRequest) -> SendRefusal | None:
        topic = request.topic
        if topic is None:
            return None
        if request.level or request.command is not None or request.delay is not None:
            return topic.delayed_fault()
        return topic.plain_fault(request.chronos)

    def delay_fields(self, request: SendRequest) -> SendRefusal | None:
        if request.delay is None:
            return None
        return delay_fault(request.delay, self._delay.limits, self._delay.shards, request.now_ms)

    def delay_service(self, request: SendRequest) -> SendRefusal | None:
        if request.delay is None and request.command is None:
            return None
        return NO_DELAY_SERVICE if self._delay.presence.is_absent() else None

    def delay_room(self, request: SendRequest) -> SendRefusal | None:
        if (request.delay is None and request.command is None) or not request.adds_message:
            return None
        topic = request.topic
        return DELAY_FULL if topic is not None and topic.name in self._delay.full.names else None

    def bounds(self, request: SendRequest) -> SendRefusal | None:
        return self._flow.bound_fault(request.frame_bytes)

    # --- the fast path

    # One function: it is the hot path, and each call costs it 0.05 µs.
    def make_record(
        self, message: Any, topic: CachedTopic, born_ms: int | None
    ) -> NewRecord | SendRefusal | None:
        """Check a plain message and build its record; return a refusal if its content is wrong.

        Return None for a message that only the table of checks can judge, such as one that asks for a delay.
        `born_ms`: the message's creation time in epoch milliseconds; None means now.
        """
        flags, system, properties = 0, None, message.properties
        if not topic.plain_now:
            return None
        if properties:
            if message.topic in self._spoken or DELAY in properties or CHRONOS in properties:
                return None
            flags = flags_of(properties)
        key, tags, body = message.key or b"", message.tags or b"", message.body or message.value
        fault = content_fault(key, tags, body, properties, topic.limits)
        if fault is not None:
            return fault
        delivery = encode(key, body, tags, properties)
        if born_ms is None:
            born_ms = self._wall_ms()
        if (
            message.sequence is not None
            or message.idempotencyKey is not None
            or (properties and KEY_PROPERTY in properties)
        ):
            identity = self.identity_of(message, properties)
            if isinstance(identity, SendRefusal):
                return identity
            system = None if identity is None else {IDENTITY: identity}
        return NewRecord(topic.name, -1, self._new_id(), born_ms, delivery, key, tags, flags, 0, system)

    # --- the messages of a call

    def batch_fault(self, messages: list[Any]) -> SendRefusal | None:
        """Return the refusal of a batch as a whole, or None."""
        if self._flow.draining:
            return DRAINING
        body_bytes = sum([len(message.body or message.value or b"") for message in messages])
        config = self._config
        return batch_fault(len(messages), body_bytes, config.batch_messages_max, config.batch_bytes_max)

    def check_messages(
        self,
        kind: RequestKind,
        messages: Sequence[Any],
        *,
        partial: bool = False,
        due_times: Container[int] = (),
    ) -> tuple[list[SendMember], dict[int, SendRefusal]]:
        """Check the messages one by one; return the accepted ones, and the refusals of the others by index.

        Unless `partial`, stop at the first refusal. `due_times`: indexes of messages that may use the delay
        properties of dialect ddmq whatever their topic accepts.
        """
        members: list[SendMember] = []
        faults: dict[int, SendRefusal] = {}
        born_ms, topics = self._wall_ms(), self.known
        for index, message in enumerate(messages):
            record: NewRecord | SendRefusal | None = None
            request: SendRequest | None = None
            topic = None if index in due_times else topics.get(message.topic)
            if topic is not None:
                record = self.make_record(message, topic, born_ms)
            if record is None:
                identity = self.identity_of(message, message.properties)
                request = request_of(kind, message, born_ms, 0, identity)
                request.due_times = index in due_times
                record = self.find_fault(request) or request.make_record(self._new_id())
                topic = request.topic
            if isinstance(record, SendRefusal):
                faults[index] = record
                if partial:
                    continue
                break
            body = message.body or message.value
            members.append(
                SendMember(index, record, len(body), message.partitionId, message.hashId, topic, request)
            )
        return members, faults


class CheckRow(NamedTuple):
    """One row of the table of checks: the check, the codes it may answer, and the kinds of requests it
    applies to."""

    codes: str
    check: Callable[[Admission, SendRequest], SendRefusal | None]
    kinds: Iterable[RequestKind]


_S, _M, _D, _C = RequestKind.SINGLE, RequestKind.MEMBER, RequestKind.DELAY, RequestKind.CHANGE
_P = RequestKind.PREPARED
TABLE = (
    CheckRow("20",       Admission.not_draining,      (_S, _M, _D, _C, _P)),
    CheckRow("11",       Admission.legal_name,        (_S, _M, _D, _C, _P)),
    CheckRow("11",       Admission.legal_content,     (_S, _M, _D, _P)),
    CheckRow("11",       Admission.legal_properties,  (_S, _M, _P)),
    CheckRow("11",       Admission.legal_identity,    (_S, _M, _P)),
    CheckRow("11",       Admission.no_delay,          (_M,)),
    CheckRow("11",       Admission.no_delay_property, (_D,)),
    CheckRow("13 15",    Admission.writable,          (_S, _M, _D, _P)),
    CheckRow("18 19",    Admission.mode,              (_S, _M, _D, _P)),
    CheckRow("30-38 11", Admission.delay_fields,      (_D, _C)),
    CheckRow("21",       Admission.delay_service,     (_S, _D, _C, _P)),
    CheckRow("15",       Admission.delay_room,        (_S, _D, _P)),
    CheckRow("15",       Admission.bounds,            (_S, _D, _C)),
)  # fmt: skip
_CHECKS = tuple(tuple(row.check for row in TABLE if kind in row.kinds) for kind in RequestKind)
