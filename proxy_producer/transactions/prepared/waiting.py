"""Forwards a sendPrepared from a proxy that does not own its shard to the owner, and returns the answer.

Only the owner knows the state of a transaction, so only the owner can answer. While the shard has no owner,
the call waits for half of its time; then its sender must send it again. A call that may have reached the
owner and has no answer is answered 12: the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.completion import Completion
from ddmq_client.idl.codes import Code
from ddmq_common.errors import TryLaterError
from ddmq_rpc.api import Call
from proxy_producer.admission import DRAINING
from proxy_producer.core.rejections import SendRejection, build_rejection, timed_out, to_rejection
from proxy_producer.transactions.check_back import IDL
from proxy_producer.transactions.codec import shard_of
from proxy_producer.transactions.owners import PREPARES, ForwardedCall, OwnerAddresses
from proxy_producer.transactions.service import Transactions

PASSED_ON = (
    "transactionId", "producerGroup", "messages", "clientId", "checkAfterMs", "dueTimes",
)  # fmt: skip
Here = Callable[[Call, float], None]
Reject = Callable[[Call, SendRejection], None]


class WaitingPrepare:
    """One sendPrepared that waits for its shard's owner; `start` accepts it.

    `here(call, deadline)`: called if this proxy becomes the owner.
    """

    __slots__ = (
        "_here",
        "_is_request_pending",
        "_passed",
        "_reject",
        "_transaction",
        "_transactions",
        "_until",
        "answered",
        "call",
        "deadline",
    )  # fmt: skip

    def __init__(
        self,
        transactions: Transactions,
        call: Call,
        deadline: float,
        transaction: bytes,
        here: Here,
        reject: Reject,
    ) -> None:
        self._transactions = transactions
        self._transaction = transaction
        self._here = here
        self._reject = reject
        self._is_request_pending = False  # the backend or the owner has not answered yet
        self._passed: ForwardedCall | None = None
        now = transactions.flow.monotonic()
        self._until = now + (deadline - now) / 2
        self.call = call
        self.deadline = deadline
        self.answered = False

    def start(self) -> None:
        flow = self._transactions.flow
        flow.inflight += 1
        flow.inflight_bytes += self.call.frame_bytes
        if self._transactions.shards:
            self._on_topics_ready(None)
        else:
            self._is_request_pending = True
            self._transactions.topics.when_ready(self._on_topics_ready)
        if not self.answered:
            self._transactions.waiting.add(self)
            flow.watch(self)

    def expire(self) -> None:
        """Answer at the deadline: code 12 if the owner may have the call, else 15."""
        waited_ms = round((self.deadline - self.call.received_at) * 1_000)
        if self._is_sent:
            self._answer_rejection(timed_out(waited_ms, "the proxy that owns the transaction", sent=True))
        else:
            self._answer_rejection(self._build_no_owner_rejection())

    def retry(self) -> None:
        """Look up the shard's owner again, and forward the call if there is one."""
        if self.answered or self._is_request_pending:
            return
        transactions = self._transactions
        if transactions.flow.draining:
            self._answer_rejection(DRAINING)
        elif transactions.find_shard_of(self._transaction) is not None:
            self._stop_waiting()
            self._here(self.call, self.deadline)
        elif transactions.flow.monotonic() >= self._until:
            self._answer_rejection(self._build_no_owner_rejection())
        else:
            self._is_request_pending = True
            transactions.owners.fetch_addresses().then(self._on_owner_addresses)

    def _on_topics_ready(self, rejection: SendRejection | None) -> None:
        """Continue when the topics of transactions exist, or reject the call if they cannot be created."""
        self._is_request_pending = False
        if self.answered:
            return
        if rejection is not None:
            self._answer_rejection(rejection)
            return
        self._transactions.begin()
        self.retry()

    @property
    def _is_sent(self) -> bool:
        return self._passed is not None and self._passed.sent

    def _build_no_owner_rejection(self) -> SendRejection:
        number = shard_of(self._transaction, self._transactions.shards or 1)
        text = f"shard {number} of transactions has no owner now; the message is not stored, send it again"
        return to_rejection(TryLaterError(text))

    # --- elsewhere

    def _on_owner_addresses(self, addresses: Completion[OwnerAddresses]) -> None:
        self._is_request_pending = False
        if self.answered or addresses.error is not None:
            return
        if self._transactions.find_shard_of(self._transaction) is not None:
            self.retry()  # it has been claimed meanwhile
            return
        owners = self._transactions.owners
        number = shard_of(self._transaction, self._transactions.shards)
        address = addresses.value.get(number, "")
        if not address or address == owners.address:
            owners.forget()  # no owner yet, or this proxy soon
            return
        original = self.call.args.request
        if original.forwardedBy is not None:
            self._answer_rejection(build_not_owner_rejection(number))
            return
        request = IDL.PrepareRequest(
            **{name: getattr(original, name) for name in PASSED_ON},
            timeout=max(int((self.deadline - self._transactions.flow.monotonic()) * 1_000), 1),
            forwardedBy=owners.address or "-",
            onBehalfOf=None if self.call.caller is None else self.call.caller.name,
        )
        self._is_request_pending = True
        self._passed = owners.call(address, PREPARES, request, self._on_answer)

    def _on_answer(self, answer: Any, error: Exception | None) -> None:
        self._is_request_pending = False
        if self.answered:
            return
        if error is None and answer is not None and answer.code != Code.SHUTTING_DOWN:
            self._stop_waiting()
            self.call.reply(answer)
        elif error is not None and self._is_sent:
            what = f"the proxy that owns the transaction did not answer: {error}"
            allowed = "the message may or may not be stored; send it again"
            self._answer_rejection(build_rejection(Code.TIMED_OUT, "owner_silent", what, allowed))
        else:  # it was down or is not the owner: the next tick looks up the owner
            self._passed = None
            self._transactions.owners.forget()

    # --- the answer

    def _answer_rejection(self, rejection: SendRejection) -> None:
        self._stop_waiting()
        self._reject(self.call, rejection)

    def _stop_waiting(self) -> None:
        """Remove the call from the waiting calls and from the in-flight counts."""
        self.answered = True
        self._transactions.waiting.discard(self)
        self._transactions.flow.leave(self, self.call.frame_bytes)


def build_not_owner_rejection(number: int) -> SendRejection:
    """Return the rejection of a forwarded call because another proxy owns the shard."""
    what = f"shard {number} of transactions belongs to another proxy"
    return build_rejection(Code.SHUTTING_DOWN, "not_owner", what, "pass it on to that one")
