"""The rules of the mixed run, fed with histories that are right, and with one wrong in each way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.crash.mixed.history import (
    Ended,
    Ending,
    Finish,
    Given,
    History,
    Letter,
    Loss,
    Plan,
    Row,
    Said,
    Unseen,
)
from tests.crash.mixed.rules import check
from tests.crash.mixed.telling import story

ORDERED = Plan("keys", ("T",), "topic", 1.0, 2, 2, 6, 0)
PLAIN = Plan("plain", ("T",), "", 1.0, 1, 2, -1, 3)
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
            sent.code, sent.place = 0, ("T", 0, offset)
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
        asked: float | None = None,
        qid: str = "q_0",
    ) -> Given:
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
            asked=read - 0.5 if asked is None else asked,
            read=read,
            client="x",
        )

    def say(
        self, given: Given, ack: bool = True, answered: bool = True, reason: str = "", soon: bool = True
    ) -> Said:
        at = given.read + 0.1 if soon else self.tick()
        (said,) = self.history.say([given], "p", at, ack=ack, reason=reason)
        said.answered = at + 0.1 if answered else None
        return said

    def done(self, body: str, lease: int = 0) -> None:
        self.say(self.give(body, lease))

    def fails(self, body: str, count: int) -> None:
        for _ in range(count):
            self.say(self.give(body), ack=False, reason="no")

    def bury(self, body: str, attempts: int, reason: str = "failed", error: str = "no") -> Letter:
        place = ("T", 0, "abc".index(body))
        letter = Letter(self.plan.name, body, reason, error, place, attempts, self.tick())
        self.ending.letters.append(letter)
        return letter

    def lose(self, proxy: str = "p") -> None:
        self.ending.losses.append(Loss(proxy, self.plan.name, "T", 0, self.tick()))

    def broken(self) -> list[str]:
        """The rules that are broken, and that each can be told."""
        found = check(self.history, self.ending, [self.plan])
        for violation in found:
            assert not violation.bodies or violation.bodies[0] in story(self.history, self.ending, violation)
        return sorted({violation.rule for violation in found})


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


# --- right ones


@pytest.mark.parametrize("lease", [0, 7])
def test_one_after_the_other(tale: Tale, lease: int) -> None:
    for body in (A, B, C):
        tale.done(body, lease)
    assert tale.broken() == []


def test_the_same_again_after_kills_time_outs_and_failures(tale: Tale) -> None:
    tale.give(A, lease=1)
    tale.say(tale.give(A, lease=2), ack=False)
    tale.history.ended.append(Ended("p", 1, tale.tick()))
    tale.say(tale.give(A, lease=3, life=2), answered=False)
    tale.give(B, life=2)
    tale.lose()
    tale.done(A)
    assert rest(tale, (B, C)) == []


def test_an_answer_that_was_read_late(tale: Tale) -> None:
    """It had been asked for before the acknowledgement."""
    asked = tale.tick()
    tale.done(A)
    tale.done(B)
    tale.give(A, asked=asked)
    assert rest(tale, (C,)) == []


def test_a_dead_letter_lets_the_next_go(tale: Tale) -> None:
    tale.fails(A, 6)
    tale.bury(A, 6)
    assert rest(tale, (B, C)) == []


def test_what_a_failure_without_lease_may_have_ended(tale: Tale) -> None:
    old = tale.give(A)
    ours = tale.give(A, lease=5)
    tale.say(old, ack=False, soon=False)
    tale.say(ours)
    tale.history.said[-2].at = ours.read
    tale.history.said[-2].answered = ours.read + 0.05
    tale.done(A)
    assert rest(tale, (B, C)) == []


def test_a_retried_one(plain: Tale) -> None:
    plain.fails(A, 2)
    plain.say(plain.give(A, qid="R_default_%RETRY%_0"))
    assert rest(plain, (C, B)) == []


# --- wrong ones


def test_a_later_one_while_the_first_is_at_a_client(tale: Tale) -> None:
    tale.give(A)
    tale.done(B)
    tale.done(A)
    assert "order" in rest(tale, (C,))


def test_a_later_one_before_the_first(tale: Tale) -> None:
    assert rest(tale, (B, A, C)) == ["backwards", "order"]


def test_a_later_one_on_a_stale_acknowledgement(tale: Tale) -> None:
    """The lease was replaced before it left."""
    old = tale.give(A, lease=1)
    tale.give(A, lease=2)
    tale.say(old, soon=False)
    assert "order" in rest(tale, (B, C))


def test_a_later_one_after_the_first_had_come_again(tale: Tale) -> None:
    """Done once, but then it was given again in the same term, and not done since."""
    tale.say(tale.give(A, lease=1))
    tale.give(A, lease=2)
    assert "order" in rest(tale, (B, C))


def test_a_later_one_before_the_dead_letter(tale: Tale) -> None:
    tale.fails(A, 6)
    tale.give(B)
    tale.bury(A, 6)
    assert "order" in rest(tale, (B, C))


def test_back_to_an_earlier_one(tale: Tale) -> None:
    tale.say(tale.give(A), answered=False)
    tale.give(B)
    tale.done(A)
    assert rest(tale, (B, C)) == ["backwards"]


def test_completions_out_of_order_in_the_log(tale: Tale) -> None:
    order = ((1, 500), (0, 600), (2, 700))
    tale.ending.finishes = [Finish("keys", "T", 0, offset, offset + 1, at) for offset, at in order]
    assert rest(tale, (A, B, C)) == ["completion"]


@pytest.mark.parametrize("lease", [0, 4])
def test_acknowledged_and_given_again(plain: Tale, lease: int) -> None:
    plain.say(plain.give(A, lease))
    plain.give(A)
    assert rest(plain, (B, C)) == ["again"]


def test_acknowledged_and_given_again_by_another(plain: Tale) -> None:
    plain.done(A)
    plain.give(A, proxy="other")
    assert rest(plain, (B, C)) == ["again"]


@pytest.mark.parametrize("uncertain", ["no answer", "lost in between", "late", "killed", "of two lives"])
def test_uncertain_acknowledgements_bind_nobody(plain: Tale, uncertain: str) -> None:
    given = plain.give(A, lease=3, life=-1 if uncertain == "of two lives" else 1)
    if uncertain == "lost in between":
        plain.lose()
    if uncertain == "killed":
        plain.history.ended.append(Ended("p", 1, plain.tick()))
    plain.say(given, answered=uncertain != "no answer", soon=uncertain in ("no answer", "of two lives"))
    plain.say(plain.give(A, proxy="other"))
    assert rest(plain, (B, C)) == []


def test_lost_in_the_log(plain: Tale) -> None:
    plain.ending.rows.pop()
    assert rest(plain, (A, B)) == ["lost"]


def test_never_done(plain: Tale) -> None:
    plain.give(C)
    assert rest(plain, (A, B)) == ["lost"]


def test_unfinished_at_the_end(plain: Tale) -> None:
    plain.ending.unfinished.append(("plain", ("T", 0, 2)))
    assert rest(plain, (A, B, C)) == ["lost"]


def test_acknowledged_and_buried(tale: Tale) -> None:
    tale.fails(A, 5)
    tale.done(A)
    tale.bury(A, 6)
    assert rest(tale, (B, C)) == ["lost"]


def test_stored_wrongly(plain: Tale) -> None:
    row = plain.ending.rows[0]
    plain.ending.rows += [row, row._replace(body="z")]
    plain.history.sent[2].code = 15
    assert rest(plain, (A, B, C)) == ["lost", "stored"]
    assert len(check(plain.history, plain.ending, [PLAIN])) >= 4


def test_given_what_is_not_there(plain: Tale) -> None:
    plain.give(A)
    plain.history.given[-1] = plain.history.given[-1]._replace(offset=9)
    assert rest(plain, (A, B, C)) == ["given"]


def test_ordered_ones_on_the_retry_path(tale: Tale) -> None:
    tale.give(A, qid="R_default_%RETRY%_0")
    assert "given" in rest(tale, (A, B, C))


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 5},
        {"attempts": 7},
        {"reason": "whim"},
        {"error": "never said"},
        {"place": ("T", 0, 1)},
        {"at": 0.1},
        {"body": "nobody"},
    ],
)
def test_dead_letters_that_do_not_fit(tale: Tale, wrong: dict[str, object]) -> None:
    tale.fails(A, 6)
    letter = tale.bury(A, 6)
    tale.ending.letters.append(letter._replace(**wrong))  # type: ignore[arg-type]
    if "body" not in wrong:
        tale.ending.letters.remove(letter)
    assert "letters" in rest(tale, (B, C))


def test_more_attempts_than_were_seen_or_missed(tale: Tale) -> None:
    tale.fails(A, 5)
    tale.bury(A, 6)
    assert rest(tale, (B, C)) == ["letters"]
    tale.history.unseen.append(Unseen("keys", "p", 1.0, 2.0))
    assert tale.broken() == []


def test_two_dead_letters(tale: Tale) -> None:
    tale.fails(A, 6)
    tale.bury(A, 6)
    tale.bury(A, 6)
    assert rest(tale, (B, C)) == ["letters"]


def test_a_failure_that_nobody_sent(tale: Tale) -> None:
    for _ in range(6):
        tale.give(A)
    tale.bury(A, 6, error="")
    assert rest(tale, (B, C)) == ["letters"]
