"""The rules of the mixed run, fed with histories that are right, and with one wrong in each way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from tests.crash.mixed.history import (
    Delivery,
    Ending,
    Finish,
    History,
    Kill,
    Letter,
    Loss,
    Plan,
    Row,
    Settlement,
    Unseen,
)
from tests.crash.mixed.rules import check
from tests.crash.mixed.storytelling import story

ORDERED = Plan("keys", ("T",), "topic", 1.0, 2, 2, 6, 0)
PLAIN = Plan("plain", ("T",), "", 1.0, 1, 2, -1, 3)
RETRY = "R_default_%RETRY%_0"
A, B, C = "a", "b", "c"  # messages of one key, at offsets 0, 1, 2


class Tale:
    """One group's history of three messages with one key; every event a second after the one before."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = 0.0
        self.history = History()
        self.ending = Ending()
        for offset, body in enumerate((A, B, C)):
            sent = self.history.send(body, "T", "k", self.tick())
            sent.code, sent.location = 0, ("T", 0, offset)
            self.ending.rows.append(Row(("T", 0, offset), offset * 100, body, "k"))

    def tick(self) -> float:
        self.now += 1
        return self.now

    def give(
        self,
        body: str,
        lease: int = 0,
        proxy: str = "p",
        life: int = 1,
        requested: float | None = None,
        qid: str = "q_0",
    ) -> Delivery:
        read = self.tick()
        return self.history.give(
            self.plan.name,
            body,
            topic="T",
            qid=qid,
            offset="abc".index(body),
            proxy=proxy,
            life=life,
            lease=lease,
            requested=read - 0.5 if requested is None else requested,
            read=read,
            client="x",
        )

    def settle(
        self, delivery: Delivery, ack: bool = True, answered: bool = True, reason: str = "", soon: bool = True
    ) -> Settlement:
        at = delivery.read + 0.1 if soon else self.tick()
        (settlement,) = self.history.settle([delivery], "p", at, ack=ack, reason=reason)
        settlement.answered = at + 0.1 if answered else None
        return settlement

    def done(self, body: str, lease: int = 0) -> None:
        self.settle(self.give(body, lease))

    def fails(self, body: str, count: int) -> None:
        for _ in range(count):
            self.settle(self.give(body), ack=False, reason="no")

    def bury(self, body: str, attempts: int, reason: str = "failed", error: str = "no") -> Letter:
        location = ("T", 0, "abc".index(body))
        letter = Letter(self.plan.name, body, reason, error, location, attempts, self.tick())
        self.ending.letters.append(letter)
        return letter

    def finishes(self, *order: tuple[int, int]) -> None:
        """Offset and log position of each completion."""
        self.ending.finishes = [Finish("keys", "T", 0, offset, offset + 1, at) for offset, at in order]

    def lose(self, proxy: str = "p") -> None:
        self.ending.losses.append(Loss(proxy, self.plan.name, "T", 0, self.tick()))

    def broken(self) -> list[str]:
        """The rules that are broken, and that each can be told."""
        violations = check(self.history, self.ending, [self.plan])
        for violation in violations:
            assert not violation.bodies or violation.bodies[0] in story(self.history, self.ending, violation)
        return sorted({violation.rule for violation in violations})


@pytest.fixture
def tale() -> Tale:
    return Tale(ORDERED)


@pytest.fixture
def plain() -> Tale:
    return Tale(PLAIN)


def rest(tale: Tale, bodies: Sequence[str]) -> list[str]:
    for body in bodies:
        tale.done(body)
    return tale.broken()


class HistoryCase(NamedTuple):
    """What happens to messages of a group, what is done normally after it, and the rules that it breaks."""

    plan: Plan
    happens: Callable[[Tale], object]
    rest: str = ""
    broken: Sequence[str] = ()


HISTORIES = {
    "one after the other": HistoryCase(ORDERED, lambda t: None, "abc"),
    "one after the other, with leases": HistoryCase(ORDERED, lambda t: [t.done(body, 7) for body in "abc"]),
    "an answer that was read late, asked for before the acknowledgement": HistoryCase(
        ORDERED, lambda t: [requested := t.tick(), t.done(A), t.done(B), t.give(A, requested=requested)], "c"
    ),
    "a dead letter lets the next go": HistoryCase(ORDERED, lambda t: [t.fails(A, 6), t.bury(A, 6)], "bc"),
    "a retried one": HistoryCase(PLAIN, lambda t: [t.fails(A, 2), t.settle(t.give(A, qid=RETRY))], "cb"),
    "a later one while the first is at a client": HistoryCase(
        ORDERED, lambda t: [t.give(A), t.done(B), t.done(A)], "c", ["backwards", "order"]
    ),
    "a later one before the first": HistoryCase(ORDERED, lambda t: None, "bac", ["backwards", "order"]),
    "a later one on a stale acknowledgement, whose lease was replaced": HistoryCase(
        ORDERED,
        lambda t: [old := t.give(A, 1), t.give(A, 2), t.settle(old, soon=False)],
        "bc",
        ["lost", "order"],
    ),
    "a later one after the first, done once, had come again in the same term": HistoryCase(
        ORDERED, lambda t: [t.settle(t.give(A, 1)), t.give(A, 2)], "bc", ["again", "order"]
    ),
    "a later one before the dead letter": HistoryCase(
        ORDERED, lambda t: [t.fails(A, 6), t.give(B), t.bury(A, 6)], "bc", ["order"]
    ),
    "back to an earlier one": HistoryCase(
        ORDERED, lambda t: [t.settle(t.give(A), answered=False), t.give(B), t.done(A)], "bc", ["backwards"]
    ),
    "back to an earlier one, at another proxy after a kill": HistoryCase(
        ORDERED,
        lambda t: [
            t.settle(t.give(A), answered=False),
            t.give(B),
            t.history.kills.append(Kill("p", 1, t.tick())),
            t.done(A),
        ],
        "bc",
        ["backwards"],
    ),
    "completions out of order in the log": HistoryCase(
        ORDERED, lambda t: t.finishes((1, 500), (0, 600), (2, 700)), "abc", ["completion"]
    ),
    "acknowledged and given again": HistoryCase(
        PLAIN, lambda t: [t.settle(t.give(A)), t.give(A)], "bc", ["again"]
    ),
    "acknowledged with its lease and given again": HistoryCase(
        PLAIN, lambda t: [t.settle(t.give(A, 4)), t.give(A)], "bc", ["again"]
    ),
    "acknowledged and given again by another": HistoryCase(
        PLAIN, lambda t: [t.done(A), t.give(A, proxy="other")], "bc", ["again"]
    ),
    "lost in the log": HistoryCase(PLAIN, lambda t: t.ending.rows.pop(), "ab", ["lost"]),
    "never done": HistoryCase(PLAIN, lambda t: t.give(C), "ab", ["lost"]),
    "unfinished at the end": HistoryCase(
        PLAIN, lambda t: t.ending.unfinished.append(("plain", ("T", 0, 2))), "abc", ["lost"]
    ),
    "acknowledged and buried": HistoryCase(
        ORDERED, lambda t: [t.fails(A, 5), t.done(A), t.bury(A, 6)], "bc", ["lost"]
    ),
    "ordered ones on the retry path": HistoryCase(ORDERED, lambda t: t.give(A, qid=RETRY), "abc", ["given"]),
    "two dead letters": HistoryCase(
        ORDERED, lambda t: [t.fails(A, 6), t.bury(A, 6), t.bury(A, 6)], "bc", ["letters"]
    ),
    "a failure that nobody sent": HistoryCase(
        ORDERED, lambda t: [*(t.give(A) for _ in range(6)), t.bury(A, 6, error="")], "bc", ["letters"]
    ),
}


@pytest.mark.parametrize("case", HISTORIES.values(), ids=HISTORIES)
def test_a_history_breaks_these_rules_and_no_other(case: HistoryCase) -> None:
    tale = Tale(case.plan)
    case.happens(tale)
    assert rest(tale, case.rest) == list(case.broken)


def test_redelivery_after_kills_timeouts_and_failures_is_allowed(tale: Tale) -> None:
    tale.give(A, lease=1)
    tale.settle(tale.give(A, lease=2), ack=False)
    tale.history.kills.append(Kill("p", 1, tale.tick()))
    tale.settle(tale.give(A, lease=3, life=2), answered=False)
    tale.lose()
    tale.done(A)
    tale.give(B, life=2)
    assert rest(tale, (B, C)) == []


def test_a_failure_without_a_lease_may_end_a_leased_delivery(tale: Tale) -> None:
    old = tale.give(A)
    leased = tale.give(A, lease=5)
    tale.settle(old, ack=False, soon=False)
    tale.settle(leased)
    tale.history.settlements[-2].at = leased.read
    tale.history.settlements[-2].answered = leased.read + 0.05
    tale.done(A)
    assert rest(tale, (B, C)) == []


@pytest.mark.parametrize("uncertain", ["no answer", "lost in between", "late", "killed", "of two lives"])
def test_uncertain_acknowledgements_bind_no_later_delivery(plain: Tale, uncertain: str) -> None:
    delivery = plain.give(A, lease=3, life=-1 if uncertain == "of two lives" else 1)
    if uncertain == "lost in between":
        plain.lose()
    if uncertain == "killed":
        plain.history.kills.append(Kill("p", 1, plain.tick()))
    plain.settle(delivery, answered=uncertain != "no answer", soon=uncertain in ("no answer", "of two lives"))
    plain.settle(plain.give(A, proxy="other"))
    assert rest(plain, (B, C)) == []


def test_wrongly_stored_messages_are_violations(plain: Tale) -> None:
    row = plain.ending.rows[0]
    plain.ending.rows += [row, row._replace(body="z")]
    plain.history.sent[2].code = 15
    assert rest(plain, (A, B, C)) == ["lost", "stored"]
    assert len(check(plain.history, plain.ending, [PLAIN])) >= 4


def test_a_delivery_of_an_unstored_message_is_a_violation(plain: Tale) -> None:
    plain.give(A)
    plain.history.deliveries[-1] = plain.history.deliveries[-1]._replace(offset=9)
    assert rest(plain, (A, B, C)) == ["given"]


@pytest.mark.parametrize(
    "changed",
    [
        {"attempts": 5},
        {"attempts": 7},
        {"reason": "whim"},
        {"error": "never said"},
        {"location": ("T", 0, 1)},
        {"at": 0.1},
        {"body": "nobody"},
    ],
)
def test_dead_letters_that_do_not_match_are_violations(tale: Tale, changed: dict[str, object]) -> None:
    tale.fails(A, 6)
    letter = tale.bury(A, 6)
    tale.ending.letters.append(letter._replace(**changed))  # type: ignore[arg-type]
    if "body" not in changed:
        tale.ending.letters.remove(letter)
    assert "letters" in rest(tale, (B, C))


def test_more_attempts_than_deliveries_is_a_violation(tale: Tale) -> None:
    tale.fails(A, 5)
    tale.bury(A, 6)
    assert rest(tale, (B, C)) == ["letters"]
    tale.history.unseen.append(Unseen("keys", "p", 1.0, 2.0))
    assert tale.broken() == []
