"""Outcomes on their way to the producer proxies that asked: records of the outcome topic."""

from __future__ import annotations

from collections.abc import Iterable

from backend.port import Backend
from backend.records import NewRecord
from ddmq_common.delays.command import encode_outcome
from ddmq_common.delivery import encode
from ddmq_common.names import OUTCOME_TOPIC
from delay_service.core.commands import OutcomeReply

_ID_END = 1 << 128


def tellable(backend: Backend, replies: Iterable[OutcomeReply]) -> list[OutcomeReply]:
    """Those whose queue is there."""
    info = backend.topic(OUTCOME_TOPIC)
    if info is None:
        return []
    return [reply for reply in replies if reply.queue_id < info.queues]


def outcome_record(reply: OutcomeReply, wall_ms: int) -> NewRecord:
    """The record that tells one outcome."""
    message_id = (reply.outcome.reply_id % _ID_END).to_bytes(16, "big")
    delivery = encode(b"", encode_outcome(reply.outcome), b"", None)
    return NewRecord(OUTCOME_TOPIC, reply.queue_id, message_id, wall_ms, delivery)
