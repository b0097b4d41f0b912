# Generated from ddmq_client/aio/checks.py by tools/unasync.py: change that one.
"""Run the producer's check: poll proxies for undecided transactions, ask the application for the outcome.

One poll at a time waits at one proxy, and moves to the next one after each answer or failure. It has a
connection of its own, so that sends need not wait for it. The transactions of one answer are decided one
after another, and each decision is reported before the next. A proxy offers an unanswered transaction again,
so nothing is stored here.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from ddmq_client.callables import ASYNC_PRODUCER, check_function, check_result
from ddmq_client.core import verdicts
from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import Node, Pace
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.errors import ClientError, ClosedError, OptionError
from ddmq_client.idl.codes import Code, TransactionAction
from ddmq_client.net.connection import FramedConnection
from ddmq_client.net.router import ProxyRouter
from ddmq_client.net.sync import (
    AWAITS,
    Activity,
    Condition,
    Lock,
    await_result,
    ends_worker,
    join_activities,
    now,
)
from ddmq_client.net.transactions import TransactionCalls
from ddmq_client.notifications import REPEAT_S
from ddmq_client.transactions import Check, CheckCounts, Decision, UndecidedTransaction
from ddmq_client.wire.producing import ProxyCallError
from ddmq_client.wire.transactions import poll_frame, read_checks

_log = logging.getLogger("ddmq_client.producer")
POLL_MS = 10_000  # for which a proxy holds a poll
ANSWER_S = 5.0  # for its answer, beyond that
CHECKS_MAX = 16  # of one poll
DECISION_S = 10.0  # to report a decision
REJECTIONS = verdicts.PERMANENT | {CallVerdict.NO_TOPIC, CallVerdict.INVALID}
ACTIONS = {
    Decision.COMMITTED: TransactionAction.COMMIT,
    Decision.ROLLED_BACK: TransactionAction.ROLLBACK,
    Decision.NOT_KNOWN_YET: TransactionAction.NOT_KNOWN_YET,
}


class Checks:
    """Polls for undecided transactions of a producer group, and lets the application's check decide them."""

    def __init__(self, settings: ProducerSettings, router: ProxyRouter, calls: TransactionCalls) -> None:
        self._settings = settings
        self._router = router
        self._calls = calls
        self._check: Check | None = None
        self._lock = Lock()
        self._ending = Condition(self._lock)
        self._counts = CheckCounts()
        self._polling: Activity | None = None
        self._connection: FramedConnection | None = None
        self._failing = False
        self._repeat_at = 0.0  # when the next repeated rejection is logged
        self._closed = False

    @property
    def has_check(self) -> bool:
        """Return whether a check is registered."""
        return self._check is not None

    def counts(self) -> CheckCounts:
        """Return a copy of the counters."""
        with self._lock:
            return self._counts.copy()

    def register(self, check: Check) -> None:
        """Use this function as the check of undecided transactions.

        Raises OptionError if it is not a function, or if another function is registered.
        """
        check_function(
            "check", check, awaits=AWAITS, instead=ASYNC_PRODUCER, argument="an UndecidedTransaction"
        )
        if self._settings.producer_group is None:
            raise OptionError(
                "check is set without producer_group; allowed: both, the group is whom it answers for"
            )
        with self._lock:
            if self._check is not None and self._check != check:
                raise OptionError(
                    f"check={check!r} beside {self._check!r} of this producer; allowed: one, which is asked"
                    " about every transaction of the producer group"
                )
            self._check = check

    def begin(self) -> None:
        """Start polling for undecided transactions, if a check is registered."""
        if self._polling is not None or self._check is None:
            return
        with self._lock:
            if self._polling is None and not self._closed:
                self._polling = Activity(self._poll, "ddmq-producer-checks")
                self._polling.start()

    def close(self, deadline: float) -> None:
        """Stop polling; wait until `deadline` for a running call of the check."""
        with self._lock:
            self._closed = True
            self._ending.notify_all()
            connection, polling = self._connection, self._polling
        if connection is not None:
            connection.close()
        if polling is not None:
            join_activities([polling], deadline)

    def _poll(self) -> None:
        pace = Pace(POLL_MS / 1000, random.random)
        tried: set[Node] = set()
        while not self._closed:
            started = now()
            try:
                node = self._router.pick_node(tried, started + ANSWER_S)
                transactions = self._poll_proxy(node, tried)
            except ClosedError:
                return
            if transactions is None:
                pause = pace.pause_after_failure()
            else:
                for transaction in transactions:
                    self._settle_transaction(transaction)
                pause = pace.pause_after_answer(len(transactions), now() - started)
            until = now() + pause
            with self._lock:
                while not self._closed and now() < until:
                    self._ending.wait(until - now())

    def _poll_proxy(self, node: Node | None, tried: set[Node]) -> Sequence[UndecidedTransaction] | None:
        """Poll one proxy; return the undecided transactions, or None if it did not answer."""
        if node is None:
            self._record_failure(self._router.describe_unresolved())
            return None
        tried.add(node)
        verdict, transactions = CallVerdict.STORED, None
        try:
            transactions = self._read_answer(node)
        except CallFailed as error:
            verdict = error.verdict
            self._record_failure(f"{node.name}: {error}", is_rejected=verdict in REJECTIONS)
        except FrameError as error:
            verdict = CallVerdict.LOST
            self._record_failure(f"{node.name}: {error}")
        except ProxyCallError as error:
            verdict = verdicts.of_error_kind(error.kind)
            self._record_failure(f"{node.name}: {error}")
        if not self._closed and not self._router.record_outcome(node, verdict, tried):
            tried.clear()
        return transactions

    def _read_answer(self, node: Node) -> Sequence[UndecidedTransaction]:
        self._connection = connection = FramedConnection(node.address)
        try:
            payload, number = connection.call(self._encode_frame, now() + POLL_MS / 1000 + ANSWER_S)
        finally:
            connection.close()
        code, text, transactions = read_checks(payload, number)
        if code != Code.OK:
            raise CallFailed(verdicts.of_code(code), f"{text} (code {code})")
        self._failing = False
        return transactions

    def _encode_frame(self, at: float, sequence_id: int) -> bytes:
        if self._closed:  # while it was being connected, so `close` could not end the wait
            raise ClosedError("the producer has been closed")
        group = self._settings.producer_group or ""
        return poll_frame(group, self._settings.client_id, CHECKS_MAX, POLL_MS, sequence_id)

    def _record_failure(self, text: str, *, is_rejected: bool = False) -> None:
        """Count a failed poll; log the first one after a success, and a rejection again once a minute."""
        if self._closed:
            return
        with self._lock:
            self._counts.poll_errors += 1
        if not self._failing or (is_rejected and now() >= self._repeat_at):
            _log.warning(
                "the poll for checks of producer group %s failed: %s", self._settings.producer_group, text
            )
            self._repeat_at = now() + REPEAT_S if is_rejected else 0.0
        self._failing = True

    def _settle_transaction(self, transaction: UndecidedTransaction) -> None:
        """Call the application's check for a transaction, and send its decision to the proxies."""
        if self._closed:
            return  # another member of the group gets the check
        decision = self._decide_transaction(transaction)
        deadline = now() + DECISION_S
        try:
            self._calls.end(
                transaction.id, ACTIONS[decision], transaction.through_offset, deadline, transaction.check
            )
        except ClientError as error:
            _log.warning("check %d of transaction %s: %s", transaction.check, transaction.id, error)
            with self._lock:
                self._counts.unanswered += 1

    def _decide_transaction(self, transaction: UndecidedTransaction) -> Decision:
        assert self._check is not None
        try:
            decision = await_result(self._check(transaction))
            check_result("check", decision, awaits=AWAITS, instead=ASYNC_PRODUCER)
        except BaseException as error:
            if ends_worker(error):
                raise
            _log.exception("the check of transaction %s raised: not known yet", transaction.id)
            decision = None
        else:
            if not isinstance(decision, Decision):
                _log.error("the check of transaction %s returned %r: not known yet", transaction.id, decision)
        with self._lock:
            counts = self._counts
            if decision is Decision.COMMITTED:
                counts.committed += 1
            elif decision is Decision.ROLLED_BACK:
                counts.rolled_back += 1
            elif decision is Decision.NOT_KNOWN_YET:
                counts.not_known += 1
            else:
                counts.errors += 1
        return decision if isinstance(decision, Decision) else Decision.NOT_KNOWN_YET
