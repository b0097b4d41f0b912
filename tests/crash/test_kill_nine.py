"""A short R1 against real servers, and proof that its ledger notices each kind of broken promise.

The long runs: `python -m tests.crash.kill_nine --seed 1 --rounds 200`, and the same with --processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import kill_nine
from tests.crash.kill_nine_ledger import Ack, Body, Delivery, Ledger


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "rounds"), [(False, 4), (True, 4)], ids=["serve", "processes"])
def test_nothing_is_lost_by_kill_nine(tmp_path: Path, processes: bool, rounds: int) -> None:
    said: list[str] = []
    broken = kill_nine.run(tmp_path, 5, rounds, processes, said.append)
    assert broken == 0, "\n".join(said)


def data(number: int, sender: int = 0, queue: int = 0, poison: bool = False) -> bytes:
    return Body(sender, queue, number, poison).encode(b"x")


class ToldLedger:
    """A ledger told of one consumer's deliveries, a second apart each."""

    def __init__(self) -> None:
        self.ledger = Ledger(fails_to_bury=3)
        self.now = 0.0

    def deliver(self, *offsets: int, sent_at: float | None = None, life: int = 0) -> list[Ack]:
        self.now += 1
        messages = [Delivery((0, offset), data(offset)) for offset in offsets]
        asked = self.now - 0.5 if sent_at is None else sent_at
        return self.ledger.delivered(messages, life, asked, self.now)

    def ack(self, acks: list[Ack], life: int = 0) -> None:
        self.now += 1
        self.ledger.acks_sent(acks)
        self.ledger.acks_answered(acks, life, self.now)

    @property
    def broken(self) -> str:
        return "\n".join(self.ledger.violations)


@pytest.fixture
def story() -> ToldLedger:
    return ToldLedger()


def test_an_honest_story(story: ToldLedger) -> None:
    for number in range(4):
        story.ledger.stored(data(number), (0, number) if number % 2 else None)
    story.ack(story.deliver(0, 1))
    story.deliver(2, 3)
    story.ledger.killed()
    story.ack(story.deliver(2, 3, life=1), life=1)
    story.ledger.committed({0: 4})
    story.ledger.finish([])
    assert story.broken == ""


def test_a_lost_message(story: ToldLedger) -> None:
    story.ledger.stored(data(0), None)
    story.ledger.finish([])
    assert "lost" in story.broken


def test_another_message_than_was_answered(story: ToldLedger) -> None:
    story.ledger.stored(data(7), (0, 0))
    story.deliver(0)
    assert "not what was answered" in story.broken


def test_one_place_for_two_messages(story: ToldLedger) -> None:
    story.ledger.stored(data(0), (0, 5))
    story.ledger.stored(data(1), (0, 5))
    assert "answered for two" in story.broken


def test_stored_twice_without_a_resend(story: ToldLedger) -> None:
    story.ledger.stored(data(0), None)
    story.ledger.delivered([Delivery((0, 0), data(0)), Delivery((0, 1), data(0))], 0, 0.0, 1.0)
    story.ledger.finish([])
    assert "stored twice" in story.broken


def test_a_sender_out_of_order(story: ToldLedger) -> None:
    story.ledger.delivered([Delivery((0, 0), data(1)), Delivery((0, 1), data(0))], 0, 0.0, 1.0)
    story.ledger.finish([])
    assert "comes after number 1" in story.broken


def test_an_answer_out_of_order(story: ToldLedger) -> None:
    story.deliver(1, 0)
    assert "not in offset order" in story.broken


def test_first_deliveries_out_of_order(story: ToldLedger) -> None:
    story.deliver(5)
    story.deliver(4)
    assert "came first after 5" in story.broken


def test_order_says_nothing_of_answers_that_crossed(story: ToldLedger) -> None:
    story.deliver(5)
    story.deliver(4, sent_at=0.0)
    story.deliver(6)
    story.ledger.killed()
    story.deliver(3, life=1)
    assert story.broken == ""


def test_acknowledged_and_again(story: ToldLedger) -> None:
    story.ack(story.deliver(0))
    story.ledger.killed()
    story.deliver(0, life=1)
    assert "came again" in story.broken


def test_acknowledged_after_another_process_died(story: ToldLedger) -> None:
    acks = story.deliver(0)
    story.ledger.killed()
    story.ack(acks)
    story.deliver(0)
    assert "came again" in story.broken


def test_acknowledgements_that_bind_nobody(story: ToldLedger) -> None:
    """Of an older delivery, of an older life, or on the way when the pull was sent."""
    old = story.deliver(0)
    story.deliver(0)
    story.ack(old)
    story.deliver(0)
    late = story.deliver(1)
    story.ledger.killed()
    story.ack(late, life=1)
    story.deliver(1, life=1)
    story.ack(story.deliver(2, life=1), life=1)
    story.deliver(2, sent_at=story.now - 0.5, life=1)
    assert story.broken == ""


def test_committed_past_an_unfinished_one(story: ToldLedger) -> None:
    story.ack(story.deliver(0))
    story.deliver(1)
    story.ledger.committed({0: 1})
    assert story.broken == ""
    story.ledger.committed({0: 2})
    assert "past unfinished 1" in story.broken


def test_committed_past_one_that_may_be_dead(story: ToldLedger) -> None:
    story.deliver(0)
    story.ledger.fails_sent([(0, 0)] * 3)
    story.ledger.committed({0: 1})
    story.ledger.finish([(0, 0)])
    assert story.broken == ""


def test_dead_letters(story: ToldLedger) -> None:
    story.deliver(0, 1)
    story.ledger.fails_sent([(0, 0)] * 3)
    story.ledger.finish([(0, 0), (0, 0), (0, 1)])
    assert "more than one dead letter" in story.broken
    assert "after 0 failures" in story.broken


def test_finished_by_nobody(story: ToldLedger) -> None:
    story.deliver(0)
    story.ledger.finish([])
    assert "nobody acknowledged it" in story.broken
