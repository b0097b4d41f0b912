"""sendPrepared as nearly all are: one message without a delay to a topic that takes it, of a transaction
whose shard this proxy owns. The checks are in line, and the record goes straight to the backend; whatever is
not as usual takes the careful way (sends.py), which takes all that this takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from backend.records import AppendResult, NewRecord
from ddmq_client.idl.codes import OK_TEXT
from ddmq_common.queue_choice import choose
from ddmq_common.send_identity import IDENTITY
from ddmq_rpc.api import Call
from proxy_producer import wire
from proxy_producer.admission import Admission
from proxy_producer.config import ProducerConfig
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.pending import PendingSend
from proxy_producer.transactions.asking import IDL
from proxy_producer.transactions.codec import (
    HalfMark,
    HalfMessage,
    as_known,
    half_record,
    id_by,
    identity_in,
    is_elsewhere,
    parse_id,
    shard_of,
)
from proxy_producer.transactions.core.shard import HalfTaken
from proxy_producer.transactions.deciding import Came, OwnedShard
from proxy_producer.transactions.ends import late, late_fault, used_elsewhere
from proxy_producer.transactions.prepared.tally import IMMUNITY
from proxy_producer.transactions.service import Transactions


class UsualPrepares:
    """They belong to one producer proxy."""

    def __init__(self, transactions: Transactions, admission: Admission, config: ProducerConfig) -> None:
        self._transactions = transactions
        self._flow = transactions.flow
        self._known = admission.known
        self._usual = admission.usual
        self._limits = config.transactions

    # One function of more than forty lines: it is the hot path, and each call costs it 0.05 µs.
    def prepare(self, call: Call, deadline: float) -> bool:
        """Accept it; False: it is not as usual."""
        request, transactions, flow = call.args.request, self._transactions, self._flow
        messages = request.messages
        if request.checkAfterMs is not None or request.dueTimes or flow.draining:
            return False
        if not messages or len(messages) != 1:
            return False
        message = messages[0]
        topic, shards = self._known.get(message.topic), transactions.shards
        group = transactions.groups.get(request.producerGroup)
        transaction = parse_id(request.transactionId or b"")
        properties = message.properties
        if (
            topic is None
            or group is None
            or transaction is None
            or not shards
            or topic.limiters
            or topic.trace is not None
            or (properties and IMMUNITY in properties)
        ):
            return False
        number = shard_of(transaction, shards)
        owned = transactions.owned(number)
        if owned is None or flow.bound_fault(call.frame_bytes) is not None:
            return False
        core = owned.held.core
        opened = core.open.get(transaction)
        if opened is None:
            if core.ended.get(transaction) is not None or core.full_for(group):
                return False
        elif opened.group != group or opened.deciding is not None:
            return False
        record = self._usual(message, topic, None)
        if record is None or isinstance(record, SendRefusal):
            return False
        known, size = (0, 0) if opened is None else (len(opened.offsets), opened.size)
        if known >= self._limits.messages_max or size + len(record.delivery) > self._limits.bytes_max:
            return False
        if record.system is not None:
            identity = identity_in(record.system[IDENTITY], transaction)
            record.system = {IDENTITY: identity}
            record.message_id = id_by(identity, transaction)
        elif message.sequence is not None:
            return False
        topic.turn = turn = topic.turn + 1
        key = record.key if topic.by_key else b""
        record.queue_id = choose(message.partitionId, message.hashId, topic.queues, turn, key)
        mark = HalfMark(transaction.hex(), group, topic.name, record.queue_id)
        answers = HalfAnswers(transactions, owned, record, mark, transaction)
        half = half_record(number, record, mark)
        body_bytes = len(message.body or message.value)
        send = PendingSend(flow, call, half, deadline, body_bytes, True, topic, answers)
        send.send()
        if not send.done:
            flow.watch(send)
        return True


@dataclass(slots=True)
class HalfAnswers:
    """How the caller is answered, once the shard has taken the message in."""

    transactions: Transactions
    owned: OwnedShard
    record: NewRecord
    mark: HalfMark
    transaction: bytes

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        held, fault = self.owned.held, None
        if is_elsewhere(self.record, result):
            fault = used_elsewhere()
        elif held.ready:
            taken = held.appended(half_message(self.record, self.mark, result.offset), self.transaction)
            if taken is HalfTaken.LATE:
                found = held.core.open[self.transaction]
                self.owned.deciding.wait(found, partial(self._decided, send, result))
                return
            fault = late_fault(taken, self.transaction, self.mark.group)
            result = as_known(self.record, held.number, result, taken)
        self._tell(send, result, fault)

    def _decided(self, send: PendingSend, result: AppendResult, came: Came) -> None:
        """The transaction was being ended when it came: it is a part where that was not to be."""
        self._tell(send, result, None if came.ended is None else late(self.transaction, "has ended"))

    def _tell(self, send: PendingSend, result: AppendResult, fault: SendRefusal | None) -> None:
        if fault is not None:
            send.answered = True
            self.refused(send, fault)
            return
        send.count_stored(before=result.first is not None)
        send.call.reply(
            IDL.PrepareResponse(
                code=0,
                msg=OK_TEXT,
                results=[wire.scheduled(self.record, result)],
                throughOffset=result.offset,
            )
        )

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        topic = send.topic
        send.flow.counts.refused(None if topic is None else topic.name, fault)
        answer: Any = wire.refused(fault)
        send.call.reply(IDL.PrepareResponse(code=int(fault.code), msg=fault.text, results=[answer]))


def half_message(record: NewRecord, mark: HalfMark, offset: int) -> HalfMessage:
    """One that was appended, as its shard holds it."""
    identity = record.system[IDENTITY] if record.system else ""
    return HalfMessage(
        offset, record.message_id, record.born_ms, record.flags, record.delivery, mark, record.key,
        record.tags, identity,
    )  # fmt: skip
