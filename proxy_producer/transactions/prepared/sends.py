"""sendPrepared: messages become half messages of a transaction, all of them or none.

They pass the checks, limits and rates of plain sends (admission.py, PREPARED). One message is appended, so
that the engine recognises a resend; several are committed together, and the shard recognises it. Either way
a message with a sequence or a key has the same message id in each send. Where this proxy does not own the
shard, the call goes to the proxy that does (waiting.py).

One plain message of a transaction whose shard this proxy owns takes a fast path (`_prepare_fast`).
The slow path's destination is here, too, because both paths must give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from backend.records import AppendResult, AppendStatus, NewRecord
from ddmq_client.idl import producer
from ddmq_client.idl.codes import FRAME_BYTES_MAX, OK_TEXT, Code
from ddmq_common.errors import TryLaterError
from ddmq_common.security.callers import Caller
from ddmq_common.send_identity import IDENTITY
from ddmq_rpc.access import find_sender, record_over
from ddmq_rpc.api import Call
from ddmq_rpc.codec import structs
from proxy_producer import wire
from proxy_producer.admission import DRAINING, Admission
from proxy_producer.batches import summarize_rejections
from proxy_producer.config import ProducerConfig, TransactionLimits
from proxy_producer.core.identity import identity_of, own_sequence
from proxy_producer.core.rejections import (
    SendRejection,
    build_illegal_rejection,
    build_rejection,
    quote_text,
    to_rejection,
)
from proxy_producer.flow import Flow
from proxy_producer.pending import Destination, PendingSend, SendMember
from proxy_producer.transactions.codec import (
    HalfMark,
    HalfMessage,
    half_identity,
    half_record,
    is_in_other_transaction,
    message_id_of,
    name_of,
    parse_id,
    with_first_copy,
)
from proxy_producer.transactions.core.reservations import PrepareVerdict
from proxy_producer.transactions.core.transaction import HalfVerdict
from proxy_producer.transactions.deciding import OwnedShard, TransactionEnd
from proxy_producer.transactions.ends import (
    OUTCOME_TEXTS,
    build_foreign_group_rejection,
    build_late_message_rejection,
    build_sequence_used_rejection,
    check_half_verdict,
)
from proxy_producer.transactions.legal import parse_transaction_id
from proxy_producer.transactions.prepared.waiting import WaitingPrepare
from proxy_producer.transactions.service import Transactions
from proxy_producer.wire import RequestKind, SendRequest

IDL = structs(producer)
IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
PASSING_BYTES = 512  # of a call, for what passing it on adds: any proxy rejects what one could not pass on


OnJudged = Callable[[Sequence[HalfVerdict], SendRejection | None], None]


@dataclass(slots=True)
class AdmittedPrepare:
    """The capacity that one prepare has reserved in its shard, until `release`."""

    owned: OwnedShard
    transaction: bytes
    group: str
    messages: int
    size: int
    released: bool = False

    def release(self) -> None:
        """Release the reserved capacity, after the backend settled the prepare or it failed before.

        May be called twice.
        """
        if not self.released:
            self.released = True
            self.owned.shard.release_prepare(self.transaction, self.messages, self.size)

    def add_halves(self, halves: Sequence[HalfMessage], then: OnJudged) -> None:
        """Add durable half messages to the shard; call `then(verdicts, rejection)`, perhaps later."""
        shard = self.owned.shard
        if not shard.claimed:
            then((), build_moved_rejection())
            return
        verdicts = [shard.add_appended(half, self.transaction) for half in halves]
        if HalfVerdict.AHEAD not in verdicts:
            self._judge_halves(verdicts, then)
            return

        def on_read(error: Exception | None) -> None:
            if error is not None or not shard.claimed:
                then((), build_moved_rejection())
            else:
                self._judge_halves([shard.add_appended(half, self.transaction) for half in halves], then)

        shard.when_read(max(half.offset for half in halves), on_read)

    def _judge_halves(self, verdicts: Sequence[HalfVerdict], then: OnJudged) -> None:
        rejections = [check_half_verdict(verdict, self.transaction, self.group) for verdict in verdicts]
        rejection = next(filter(None, rejections), None)
        opened = self.owned.shard.core.open.get(self.transaction)
        if rejection is not None or HalfVerdict.LATE not in verdicts or opened is None:
            then(verdicts, rejection)
            return

        def on_decided(result: TransactionEnd) -> None:
            """Report the half messages as parts of the transaction if its end failed, else as late."""
            then(
                verdicts,
                None
                if result.decision is None
                else build_late_message_rejection(self.transaction, "has ended"),
            )

        self.owned.deciding.wait(opened, on_decided)


def build_moved_rejection() -> SendRejection:
    """Return code 12 for a message that was stored while its transaction moved to another proxy."""
    what = "the transaction moved to another proxy while the message was being stored"
    return build_rejection(
        Code.TIMED_OUT, "shard_moved", what, "it may or may not be a part of it; send it again"
    )


def check_prepare_verdict(
    verdict: PrepareVerdict, owned: OwnedShard, transaction: bytes, group: str
) -> SendRejection | None:
    """Return the rejection for a shard's verdict; None for ADMITTED and LARGE."""
    if verdict is PrepareVerdict.FOREIGN:
        return build_foreign_group_rejection(group)
    if verdict is PrepareVerdict.DECIDING:
        return build_late_message_rejection(transaction, "is being ended")
    if verdict is PrepareVerdict.DECIDED:
        decision = owned.shard.core.decisions.get(transaction)
        return build_late_message_rejection(
            transaction, "has ended" if decision is None else OUTCOME_TEXTS[decision.outcome]
        )
    if verdict is PrepareVerdict.FULL:
        what = f"producer group {group!r} or its shard has as many open transactions as it may"
        allowed = "allowed: later, when some have ended (open_max)"
        return build_rejection(Code.BUSY, "transactions_open", what, allowed)
    if verdict is PrepareVerdict.CROWDED:
        what = "with the messages that are on their way the transaction would be too large"
        return build_rejection(
            Code.BUSY, "transaction_crowded", what, "send it again when those are answered"
        )
    return None


def check_transaction_size(
    limits: TransactionLimits, before: int, before_bytes: int, messages: int, size: int
) -> SendRejection | None:
    """Return the rejection of messages that would make a transaction too long, or None.

    `before`, `before_bytes`: the messages that it has already.
    """
    if before + messages <= limits.messages_max and before_bytes + size <= limits.bytes_max:
        return None
    what = f"the transaction would have {before + messages} messages with {before_bytes + size} bytes"
    if before:
        what += f", {before} of them from before"
    allowed = f"allowed: at most {limits.messages_max} messages and {limits.bytes_max} bytes together"
    return build_illegal_rejection("transaction_long", what, allowed)


class Prepare(NamedTuple):
    """A sendPrepared call that has passed all checks except those of its individual messages.

    `due_times`: whether its messages may be delayed. `sender`: the identity that prepares it.
    """

    transaction: bytes
    group: str
    check_after_ms: int
    messages: Sequence[Any]
    due_times: bool
    sender: str = ""


class PreparedSends:
    """Checks and accepts the calls of sendPrepared. There is one for each producer proxy."""

    def __init__(self, transactions: Transactions, admission: Admission, config: ProducerConfig) -> None:
        self._transactions = transactions
        self._flow = transactions.flow
        self._limits = config.transactions
        self._admission = admission

    def prepare(self, call: Call, deadline: float) -> None:
        """Accept or reject one call of sendPrepared."""
        if self._prepare_fast(call, deadline):
            return
        prepare = self._check_call(call)
        if isinstance(prepare, SendRejection):
            self._reject_call(call, prepare)
            return
        transactions = self._transactions
        is_owned = transactions.find_shard_of(prepare.transaction) is not None
        if is_owned and (over := self._check_quota(call, prepare.transaction)) is not None:
            self._reject_call(call, over)
            return
        if transactions.shards and not is_owned:
            self._wait_for_owner(call, deadline, prepare)
            return
        members = self._check_messages(prepare, call)
        if isinstance(members, SendRejection):
            retry = partial(self.prepare, call, deadline)
            if not self._flow.delay.presence.will_retry(members, retry):
                self._reject_call(call, members)
        elif is_owned:
            destination = PreparedDestination(self, prepare)
            PendingSend(self._flow, call, deadline, members, destination).start()
        else:  # there are no shards yet; a rejected call makes none
            self._wait_for_owner(call, deadline, prepare)

    # One function of more than forty lines: it is the hot path, and each call costs it 0.05 µs.
    def _prepare_fast(self, call: Call, deadline: float) -> bool:
        """Accept one plain message for a shard that this proxy owns; return False to take the slow path."""
        request, transactions, flow = call.args.request, self._transactions, self._flow
        messages = request.messages
        if request.checkAfterMs is not None or request.dueTimes or flow.draining:
            return False
        if not messages or len(messages) != 1:
            return False
        message = messages[0]
        topic = self._admission.cached_topics.get(message.topic)
        group = transactions.groups.get(request.producerGroup)
        transaction = parse_id(request.transactionId or b"")
        properties = message.properties
        if (
            topic is None
            or group is None
            or transaction is None
            or topic.limiters
            or (properties and IMMUNITY in properties)
        ):
            return False
        owned = transactions.find_shard_of(transaction)
        if owned is None or flow.check_bounds(call.frame_bytes) is not None:
            return False
        sender = _find_sender(call)
        if sender is not None and transactions.check_quota(transaction, sender) is not None:
            return False
        record = self._admission.make_record(message, topic, None, None)
        if record is None or isinstance(record, SendRejection):
            return False
        if record.system is not None:
            identity = half_identity(record.system[IDENTITY], transaction)
            record.system = {IDENTITY: own_sequence(identity, call)}
            record.message_id = message_id_of(identity, transaction)
        elif message.sequence is not None:
            return False
        shard, size = owned.shard, len(record.delivery)
        if shard.core.admit_prepare(transaction, group, 1, size) is not PrepareVerdict.ADMITTED:
            return False
        admitted = AdmittedPrepare(owned, transaction, group, 1, size)
        try:
            body_bytes, partition_id, hash_id = (
                len(message.body or message.value), message.partitionId, message.hashId,
            )  # fmt: skip
            topic.round_robin += 1
            record.queue_id = topic.choose_queue(record.key, partition_id, hash_id)
            mark = HalfMark(
                transaction.hex(), group, topic.name, record.queue_id,
                sender="" if sender is None else sender.name,
            )  # fmt: skip
            destination = PreparedDestination(self, None, admitted, [(record, mark)])
            member = SendMember(0, record, body_bytes, partition_id, hash_id, topic, None)
            send = PendingSend(flow, call, deadline, [member], destination)
            send.append((half_record(shard.number, record, mark),))
        except BaseException:
            admitted.release()
            raise
        if not send.done:
            flow.watch(send)
        return True

    def _wait_for_owner(self, call: Call, deadline: float, prepare: Prepare) -> None:
        """Forward a call to the owner of its shard, as soon as there is one."""
        WaitingPrepare(
            self._transactions, call, deadline, prepare.transaction, self.prepare, self._reject_call
        ).start()

    def _reject_call(self, call: Call, rejection: SendRejection) -> None:
        """Answer a call with a rejection and count its messages."""
        reject_prepare(self._flow, call, rejection, len(call.args.request.messages or ()))

    # --- checks

    def _check_quota(self, call: Call, transaction: bytes) -> SendRejection | None:
        """Return the rejection of a call that begins one more transaction than its identity may have open."""
        sender = _find_sender(call)
        over = None if sender is None else self._transactions.check_quota(transaction, sender)
        if over is None:
            return None
        record_over(call, over, sender)
        return SendRejection(Code.BUSY, "quota", over)

    def _check_call(self, call: Call) -> SendRejection | Prepare:
        transactions, request = self._transactions, call.args.request
        if self._flow.draining:
            return DRAINING
        if not request.messages:
            return build_illegal_rejection("prepare", "the request has no messages", "allowed: 1 or more")
        rejection = transactions.check_atomic_support()
        if rejection is not None:
            return rejection
        transaction = parse_transaction_id(request.transactionId)
        if isinstance(transaction, SendRejection):
            return transaction
        rejection = transactions.check_group(request.producerGroup)
        if rejection is not None:
            return rejection
        after_ms = self._read_check_after(request)
        if isinstance(after_ms, SendRejection):
            return after_ms
        if call.frame_bytes > FRAME_BYTES_MAX - PASSING_BYTES:
            allowed = f"allowed: at most {FRAME_BYTES_MAX - PASSING_BYTES}"
            return build_illegal_rejection(
                "prepare_long", f"the request has {call.frame_bytes} bytes", allowed
            )
        rejection = check_transaction_size(self._limits, 0, 0, len(request.messages), 0)
        rejection = rejection or self._flow.check_bounds(call.frame_bytes)
        group = request.producerGroup.decode()
        sender = _find_sender(call)
        return rejection or Prepare(
            transaction, group, after_ms, request.messages, bool(request.dueTimes),
            "" if sender is None else sender.name,
        )  # fmt: skip

    def _read_check_after(self, request: Any) -> int | SendRejection:
        """Return the time until the group is first asked in ms (-1: the proxy's default), or a rejection."""
        after_ms, most = request.checkAfterMs, self._limits.age_ms_max
        if after_ms is not None:
            if 0 <= after_ms <= most:
                return int(after_ms)
            return build_illegal_rejection(
                "check_after", f"checkAfterMs is {after_ms}", f"allowed: 0 to {most}"
            )
        for message in request.messages:
            if message.properties and IMMUNITY in message.properties:
                text = message.properties[IMMUNITY]
                if text.isdigit() and len(text) < 10 and int(text) * 1_000 <= most:
                    return int(text) * 1_000
                what = f"property {IMMUNITY.decode()} has the value {quote_text(text)}"
                return build_illegal_rejection(
                    "check_after", what, f"allowed: whole seconds from 0 to {most // 1_000}"
                )
        return -1

    def _check_messages(self, prepare: Prepare, call: Call) -> SendRejection | list[SendMember]:
        messages, count = prepare.messages, len(prepare.messages)
        due_times = range(count) if prepare.due_times else ()
        members, rejections = self._admission.check_messages(
            RequestKind.PREPARED, messages, due_times=due_times
        )
        if rejections:
            return rejections[0] if count == 1 else summarize_rejections(rejections, count, 0)
        for member in members:
            _set_identity(member.record, messages[member.index], prepare.transaction, call)
            if member.request is not None:
                member.request.call = None if call.caller is None else call
                member.request.identity = (member.record.system or {}).get(IDENTITY)
        return members

    # --- accepted calls whose topics exist

    def admit_records(
        self, prepare: Prepare, records: Sequence[NewRecord]
    ) -> SendRejection | AdmittedPrepare:
        """Reserve capacity for the records in their transaction's shard, or return the rejection."""
        transaction, group = prepare.transaction, prepare.group
        owned = self._transactions.find_shard_of(transaction)
        if owned is None:
            return to_rejection(TryLaterError("the transaction moves to another proxy; send it again"))
        core, messages = owned.shard.core, len(records)
        size = sum([len(record.delivery) for record in records])
        verdict = core.admit_prepare(transaction, group, messages, size)
        if verdict in (PrepareVerdict.LARGE, PrepareVerdict.CROWDED):  # a resend takes no more room
            messages, size = _measure_new(owned, transaction, records)
            verdict = core.admit_prepare(transaction, group, messages, size)
        if verdict is PrepareVerdict.ADMITTED:
            return AdmittedPrepare(owned, transaction, group, messages, size)
        opened = core.open.get(transaction)
        before = (0, 0) if opened is None else (len(opened.offsets), opened.size)
        rejection = check_prepare_verdict(verdict, owned, transaction, group)
        return (
            rejection
            or check_transaction_size(self._limits, *before, messages, size)
            or build_moved_rejection()
        )

    def make_mark(self, prepare: Prepare, record: NewRecord, request: SendRequest | None) -> HalfMark:
        """Build the system property of a half record: its transaction, and its message's topic and delay."""
        level, command, wait_ms = 0, None, -1
        if request is not None and request.command is not None:
            command = self._flow.delay.complete_command(request)
            wait_ms = max(command.due_ms - request.now_ms, 0) if request.relative else -1
        elif request is not None:
            level = request.level
        return HalfMark(
            prepare.transaction.hex(), prepare.group, record.topic, record.queue_id, level, command, wait_ms,
            prepare.check_after_ms, prepare.sender,
        )  # fmt: skip


def _find_sender(call: Call) -> Caller | None:
    """Return the caller who prepares: of a forwarded call, the client's."""
    request = call.args.request
    return call.caller if request.forwardedBy is None else find_sender(call, request.onBehalfOf)


def _set_identity(record: NewRecord, message: Any, transaction: bytes, call: Call) -> None:
    """Set the identity and the message id of a half message that has a key or a sequence.

    The shard uses them to detect duplicates even if the engine does not.
    """
    identity = None if not record.system else record.system[IDENTITY]
    if identity is None and message.sequence is not None:
        stated = identity_of(message, None, None)
        identity = stated if isinstance(stated, str) else None
    if identity is not None:
        identity = half_identity(identity, transaction)
        record.system = {IDENTITY: own_sequence(identity, call)}
        record.message_id = message_id_of(identity, transaction)


def _measure_new(owned: OwnedShard, transaction: bytes, records: Sequence[NewRecord]) -> tuple[int, int]:
    """Return the number and bytes of the records that the transaction does not have yet."""
    opened = owned.shard.core.open.get(transaction)
    identities = {} if opened is None else opened.identities
    sizes = [
        len(record.delivery)
        for record in records
        if not record.system or name_of(record.system[IDENTITY]) not in identities
    ]
    return len(sizes), sum(sizes)


class PreparedDestination(Destination):
    """Stores the messages of one sendPrepared as half records and adds them to their shard."""

    def __init__(
        self,
        sends: PreparedSends,
        prepare: Prepare | None,
        admitted: AdmittedPrepare | None = None,
        halves: Sequence[tuple[NewRecord, HalfMark]] = (),
    ) -> None:
        super().__init__()
        self._sends = sends
        self._prepare = prepare  # None on the fast path, which has admitted its message
        self._admitted = admitted
        self._halves = halves

    def store_messages(self, send: PendingSend) -> None:
        """Append or commit the half records, if the shard has capacity for them."""
        members, prepare = send.members, self._prepare
        assert prepare is not None
        health = None if len(members) == 1 else send.flow.backend.health()
        if health is not None and not health.ready:  # a commit would get past a disk that is nearly full
            send.reject_unsent(build_rejection(Code.BUSY, "backend_bound", health.reason, "send it again"))
            return
        admitted = self._sends.admit_records(prepare, [member.record for member in members])
        if isinstance(admitted, SendRejection):
            send.reject_unsent(admitted)
            return
        self._admitted = admitted
        shard, make_mark = admitted.owned.shard.number, self._sends.make_mark
        try:
            self._halves = [
                (member.record, make_mark(prepare, member.record, member.request)) for member in members
            ]
            records = [half_record(shard, record, mark) for record, mark in self._halves]
            send.store_records(records, atomic=len(records) > 1)
        except BaseException:
            admitted.release()
            raise

    def settle_send(self, send: PendingSend) -> None:
        """Answer unless the deadline has passed, and release the reserved capacity."""
        super().settle_send(send)
        if self._admitted is not None:
            self._admitted.release()

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        """Add stored messages to their transaction, then answer. The shard may reject them."""
        halves = []
        for (record, mark), result in zip(self._halves, results, strict=False):
            if result.status is not AppendStatus.STORED:
                break
            if is_in_other_transaction(record, result):
                self._reply(send, results, build_sequence_used_rejection())
                return
            halves.append(_half_message(record, mark, result.offset))
        if self._admitted is None or not halves or len(halves) != len(results):
            self._reply(send, results, None)
        else:
            self._admitted.add_halves(halves, partial(self._on_judged, send, results))

    def _on_judged(
        self,
        send: PendingSend,
        results: Sequence[AppendResult],
        verdicts: Sequence[HalfVerdict],
        rejection: SendRejection | None,
    ) -> None:
        if send.answered or self._admitted is None:
            return
        if rejection is None:
            shard = self._admitted.owned.shard.number
            judged = zip(self._halves, results, verdicts, strict=True)
            results = [
                with_first_copy(record, shard, result, verdict) for (record, _), result, verdict in judged
            ]
        self._reply(send, results, rejection)

    def _reply(
        self, send: PendingSend, results: Sequence[AppendResult], rejection: SendRejection | None
    ) -> None:
        if rejection is not None:
            send.rejections, results = dict.fromkeys(range(send.size), rejection), ()
        stored = send.count_stored(results)
        if send.rejections:
            rejection = (
                summarize_rejections(send.rejections, send.size, stored)
                if send.size > 1
                else send.rejections[0]
            )
            topic = send.members[0].topic if send.size == 1 else None
            reject_prepare(send.flow, send.call, rejection, send.size, None if topic is None else topic.name)
            return
        answers, through = [], -1
        for (record, _), result in zip(self._halves, results, strict=True):
            answers.append(wire.scheduled_result(record, result))
            through = max(through, result.offset)
        response = IDL.PrepareResponse(code=0, msg=OK_TEXT, results=answers, throughOffset=through)
        send.call.reply(response)


def reject_prepare(
    flow: Flow, call: Call, rejection: SendRejection, messages: int, topic_name: str | None = None
) -> None:
    """Answer a call with a rejection and count its messages."""
    flow.counts.count_rejected(topic_name, rejection, max(messages, 1))
    results = [wire.rejected_result(rejection)] * messages
    call.reply(IDL.PrepareResponse(code=int(rejection.code), msg=rejection.text, results=results))


def _half_message(record: NewRecord, mark: HalfMark, offset: int) -> HalfMessage:
    """Return an appended record as the HalfMessage of its shard."""
    identity = record.system[IDENTITY] if record.system else ""
    return HalfMessage(
        offset, record.message_id, record.born_ms, record.flags, record.delivery, mark, record.key,
        record.tags, identity,
    )  # fmt: skip
