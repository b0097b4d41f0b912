"""Who prepares, ends and answers checks while servers are killed. All choices come from the seed.

Messages have a producer's sequence, so that what is sent again is known; a client that cannot get an answer
to a prepare means the transaction to be rolled back, as an application would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddmq_rpc.client_side import ReplyError
from tests.crash.kit.load_thread import LoadThread
from tests.crash.tx_ledger import Meant, TxLedger
from tests.support.transaction_calls import COMMIT, NOT_KNOWN_YET, ROLLBACK, TransactionCalls, message, new_id

TOPICS = ("tx-a", "tx-b")
GROUP = "crashed"
CALL_S = 20.0
PAUSE_S = 0.05
RESENDS_MAX = 40
RETRY_LATER = (10, 12, 15, 20, 21)
ACTIONS = {Meant.COMMIT: COMMIT, Meant.ROLLBACK: ROLLBACK, Meant.SILENT: NOT_KNOWN_YET}
_CONNECTION_ERRORS = (OSError, EOFError, ReplyError, ValueError)


class TxWorker(LoadThread):
    """Has a connection to any proxy, and renews it."""

    def __init__(self, name: str, seed: int, ledger: TxLedger, ports: Callable[[], Sequence[int]]) -> None:
        super().__init__(name, seed)
        self.ledger = ledger
        self._ports = ports
        self._calls: TransactionCalls | None = None

    def call(self, act: Callable[[TransactionCalls], Any]) -> Any:
        """By a connection to any proxy; None when that broke."""
        try:
            if self._calls is None:
                self._calls = TransactionCalls(self.random.choice(self._ports()), CALL_S)
            return act(self._calls)
        except _CONNECTION_ERRORS:
            self.hang_up()
            self.stopping.wait(PAUSE_S)
            return None

    def hang_up(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def end(self, transaction: str, intent: Meant, through: int | None, check: int | None = None) -> bool:
        """Ask once; whether it has ended."""
        action = ACTIONS[intent]
        fields = {"throughOffset": through, "check": check}
        answer = self.call(lambda calls: calls.end_once(transaction, action, GROUP, **fields))
        if answer is None or answer.code in RETRY_LATER:
            self.ledger.counts.ends_deferred += 1
            return False
        if answer.outcome is None:
            self.ledger.violated(
                f"end of {transaction} as {action}, check {check}: {answer.code} {answer.msg}"
            )
        elif answer.outcome != 6:
            self.ledger.decided(transaction, answer.outcome)
            return True
        return action == NOT_KNOWN_YET


class TxClient(TxWorker):
    """Begins transactions, one after the other."""

    _sequence = 0

    def work(self) -> None:
        if self.random.random() < 0.1:
            self.hang_up()  # to another proxy, perhaps
        transaction = new_id(self.random.randrange(1 << 12))
        is_abandoned = self.random.random() < 0.15
        intent = self.random.choices([Meant.COMMIT, Meant.ROLLBACK, Meant.SILENT], [6, 2, 1])[0]
        self.ledger.begin(transaction, intent)
        through = self._prepare(transaction)
        if through is None:
            intent = self.ledger.mean(transaction, Meant.ROLLBACK)
        if is_abandoned or intent is Meant.SILENT:
            return  # somebody is asked about it
        for _ in range(self.random.choice((1, 3, 100))):
            if self.stopping.is_set() or self.end(transaction, intent, through):
                return
            self.stopping.wait(PAUSE_S)

    def _prepare(self, transaction: str) -> int | None:
        """How far its messages reach; None: not all of them were answered for."""
        through = -1
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            sent = [self._message(transaction) for _ in range(self.random.choice((1, 1, 1, 2, 5)))]
            bodies = [each.body for each in sent]
            self.ledger.prepared(transaction, bodies, sure=False)
            for _ in range(RESENDS_MAX):
                answer = self.call(lambda calls: calls.prepare(transaction, *sent, group=GROUP))  # noqa: B023
                if answer is not None and answer.code not in RETRY_LATER:
                    break
                self.ledger.counts.resends += 1
                self.stopping.wait(PAUSE_S)
            else:
                return None
            if answer.code:
                return None  # it has ended: a check was answered meanwhile
            self.ledger.prepared(transaction, bodies, sure=True)
            through = max(through, answer.throughOffset)
        return through

    def _message(self, transaction: str) -> Any:
        self._sequence += 1
        size = self.random.choice((1, 100, 1_000, 20_000 if self._sequence % 50 == 0 else 2_000))
        body = f"{transaction}/{self._sequence}/".encode() + b"x" * size
        numbers = {"producerId": self.name.encode(), "sequence": self._sequence, "answeredBelow": 0}
        return message(self.random.choice(TOPICS), body, key=f"k{self._sequence % 7}", **numbers)


class TxMember(TxWorker):
    """Polls for checks and answers them; now and then it does not know yet, or dies before it answers."""

    def work(self) -> None:
        if self.random.random() < 0.05:
            self.hang_up()
        due_checks = self.call(
            lambda calls: calls.poll(GROUP, timeout_ms=self.random.choice((0, 500, 2_000)))
        )
        if due_checks is None or due_checks.code:
            self.stopping.wait(PAUSE_S)
            return
        for check in due_checks.checks:
            transaction = check.transactionId
            name = transaction.decode() if isinstance(transaction, bytes) else transaction
            intent = self.ledger.checked(name, check.check)
            if intent is None or self.random.random() < 0.05:
                continue
            if self.random.random() < 0.1:
                intent = Meant.SILENT
            self.end(name, intent, check.throughOffset, check.check)
