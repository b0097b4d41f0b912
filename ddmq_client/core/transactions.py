"""The state of a transaction at its producer, and the jobs of its calls. Pure.

Each send is a PrepareJob: when it succeeds, its messages are durable but invisible. A send that fails makes
the transaction rollback-only, even if its messages are stored, because a commit could publish only some
messages. The end is an EndJob, which is retried until its outcome is certain. The proxies carry out the end
once, by the transaction's id, and answer a retry with the outcome of the first request. So a late answer
replaces an earlier failure, unlike for sends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddmq_client.core import frames
from ddmq_client.core.nodes import Node
from ddmq_client.core.sending import ResendPolicy, SendJob
from ddmq_client.core.sequences import Sequences
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.errors import ClosedError, NotCommittedError, TransactionError, UnknownEndError
from ddmq_client.idl.codes import TransactionAction, TransactionOutcome
from ddmq_client.outgoing import SendResult

PREPARE = b"sendPrepared"
END = b"endTransaction"
POLL = b"pollTransactionChecks"
COMMIT, ROLLBACK = TransactionAction.COMMIT, TransactionAction.ROLLBACK
RANDOM_BYTES = 10
_SETTLED = frozenset(TransactionOutcome) - {TransactionOutcome.OPEN}


def new_id(now_ms: int, random: bytes) -> str:
    """Return a new transaction id: the 32 hexadecimal digits of a UUID of version 7.

    It is made from `now_ms` (epoch milliseconds) and `random` (RANDOM_BYTES bytes).
    """
    chance = int.from_bytes(random, "big")
    high = (now_ms & (1 << 48) - 1) << 16 | 0x7000 | chance >> 68 & 0x0FFF
    return f"{high << 64 | 2 << 62 | chance & (1 << 62) - 1:032x}"


class PreparedResult(SendResult):
    """The result of storing one message of a transaction.

    `through_offset`: to be stated at the end of the transaction; see the wire contract.
    """

    __slots__ = ("through_offset",)

    def __init__(self) -> None:
        super().__init__()
        self.through_offset: int | None = None


class EndResult(SendResult):
    """The result of ending a transaction.

    `outcome`: the transaction's present state. `locations`: where its messages are stored, from the call that
    committed it.
    """

    __slots__ = ("locations", "outcome")

    def __init__(self) -> None:
        super().__init__()
        self.outcome: int | None = None
        self.locations: Sequence[SendResult] = ()


class PrepareJob(SendJob):
    """A job that stores the messages of one call in a transaction.

    Messages with a number or key are always recognised when they are resent: by the transaction, even if the
    engine recognises no resends.
    """

    __slots__ = ("_request",)

    def __init__(
        self,
        request: bytes,
        messages: Sequence[bytes],
        deadline: float,
        policy: ResendPolicy,
        sequences: Sequences | None,
        keyed: Collection[int] = (),
    ) -> None:
        """Create the job. `request`: the encoded PrepareRequest without messages and timeout."""
        super().__init__(messages, True, deadline, policy, PREPARE, sequences=sequences, keyed=keyed)
        self._request = request

    def begin(self, node: Node, recognised: bool | None = None, keys_recognised: bool | None = None) -> None:
        """Start an attempt to prepare the messages at `node`.

        Proxies recognise resent messages of a transaction, whatever plain sends have shown.
        """
        super().begin(node, True, True)

    def take_results(self, node: Node, results: Sequence[SendResult], elsewhere: bool) -> CallVerdict:
        """Record the results, without concluding from them what plain sends can expect of the node."""
        if len(results) == 1:  # a rejection, which holds for all
            results = [*results] * len(self._pending)
        before = node.recognises, node.recognises_keys
        verdict = super().take_results(node, results, elsewhere)
        node.recognises, node.recognises_keys = before
        return verdict

    def _encode_args(self, pending: Sequence[bytes], timeout_ms: int) -> tuple[bytes, ...]:
        return frames.prepare_args(self._request, pending, timeout_ms)


class EndJob(SendJob):
    """A job that commits or rolls back one transaction, or answers one check."""

    __slots__ = ()

    def __init__(self, request: bytes, deadline: float, policy: ResendPolicy) -> None:
        """Create the job. `request`: the encoded EndTransactionRequest without its timeout."""
        super().__init__([request], False, deadline, policy._replace(retry_unknown=True), END)

    def take_results(self, node: Node, results: Sequence[SendResult], elsewhere: bool) -> CallVerdict:
        """Record the answer. A final outcome holds, whatever was requested and whatever came before."""
        (result,) = results
        if isinstance(result, EndResult) and (result.code == 0 or result.outcome in _SETTLED):
            result.proxy = node.name
            self.results[0] = result
            self._pending = ()
            return CallVerdict.STORED
        return super().take_results(node, results, elsewhere)

    def _encode_args(self, pending: Sequence[bytes], timeout_ms: int) -> tuple[bytes, ...]:
        return frames.end_args(pending[0], timeout_ms)


def end_error(action: TransactionAction, transaction_id: str, result: SendResult) -> TransactionError | None:
    """Return the error to raise for the end of a transaction; None if it ended as requested."""
    outcome = result.outcome if isinstance(result, EndResult) else None
    if outcome is None and result.error is None:
        return None
    details = (transaction_id, None if result.code < 0 else result.code, result.proxy)
    called = f"transaction {transaction_id}"
    if action is COMMIT and outcome == TransactionOutcome.COMMITTED and result.code:
        return TransactionError(f"{called} is not committed as a whole: {result.text}", *details)
    if outcome in _REQUESTED_OUTCOMES[action] or (result.code == 0 and outcome == TransactionOutcome.OPEN):
        return None
    if outcome == TransactionOutcome.COMMITTED:
        return TransactionError(f"{called} was committed before it was rolled back here", *details)
    if outcome in _NOT_COMMITTED:
        reason = f": {result.text}" if outcome == TransactionOutcome.DEAD_LETTER else ""
        return NotCommittedError(f"{called} is not committed: {_NOT_COMMITTED[outcome]}{reason}", *details)
    verb = "commit" if action is COMMIT else "rollback"
    if outcome == TransactionOutcome.NO_LONGER_KNOWN:
        what = "it ended too long ago, the proxies no longer know how"
    else:
        what = f"{result.text or result.error}; the check of its producer group will settle it"
    return UnknownEndError(f"whether the {verb} of {called} took place is unknown: {what}", *details)


_REQUESTED_OUTCOMES: dict[TransactionAction, Collection[int | None]] = {
    COMMIT: (TransactionOutcome.COMMITTED,),
    ROLLBACK: (TransactionOutcome.ROLLED_BACK, TransactionOutcome.NEVER_THERE),
    TransactionAction.NOT_KNOWN_YET: (),
}
_NOT_COMMITTED: dict[int | None, str] = {
    TransactionOutcome.ROLLED_BACK: "it was rolled back, by an operator or as a check was answered",
    TransactionOutcome.NEVER_THERE: "the proxies never had a message of it",
    TransactionOutcome.DEAD_LETTER: "it became a dead letter",
}


class TransactionState:
    """The client's view of one transaction: which messages are durable, and whether it can still be
    committed.

    The callers hold one lock around every call.
    """

    __slots__ = ("_closed_as", "_failure", "_prepared", "_uncertain", "_under_way", "id", "through_offset")

    def __init__(self, transaction_id: str) -> None:
        self.id = transaction_id
        self.through_offset: int | None = None
        self._prepared: set[str | None] = set()  # ids of messages that are durable
        self._under_way = 0
        self._uncertain = False  # whether a send that failed may have made a message durable
        self._failure: str | None = None  # rollback-only, and why
        self._closed_as: str | None = None

    def begin_send(self) -> None:
        """Record that a send within the transaction has started.

        Raises ClosedError if the transaction has ended, NotCommittedError if it must be rolled back.
        """
        self._check_open()
        if self._failure is not None:
            raise self.rolled_back()
        self._under_way += 1

    def record_sent(self, results: Sequence[SendResult]) -> None:
        """Record a send whose messages are durable."""
        self._under_way -= 1
        for result in results:
            self._prepared.add(result.message_id)
            offset = result.through_offset if isinstance(result, PreparedResult) else None
            if offset is not None:
                self.through_offset = max(offset, self.through_offset or 0)

    def send_failed(self, error: BaseException, uncertain: bool) -> None:
        """Record a failed send: the transaction can then only be rolled back.

        `uncertain`: the message may nevertheless be durable.
        """
        self._under_way -= 1
        self._uncertain = self._uncertain or uncertain
        self.fail(f"a message of it was not stored for sure: {str(error) or repr(error)}")

    def fail(self, reason: str) -> None:
        """Mark the transaction as one that can only be rolled back."""
        self._failure = self._failure or reason

    def commit(self) -> TransactionAction | None:
        """End the transaction with a commit; return the action to request, or None if nothing was sent.

        Check `must_roll_back` after the action was carried out.
        """
        self._check_open()
        if self._under_way:
            self.fail(f"{self._under_way} sends of it were under way when it was to be committed")
        self._closed_as = "committed" if self._failure is None else "rolled back"
        return self._action_if_sent(COMMIT if self._failure is None else ROLLBACK)

    def roll_back(self) -> TransactionAction | None:
        """End the transaction with a rollback; return the action to request, or None if nothing was sent."""
        self._check_open()
        self._closed_as = "rolled back"
        return self._action_if_sent(ROLLBACK)

    def leave(self) -> None:
        """End the transaction undecided; the check will decide it."""
        self._check_open()
        self._closed_as = "left to its check"

    @property
    def message_count(self) -> int:
        """The number of messages; those sent twice with one key count once."""
        return len(self._prepared)

    @property
    def is_closed(self) -> bool:
        """Whether the application has ended the transaction."""
        return self._closed_as is not None

    @property
    def must_roll_back(self) -> bool:
        """Whether the transaction can only be rolled back."""
        return self._failure is not None

    def rolled_back(self) -> NotCommittedError:
        """Return the error to raise because the transaction could not be committed."""
        return NotCommittedError(f"transaction {self.id} is rolled back: {self._failure}", self.id)

    def _action_if_sent(self, action: TransactionAction) -> TransactionAction | None:
        return action if self._prepared or self._under_way or self._uncertain else None

    def _check_open(self) -> None:
        if self._closed_as is not None:
            raise ClosedError(f"transaction {self.id} has ended: {self._closed_as}")
