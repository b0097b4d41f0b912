"""How callers of sendDelaySync are answered, but for those that wait for an outcome (awaited.py)."""

from __future__ import annotations

from backend.records import AppendResult
from ddmq_common.delays.command import ADDED
from ddmq_rpc.api import Call
from proxy_producer import replies
from proxy_producer.core.delay_checks import echoed_id
from proxy_producer.core.refusal import SendRefusal
from proxy_producer.flow import Flow
from proxy_producer.pending import PendingSend
from proxy_producer.topics import KnownTopic


class IdAnswers:
    """Of old clients: the id. `adds`: the command brings a message, and changes none."""

    __slots__ = ("_adds", "_delay_id")

    def __init__(self, delay_id: bytes, adds: bool = True) -> None:
        self._delay_id = delay_id
        self._adds = adds

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        send.count_stored()
        replies.delay_stored(send.call, self._delay_id)

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        refuse_delay(send.flow, send.call, send.topic, fault, self._delay_id, self._adds)


class AddedAnswers:
    """Of our clients, for an add: the id, and when the message is due."""

    __slots__ = ("_delay_id", "_due_ms")

    def __init__(self, delay_id: bytes, due_ms: int) -> None:
        self._delay_id = delay_id
        self._due_ms = due_ms

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        send.count_stored()
        send.call.reply(replies.delay_decided(self._delay_id, ADDED, self._due_ms, None))

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        refuse_delay(send.flow, send.call, send.topic, fault, self._delay_id, adds=True)


def refuse_delay(
    flow: Flow, call: Call, topic: KnownTopic | None, fault: SendRefusal, delay_id: bytes, adds: bool
) -> None:
    """Answer a sendDelaySync that is not stored, and count it; by a refused change no message is lost."""
    if adds:
        flow.counts.refused(None if topic is None else topic.name, fault)
    else:
        flow.counts.change_refused(fault)
    call.reply(replies.delay_refused(fault, echoed_id(fault.code, delay_id)))
