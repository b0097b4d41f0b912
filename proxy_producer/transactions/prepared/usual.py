"""sendPrepared as nearly all are: one message without a delay to a topic that takes it, of a transaction
whose shard this proxy owns. The checks are in line, and the record goes straight to the backend; whatever is
not as usual takes the careful way (sends.py), which takes all that this takes.
"""

from __future__ import annotations

from collections.abc import Sequence
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
)
from proxy_producer.transactions.core.reservations import PrepareVerdict
from proxy_producer.transactions.core.transaction import HalfTaken
from proxy_producer.transactions.ends import used_elsewhere
from proxy_producer.transactions.prepared.admitted import Admitted
from proxy_producer.transactions.prepared.limits import IMMUNITY
from proxy_producer.transactions.service import Transactions


class UsualPrepares:
    """They belong to one producer proxy."""

    def __init__(self, transactions: Transactions, admission: Admission) -> None:
        self._transactions = transactions
        self._flow = transactions.flow
        self._known = admission.known
        self._usual = admission.usual

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
        topic = self._known.get(message.topic)
        group = transactions.groups.get(request.producerGroup)
        transaction = parse_id(request.transactionId or b"")
        properties = message.properties
        if (
            topic is None
            or group is None
            or transaction is None
            or topic.limiters
            or topic.trace is not None
            or (properties and IMMUNITY in properties)
        ):
            return False
        owned = transactions.owned_of(transaction)
        if owned is None or flow.bound_fault(call.frame_bytes) is not None:
            return False
        record = self._usual(message, topic, None)
        if record is None or isinstance(record, SendRefusal):
            return False
        if record.system is not None:
            identity = identity_in(record.system[IDENTITY], transaction)
            record.system = {IDENTITY: identity}
            record.message_id = id_by(identity, transaction)
        elif message.sequence is not None:
            return False
        held, size = owned.held, len(record.delivery)
        if held.core.admit_prepare(transaction, group, 1, size) is not PrepareVerdict.ADMITTED:
            return False
        admitted = Admitted(owned, transaction, group, 1, size)
        try:
            topic.turn = turn = topic.turn + 1
            key = record.key if topic.by_key else b""
            record.queue_id = choose(message.partitionId, message.hashId, topic.queues, turn, key)
            mark = HalfMark(transaction.hex(), group, topic.name, record.queue_id)
            answers = HalfAnswers(admitted, record, mark)
            half = half_record(held.number, record, mark)
            body_bytes = len(message.body or message.value)
            send = PendingSend(flow, call, half, deadline, body_bytes, True, topic, answers)
            send.on_settled = admitted.release
            send.send()
        except BaseException:
            admitted.release()
            raise
        if not send.done:
            flow.watch(send)
        return True


@dataclass(slots=True)
class HalfAnswers:
    """How the caller is answered, once the shard has taken the message in."""

    admitted: Admitted
    record: NewRecord
    mark: HalfMark

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        if is_elsewhere(self.record, result):
            self._tell(send, result, used_elsewhere())
            return
        half = half_message(self.record, self.mark, result.offset)
        self.admitted.take_in((half,), partial(self._taken, send, result))

    def _taken(
        self, send: PendingSend, result: AppendResult, taken: Sequence[HalfTaken], fault: SendRefusal | None
    ) -> None:
        if send.answered:
            return
        if fault is None:
            result = as_known(self.record, self.admitted.owned.held.number, result, taken[0])
        self._tell(send, result, fault)

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
