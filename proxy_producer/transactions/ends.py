"""PendingEnd: one accepted endTransaction, at the shard that this proxy owns or at the proxy that owns it.

It is answered once. For a transaction that has ended already, the answer is its end: code 0 if the call
requested that end, else 11. An unknown transaction is looked up among the op records before the answer is
"never there" or "no longer known".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from backend.completion import Completion
from backend.records import Bounds, QueueRef, ReadBatch, StoredRecord
from ddmq_client.idl import producer
from ddmq_client.idl.codes import FAILED_PREFIX, OK_TEXT, Code, TransactionAction, TransactionOutcome
from ddmq_common.errors import DamagedError, TryLaterError
from ddmq_common.names import OP_TOPIC
from ddmq_rpc.api import Call
from ddmq_rpc.codec import structs
from proxy_producer.core.rejections import (
    SendRejection,
    build_illegal_rejection,
    build_rejection,
    to_rejection,
)
from proxy_producer.flow import Flow
from proxy_producer.transactions.codec import began_ms, read_op, shard_of
from proxy_producer.transactions.context import TransactionCounts
from proxy_producer.transactions.core.decisions import TransactionDecision, began_after
from proxy_producer.transactions.core.transaction import HalfVerdict, OpenTransaction
from proxy_producer.transactions.deciding import OwnedShard, TransactionEnd
from proxy_producer.transactions.owners import OwnerAddresses, Owners

IDL = structs(producer)
REQUESTED_OUTCOMES = {
    TransactionAction.COMMIT: TransactionOutcome.COMMITTED,
    TransactionAction.ROLLBACK: TransactionOutcome.ROLLED_BACK,
}
OUTCOME_TEXTS = {
    TransactionOutcome.COMMITTED: "was committed",
    TransactionOutcome.ROLLED_BACK: "was rolled back",
    TransactionOutcome.NEVER_THERE: "was never there: no message of it is stored",
    TransactionOutcome.NO_LONGER_KNOWN: "is no longer known: it is older than what is remembered",
    TransactionOutcome.DEAD_LETTER: "is in the dead-letter topic of transactions",
    TransactionOutcome.OPEN: "is open",
}


class EndContext(NamedTuple):
    """The components of the transaction service that a PendingEnd uses.

    `find_ready_shard(number)`: that shard, if this proxy owns it and has read all of it. `shards()`: the
    number of shards; 0 if unknown.
    """

    flow: Flow
    owners: Owners
    counts: TransactionCounts
    find_ready_shard: Callable[[int], OwnedShard | None]
    shards: Callable[[], int]


class PendingEnd:
    """One accepted call of endTransaction; `start` processes it. `deadline`: monotonic seconds."""

    __slots__ = (
        "_began", "_service", "action", "answered", "call", "deadline", "group", "request", "transaction",
    )  # fmt: skip

    def __init__(
        self,
        service: EndContext,
        call: Call,
        transaction: bytes,
        group: str,
        action: TransactionAction,
        deadline: float,
    ) -> None:
        self._service = service
        self._began = False  # whether this call decided the transaction
        self.call = call
        self.request: Any = call.args.request
        self.transaction = transaction
        self.group = group
        self.action = action
        self.deadline = deadline
        self.answered = False

    def start(self) -> None:
        """Count the call as in flight, then end the transaction here or forward the call to the shard's
        owner."""
        service, flow = self._service, self._service.flow
        flow.inflight += 1
        flow.inflight_bytes += self.call.frame_bytes
        shards = service.shards()
        if not shards:
            self._answer_unknown()
            return
        number = shard_of(self.transaction, shards)
        owned = service.find_ready_shard(number)
        if owned is not None:
            through = self.request.throughOffset
            if through is None:
                owned.shard.when_all_read(lambda error: self._on_shard_read(owned, error))
            elif owned.shard.core.must_read(through):
                owned.shard.when_read(through, lambda error: self._on_shard_read(owned, error))
            else:
                self._on_shard_read(owned, None)
        elif self.request.forwardedBy is not None:
            self._reject_unowned(number)
        else:
            service.owners.fetch_addresses().then(lambda addresses: self._pass_on(number, addresses))
        if not self.answered:
            flow.watch(self)

    def expire(self) -> None:
        """Answer at the deadline that the outcome is unknown. A commit in flight continues."""
        what = "no answer in time; the transaction may have ended"
        self._reject_end(build_rejection(Code.TIMED_OUT, "swept", what, "ask again"))

    # --- elsewhere

    def _answer_unknown(self) -> None:
        """Answer a call while the topics of transactions do not exist here."""
        if self.request.throughOffset is None and self.request.check is None:
            self._answer_outcome(TransactionOutcome.NEVER_THERE)
        else:
            text = "the topics of transactions are not known here; ask again"
            self._reject_end(to_rejection(TryLaterError(text)))

    def _reject_unowned(self, number: int) -> None:
        self._service.owners.forget()
        text = f"shard {number} of transactions is between two owners; ask again"
        self._reject_end(to_rejection(TryLaterError(text)))

    def _pass_on(self, number: int, addresses: Completion[OwnerAddresses]) -> None:
        if self.answered:
            return
        owners = self._service.owners
        address = "" if addresses.error is not None else addresses.value.get(number, "")
        if not address or address == owners.address:
            self._reject_unowned(number)
            return
        original = self.request
        request = IDL.EndTransactionRequest(
            **{name: getattr(original, name) for name in PASSED_ON}, forwardedBy=owners.address or "-"
        )
        owners.call(address, "endTransaction", request, self._on_owner_answer)

    def _on_owner_answer(self, answer: Any, error: Exception | None) -> None:
        if self.answered:
            return
        if error is not None or answer is None or answer.code == Code.SHUTTING_DOWN:
            self._service.owners.forget()  # it may have moved
            error = TryLaterError("the proxy that owns the transaction is shutting down; ask again")
            self._reject_end(to_rejection(error or error))
        else:
            self._reply_once(answer)

    # --- here

    def _on_shard_read(self, owned: OwnedShard, error: Exception | None) -> None:
        if self.answered:
            return
        if error is not None:
            self._reject_end(to_rejection(error))
            return
        core = owned.shard.core
        transaction = core.open.get(self.transaction)
        if transaction is not None:
            self._end(owned, transaction)
            return
        decision = core.decisions.get(self.transaction)
        if decision is not None:
            self._answer_decision(decision)
        elif core.decisions.covers_transaction(
            began_ms(self.transaction), self._service.flow.backend.clock_ms()
        ):
            self._answer_outcome(TransactionOutcome.NEVER_THERE)
        else:
            Lookup(self, self._service, owned.shard.number, core.decisions.damaged_ms).start()

    def _end(self, owned: OwnedShard, transaction: OpenTransaction) -> None:
        outcome = REQUESTED_OUTCOMES.get(self.action)
        check = self.request.check
        if transaction.group != self.group:
            self._reject_end(build_foreign_group_rejection(self.group))
        elif check is not None and not 1 <= check <= transaction.checks:
            what = f"check is {check}, and {transaction.checks} checks of this transaction were handed out"
            self._reject_end(
                build_illegal_rejection("check_unknown", what, "allowed: the number of one of these")
            )
        elif outcome is None:
            self._answer_outcome(TransactionOutcome.OPEN)
        elif transaction.deciding is not None:
            owned.deciding.wait(transaction, self._on_result)
        else:
            self._began = True
            owned.deciding.end(transaction, outcome, self._on_result, messages=self.request.messages or 0)

    def _on_result(self, result: TransactionEnd) -> None:
        if self.answered:
            return
        if result.decision is None:
            self._reject_end(
                result.rejection or to_rejection(TryLaterError("the transaction is open; ask again"))
            )
        else:
            self._answer_decision(result.decision, result.reason, result.results if self._began else None)

    # --- the answer

    def _answer_decision(
        self, decision: TransactionDecision, reason: str = "", results: list[Any] | None = None
    ) -> None:
        if decision.group != self.group:
            self._reject_end(build_foreign_group_rejection(self.group))
        elif self._is_short(decision):
            why = f"was committed before its message at offset {self.request.throughOffset} was stored"
            self._reject_end(build_late_message_rejection(self.transaction, why), decision.outcome)
        else:
            self._answer_outcome(decision.outcome, reason, results)

    def _is_short(self, decision: TransactionDecision) -> bool:
        """Return whether the transaction was committed without a message whose storage this caller was
        confirmed.

        This happens if another caller commits while the message is on its way through a third proxy.
        """
        through = self.request.throughOffset
        committed = decision.outcome is REQUESTED_OUTCOMES.get(self.action) is TransactionOutcome.COMMITTED
        return committed and through is not None and 0 <= decision.end <= through

    def _answer_outcome(
        self, outcome: TransactionOutcome, reason: str = "", results: list[Any] | None = None
    ) -> None:
        """Answer code 0 if `outcome` is the requested one, else code 11 with the actual outcome."""
        requested = REQUESTED_OUTCOMES.get(self.action, TransactionOutcome.OPEN)
        if outcome is requested:
            text, code = OK_TEXT, 0
        else:
            why = f" ({reason})" if reason else ""
            code = int(Code.ILLEGAL_MESSAGE)
            text = f"{FAILED_PREFIX} transaction {self.transaction.hex()} {OUTCOME_TEXTS[outcome]}{why}"
            self._service.counts.count_rejected(f"end: {outcome.name.lower().replace('_', ' ')}")
        self._reply_once(
            IDL.EndTransactionResponse(code=code, msg=text, outcome=int(outcome), results=results)
        )

    def _reject_end(self, rejection: SendRejection, outcome: TransactionOutcome | None = None) -> None:
        self._service.counts.count_rejected(f"end: {rejection.reason}")
        answer = IDL.EndTransactionResponse(code=int(rejection.code), msg=rejection.text)
        answer.outcome = None if outcome is None else int(outcome)
        self._reply_once(answer)

    def _reply_once(self, response: Any) -> None:
        self.answered = True
        self._service.flow.leave(self, self.call.frame_bytes)
        self.call.reply(response)

    # --- answers of Lookup

    def on_decision_read(self, decision: TransactionDecision, reason: str) -> None:
        """Answer with the end that was found in an op record."""
        if not self.answered:
            self._answer_decision(decision, reason)

    def on_op_missing(self, outcome: TransactionOutcome) -> None:
        if not self.answered:
            self._answer_outcome(outcome)

    def on_lookup_failed(self, error: Exception) -> None:
        if not self.answered:
            self._reject_end(to_rejection(error))


PASSED_ON = (
    "transactionId", "producerGroup", "action", "clientId", "timeout", "throughOffset", "check", "messages",
)  # fmt: skip


def build_foreign_group_rejection(group: str) -> SendRejection:
    """Return the rejection of a call for a transaction of another producer group."""
    what = f"the transaction is not one of producer group {group!r}"
    return build_illegal_rejection("producer_group", what, "allowed: the group that prepared it")


def check_half_verdict(verdict: HalfVerdict, transaction: bytes, group: str) -> SendRejection | None:
    """Return the rejection of an appended message that did not become part of its transaction, or None if it
    did."""
    if verdict is HalfVerdict.FOREIGN:
        return build_foreign_group_rejection(group)
    if verdict is HalfVerdict.LARGE:
        return build_late_message_rejection(
            transaction, "has as many messages as it can have, and can only be rolled back"
        )
    return build_late_message_rejection(transaction, "has ended") if verdict is HalfVerdict.DECIDED else None


def build_late_message_rejection(transaction: bytes, why: str) -> SendRejection:
    """Return the rejection of a message for a transaction that accepts no more messages."""
    what = f"transaction {transaction.hex()} {why}"
    return build_illegal_rejection(
        "transaction_ended", what, "allowed: messages of an open one, or of a new one"
    )


def build_sequence_used_rejection() -> SendRejection:
    """Return the rejection of a message whose sequence number was used in another transaction."""
    what = "sequence names a message that was sent before, in another transaction"
    return build_illegal_rejection("sequence_used", what, "allowed: another number for each message")


class Lookup:
    """Searches the op records of a shard for the end of a transaction that is not in memory any more.

    `damaged_ms`: op records of transactions that ended by this time may be damaged; 0: none.
    """

    def __init__(self, end: PendingEnd, service: EndContext, number: int, damaged_ms: int) -> None:
        self._end = end
        self._damaged_ms = damaged_ms
        self._backend = service.flow.backend
        info = self._backend.topic(OP_TOPIC)
        self._queue = None if info is None else QueueRef(OP_TOPIC, info.incarnation, number)

    def start(self) -> None:
        if self._queue is None or not self._backend.capabilities.find_by_key:
            self._end.on_op_missing(TransactionOutcome.NO_LONGER_KNOWN)
            return
        self._backend.find(OP_TOPIC, message_id=self._end.transaction, count_max=1).then(self._on_op_records)

    def _on_op_records(self, answer: Completion[list[StoredRecord]]) -> None:
        if answer.error is not None:
            self._end.on_lookup_failed(answer.error)
            return
        for record in answer.value:
            try:
                op = read_op(bytes(record.delivery))
            except DamagedError as error:
                self._end.on_lookup_failed(error)
                return
            decision = TransactionDecision(TransactionOutcome(op.outcome), op.group, op.at_ms, op.end)
            self._end.on_decision_read(decision, op.reason)
            return
        assert self._queue is not None
        self._backend.bounds((self._queue,)).then(self._on_bounds)

    def _on_bounds(self, answer: Completion[list[Bounds | None]]) -> None:
        bounds = None if answer.error is not None else answer.value[0]
        if bounds is None:
            self._end.on_lookup_failed(answer.error or TryLaterError("the op topic is gone; ask again"))
        elif (bounds.min == 0 and not self._damaged_ms) or self._queue is None:
            self._end.on_op_missing(TransactionOutcome.NEVER_THERE)
        else:
            self._backend.read(self._queue, bounds.min, 1, 0).then(self._on_oldest)

    def _on_oldest(self, answer: Completion[ReadBatch]) -> None:
        if answer.error is not None:
            self._end.on_lookup_failed(answer.error)
            return
        batch = answer.value
        oldest_ms = batch.stored_ms(0) if len(batch.offsets) else 0
        since_ms = max(oldest_ms, self._damaged_ms)
        is_covered = oldest_ms and began_after(
            since_ms, began_ms(self._end.transaction), self._backend.clock_ms()
        )
        self._end.on_op_missing(
            TransactionOutcome.NEVER_THERE if is_covered else TransactionOutcome.NO_LONGER_KNOWN
        )
