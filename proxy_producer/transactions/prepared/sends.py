"""sendPrepared: messages become half messages of a transaction, all of them or none.

They pass the checks, limits and rates of plain sends (admission.py, PREPARED). One message is appended, so
that the engine recognises a resend; several are committed together, and the shard recognises it. Either way
a message that says which one it is (sequence, key) has the same message id in each send. Where this proxy
does not own the shard, the call goes to the one that does (waiting.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from backend.records import AppendResult, AppendStatus, CommitBatch, NewRecord
from ddmq_client.idl import producer
from ddmq_client.idl.codes import FRAME_BYTES_MAX, OK_TEXT, Code
from ddmq_common.errors import TryLaterError
from ddmq_common.send_identity import IDENTITY
from ddmq_rpc.api import Call, Fault
from ddmq_rpc.codec import structs
from proxy_producer import wire
from proxy_producer.admission import DRAINING, Admission
from proxy_producer.batches import worst
from proxy_producer.config import ProducerConfig
from proxy_producer.core.identity import identity_of
from proxy_producer.core.refusals import SendRefusal, illegal, refusal, refusal_of, shown
from proxy_producer.delay.context import DelayContext
from proxy_producer.delay.sends import DelaySends
from proxy_producer.delaying import DelayingBatch
from proxy_producer.pending import DelayLevels
from proxy_producer.transactions.codec import (
    HalfMark,
    as_known,
    half_record,
    id_by,
    identity_in,
    is_elsewhere,
    name_of,
)
from proxy_producer.transactions.core.reservations import PrepareVerdict
from proxy_producer.transactions.core.transaction import HalfTaken
from proxy_producer.transactions.deciding import OwnedShard
from proxy_producer.transactions.ends import used_elsewhere
from proxy_producer.transactions.legal import legal_id
from proxy_producer.transactions.prepared.admitted import Admitted, moved_fault, verdict_fault
from proxy_producer.transactions.prepared.limits import IMMUNITY, long_fault
from proxy_producer.transactions.prepared.usual import UsualPrepares, half_message
from proxy_producer.transactions.prepared.waiting import WaitingPrepare
from proxy_producer.transactions.service import Transactions
from proxy_producer.wire import BatchMember, RequestKind, SendRequest, request_of

IDL = structs(producer)
PASSING_BYTES = 512  # of a call, for what passing it on adds: any proxy refuses what one could not pass on


class PreparedSends:
    """They belong to one producer proxy."""

    def __init__(
        self,
        transactions: Transactions,
        admission: Admission,
        delay: DelayContext,
        delay_sends: DelaySends,
        levels: DelayLevels,
        config: ProducerConfig,
        new_id: Callable[[], bytes],
        wall_ms: Callable[[], int],
    ) -> None:
        self.transactions = transactions
        self.levels = levels
        self.delay = delay
        self.limits = config.transactions
        self._admission = admission
        self._placed = delay_sends.placed
        self._new_id = new_id
        self._wall_ms = wall_ms
        self._short = UsualPrepares(transactions, admission)

    def prepare(self, call: Call, deadline: float) -> None:
        """One call of sendPrepared."""
        if self._short.prepare(call, deadline):
            return
        found = self._legal(call)
        size = len(call.args.request.messages or ())
        if isinstance(found, SendRefusal):
            refuse(self.transactions, call, found, size)
            return
        transactions = self.transactions
        is_owned = transactions.owned_of(found.transaction) is not None
        if transactions.shards and not is_owned:
            self._wait_for_owner(call, deadline, found)
            return
        prepared = self._members(found)
        if isinstance(prepared, SendRefusal):
            again = partial(self.prepare, call, deadline)
            if prepared.code is Code.NO_SERVICE and self.delay.presence.look_again(again):
                return  # a delay service that has just begun is noticed before it is refused
            refuse(self.transactions, call, prepared, size)
            return
        if not is_owned:  # there are no shards yet; what is refused makes none
            self._wait_for_owner(call, deadline, found)
            return
        members, asked = prepared
        PendingPrepare(self, call, deadline, members, asked, found).start()

    def _wait_for_owner(self, call: Call, deadline: float, prepare: Prepare) -> None:
        """Pass a call on to the owner of its shard, as soon as there is one."""
        transaction = prepare.transaction
        WaitingPrepare(
            self.transactions, call, deadline, transaction, self.prepare, self._refuse_call
        ).start()

    def _refuse_call(self, call: Call, fault: SendRefusal) -> None:
        refuse(self.transactions, call, fault, len(call.args.request.messages))

    def _legal(self, call: Call) -> SendRefusal | Prepare:
        transactions, request = self.transactions, call.args.request
        if transactions.flow.draining:
            return DRAINING
        if not request.messages:
            return illegal("prepare", "the request has no messages", "allowed: 1 or more")
        fault = transactions.atomic_fault()
        if fault is not None:
            return fault
        transaction = legal_id(request.transactionId)
        if isinstance(transaction, SendRefusal):
            return transaction
        fault = transactions.group_fault(request.producerGroup)
        if fault is not None:
            return fault
        after_ms = self._check_after(request)
        if isinstance(after_ms, SendRefusal):
            return after_ms
        if call.frame_bytes > FRAME_BYTES_MAX - PASSING_BYTES:
            allowed = f"allowed: at most {FRAME_BYTES_MAX - PASSING_BYTES}"
            return illegal("prepare_long", f"the request has {call.frame_bytes} bytes", allowed)
        fault = long_fault(self.limits, 0, 0, len(request.messages), 0)
        fault = fault or transactions.flow.bound_fault(call.frame_bytes)
        group = request.producerGroup.decode()
        return fault or Prepare(transaction, group, after_ms, request.messages, bool(request.dueTimes))

    def _check_after(self, request: Any) -> int | SendRefusal:
        """After how many ms the group is first asked; -1: as the proxy is set."""
        after_ms, most = request.checkAfterMs, self.limits.age_ms_max
        if after_ms is not None:
            if 0 <= after_ms <= most:
                return int(after_ms)
            return illegal("check_after", f"checkAfterMs is {after_ms}", f"allowed: 0 to {most}")
        for message in request.messages:
            if message.properties and IMMUNITY in message.properties:
                text = message.properties[IMMUNITY]
                if text.isdigit() and len(text) < 10 and int(text) * 1_000 <= most:
                    return int(text) * 1_000
                what = f"property {IMMUNITY.decode()} has the value {shown(text)}"
                return illegal("check_after", what, f"allowed: whole seconds from 0 to {most // 1_000}")
        return -1

    def _members(self, prepare: Prepare) -> SendRefusal | tuple[list[BatchMember], dict[int, SendRequest]]:
        """The legal messages, and by place what those asked for that wait; or the first fault."""
        admission, born_ms = self._admission, self._wall_ms()
        members: list[BatchMember] = []
        asked: dict[int, SendRequest] = {}
        for place, message in enumerate(prepare.messages):
            topic, request = None if prepare.due_times else admission.known.get(message.topic), None
            found = None if topic is None else admission.usual(message, topic, born_ms)
            if found is None:
                identity = admission.identity_of(message, message.properties)
                request = request_of(RequestKind.PREPARED, message, born_ms, 0, identity)
                request.due_times = prepare.due_times
                found = admission.fault(request) or request.record(self._new_id())
            if isinstance(found, SendRefusal):
                return (
                    found if len(prepare.messages) == 1 else worst({place: found}, len(prepare.messages), 0)
                )
            self._identify(found, message, prepare.transaction)
            if request is not None and (request.level or request.command is not None):
                asked[place] = request
                request.identity = (found.system or {}).get(IDENTITY)
            body = message.body or message.value
            chronos = request is not None and request.chronos
            members.append(BatchMember(place, found, len(body), message.partitionId, message.hashId, chronos))
        return members, asked

    def _identify(self, record: NewRecord, message: Any, transaction: bytes) -> None:
        """What it is known by among the half messages; also where the engine itself knows no message again:
        there its shard does."""
        identity = None if not record.system else record.system[IDENTITY]
        if identity is None and message.sequence is not None:
            found = identity_of(message, None)
            identity = found if isinstance(found, str) else None
        if identity is not None:
            identity = identity_in(identity, transaction)
            record.system = {IDENTITY: identity}
            record.message_id = id_by(identity, transaction)

    # --- one that was accepted, and whose topics are there

    def admit_records(self, prepare: Prepare, records: Sequence[NewRecord]) -> SendRefusal | Admitted:
        """Reserve room for messages in their transaction's shard, or return why it takes none of them."""
        owned, transaction, group = (
            self.transactions.owned_of(prepare.transaction), prepare.transaction, prepare.group,
        )  # fmt: skip
        if owned is None:
            return refusal_of(TryLaterError("the transaction moves to another proxy; send it again"))
        core, messages = owned.held.core, len(records)
        size = sum([len(record.delivery) for record in records])
        verdict = core.admit_prepare(transaction, group, messages, size)
        if verdict in (
            PrepareVerdict.LARGE,
            PrepareVerdict.CROWDED,
        ):  # what was sent before takes no more room
            messages, size = self._measure_new(owned, transaction, records)
            verdict = core.admit_prepare(transaction, group, messages, size)
        if verdict is PrepareVerdict.ADMITTED:
            return Admitted(owned, transaction, group, messages, size)
        opened = core.open.get(transaction)
        before = (0, 0) if opened is None else (len(opened.offsets), opened.size)
        fault = verdict_fault(verdict, owned, transaction, group)
        return fault or long_fault(self.limits, *before, messages, size) or moved_fault()

    def _measure_new(
        self, owned: OwnedShard, transaction: bytes, records: Sequence[NewRecord]
    ) -> tuple[int, int]:
        """Count the messages that the transaction does not have yet, and their bytes."""
        opened = owned.held.core.open.get(transaction)
        identities = {} if opened is None else opened.identities
        sizes = [
            len(record.delivery)
            for record in records
            if not record.system or name_of(record.system[IDENTITY]) not in identities
        ]
        return len(sizes), sum(sizes)

    def mark(self, prepare: Prepare, record: NewRecord, request: SendRequest | None) -> HalfMark:
        """What the half record says."""
        digits, level, command, wait_ms = prepare.transaction.hex(), 0, None, -1
        if request is not None and request.command is not None:
            command = self._placed(request, request.command)
            wait_ms = max(command.due_ms - request.now_ms, 0) if request.relative else -1
        elif request is not None:
            level = request.level
        return HalfMark(
            digits,
            prepare.group,
            record.topic,
            record.queue_id,
            level,
            command,
            wait_ms,
            prepare.check_after_ms,
        )


class Prepare(NamedTuple):
    """One call, checked but for its messages."""

    transaction: bytes
    group: str
    check_after_ms: int
    messages: Sequence[Any]
    due_times: bool


def refuse(transactions: Transactions, call: Call, fault: SendRefusal, messages: int) -> None:
    """None of the call's messages is stored."""
    transactions.flow.counts.refused(None, fault, max(messages, 1))
    answer = wire.refused(fault)
    call.reply(IDL.PrepareResponse(code=int(fault.code), msg=fault.text, results=[answer] * messages))


class PendingPrepare(DelayingBatch):
    """State of one call; making one accepts it."""

    __slots__ = ("_admitted", "_halves", "_prepare", "_sends", "_stored")

    def __init__(
        self,
        sends: PreparedSends,
        call: Call,
        deadline: float,
        members: list[BatchMember],
        asked: Mapping[int, SendRequest],
        prepare: Prepare,
    ) -> None:
        super().__init__(sends.transactions.flow, sends.delay, sends.levels, call, deadline, members, asked)
        self._sends = sends
        self._prepare = prepare
        self._admitted: Admitted | None = None
        self._halves: list[tuple[NewRecord, HalfMark]] = []
        self._stored: list[NewRecord] = []

    def _store(self) -> None:
        health = None if len(self.members) == 1 else self.flow.backend.health()
        if health is not None and not health.ready:  # a commit would get past a disk that is nearly full
            self._refuse_unsent(refusal(Code.BUSY, "backend_bound", health.reason, "send it again"))
            return
        admitted = self._sends.admit_records(self._prepare, [member.record for member in self.members])
        if isinstance(admitted, SendRefusal):
            self._refuse_unsent(admitted)
            return
        self._admitted = admitted
        shard = admitted.owned.held.number
        try:
            self._choose_queues()
            records = self._stored = [half_record(shard, record, mark) for record, mark in self._halves]
            self.sent = True
            if len(records) == 1:
                self.flow.backend.append(records, self.deadline, self)
            else:
                self.flow.backend.commit(CommitBatch(records), self.deadline, self)
        except BaseException:
            admitted.release()
            self._forget()
            raise

    def settled(self) -> None:
        """The backend's answers are here, perhaps after the caller's."""
        super().settled()
        if self._admitted is not None:
            self._admitted.release()

    def _choose_queues(self) -> None:
        super()._choose_queues()
        for member in self.members:
            mark = self._sends.mark(self._prepare, member.record, self._asked.get(member.place))
            self._halves.append((member.record, mark))

    # --- the answer

    def _records(self) -> list[NewRecord]:
        return self._stored

    def _finish(self, results: Sequence[AppendResult]) -> None:
        """Tell the shard, and answer."""
        if results and not self.faults and all(one.status is AppendStatus.STORED for one in results):
            self._hand_over(results)
        else:
            self._reply(results, None)

    def _hand_over(self, results: Sequence[AppendResult]) -> None:
        """The shard takes them in; it may say that they are no part of anything."""
        pairs = list(zip(self._halves, results, strict=True))
        if self._admitted is None or any(is_elsewhere(record, result) for (record, _), result in pairs):
            self._reply(results, used_elsewhere())
            return
        halves = [half_message(record, mark, result.offset) for (record, mark), result in pairs]
        self._admitted.take_in(halves, partial(self._taken, results))

    def _taken(
        self, results: Sequence[AppendResult], taken: Sequence[HalfTaken], fault: SendRefusal | None
    ) -> None:
        if self.answered or self._admitted is None:
            return
        if fault is None:
            shard = self._admitted.owned.held.number
            each = zip(self._halves, results, taken, strict=True)
            results = [as_known(record, shard, result, what) for (record, _), result, what in each]
        self._reply(results, fault)

    def _reply(self, results: Sequence[AppendResult], fault: SendRefusal | None) -> None:
        """Count, and answer."""
        if fault is not None:
            self._fail_all(fault)
            results = ()
        self.answered = True
        stored = self._count_stored(results)
        if self.faults:
            fault = worst(self.faults, self.size, stored) if self.size > 1 else self.faults[0]
            refuse(self._sends.transactions, self.call, fault, self.size)
            return
        pairs = zip(self.members, results, strict=True)
        self.call.reply(
            IDL.PrepareResponse(
                code=0,
                msg=OK_TEXT,
                results=[wire.scheduled(member.record, result) for member, result in pairs],
                throughOffset=max(result.offset for result in results),
            )
        )

    def _forget(self) -> None:
        """The backend raised: it will not settle this."""
        if not self.done:
            self.done = True
            self.answered = True
            self.flow.settled(self, self.frame_bytes)
            self.call.fault(Fault.INTERNAL_ERROR, "the prepare failed inside the proxy")
