"""A short R1 against real servers, and proof that its ledger notices each kind of broken promise.

The long runs: `python -m tests.crash.kill_nine --seed 1 --rounds 200`, and the same with --processes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import kill_nine
from tests.crash.kill_nine_ledger import Ack, Body, DeliveredMessage, Ledger


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "rounds"), [(False, 4), (True, 4)], ids=["serve", "processes"])
def test_nothing_is_lost_by_kill_nine(tmp_path: Path, processes: bool, rounds: int) -> None:
    printed: list[str] = []
    broken = kill_nine.run(tmp_path, 5, rounds, processes, printed.append)
    assert broken == 0, "\n".join(printed)


def data(number: int, sender: int = 0, queue: int = 0, poison: bool = False) -> bytes:
    return Body(sender, queue, number, poison).encode(b"x")


class StoryLedger:
    """A ledger told of one consumer's deliveries, a second apart each."""

    def __init__(self) -> None:
        self.ledger = Ledger(fails_to_bury=3)
        self.now = 0.0

    def deliver(self, *offsets: int, sent_at: float | None = None, life: int = 0) -> list[Ack]:
        self.now += 1
        messages = [DeliveredMessage((0, offset), data(offset)) for offset in offsets]
        requested = self.now - 0.5 if sent_at is None else sent_at
        return self.ledger.delivered(messages, life, requested, self.now)

    def store(self, *messages: bytes) -> None:
        """One answer with these messages, at offsets from 0 on."""
        answer = [DeliveredMessage((0, offset), message) for offset, message in enumerate(messages)]
        self.ledger.delivered(answer, 0, 0.0, 1.0)

    def ack(self, acks: list[Ack], life: int = 0) -> None:
        self.now += 1
        self.ledger.acks_sent(acks)
        self.ledger.acks_answered(acks, life, self.now)

    @property
    def broken(self) -> str:
        return "\n".join(self.ledger.violations)


@pytest.fixture
def story() -> StoryLedger:
    return StoryLedger()


def test_an_honest_story(story: StoryLedger) -> None:
    for number in range(4):
        story.ledger.stored(data(number), (0, number) if number % 2 else None)
    story.ack(story.deliver(0, 1))
    story.deliver(2, 3)
    story.ledger.killed()
    story.ack(story.deliver(2, 3, life=1), life=1)
    story.ledger.committed({0: 4})
    story.ledger.finish([])
    assert story.broken == ""


STORIES: dict[str, tuple[Callable[[StoryLedger], object], str]] = {
    "a lost message": (lambda s: [s.ledger.stored(data(0), None), s.ledger.finish([])], "lost"),
    "another message than was answered": (
        lambda s: [s.ledger.stored(data(7), (0, 0)), s.deliver(0)], "not what was answered",
    ),
    "one place for two messages": (
        lambda s: [s.ledger.stored(data(number), (0, 5)) for number in (0, 1)], "answered for two",
    ),
    "stored twice without a resend": (
        lambda s: [s.ledger.stored(data(0), None), s.store(data(0), data(0)), s.ledger.finish([])],
        "stored twice",
    ),
    "a sender out of order": (
        lambda s: [s.store(data(1), data(0)), s.ledger.finish([])], "comes after number 1",
    ),
    "an answer out of order": (lambda s: s.deliver(1, 0), "not in offset order"),
    "first deliveries out of order": (lambda s: [s.deliver(5), s.deliver(4)], "came first after 5"),
    "acknowledged and again": (
        lambda s: [s.ack(s.deliver(0)), s.ledger.killed(), s.deliver(0, life=1)], "came again",
    ),
    "acknowledged after another process died": (
        lambda s: [acks := s.deliver(0), s.ledger.killed(), s.ack(acks), s.deliver(0)], "came again",
    ),
    "finished by nobody": (lambda s: [s.deliver(0), s.ledger.finish([])], "nobody acknowledged it"),
}  # fmt: skip


@pytest.mark.parametrize(("happens", "words"), STORIES.values(), ids=STORIES)
def test_a_broken_promise_is_noticed(
    story: StoryLedger, happens: Callable[[StoryLedger], object], words: str
) -> None:
    happens(story)
    assert words in story.broken


def test_answers_that_crossed_break_no_order(story: StoryLedger) -> None:
    story.deliver(5)
    story.deliver(4, sent_at=0.0)
    story.deliver(6)
    story.ledger.killed()
    story.deliver(3, life=1)
    assert story.broken == ""


def test_some_acknowledgements_bind_no_later_delivery(story: StoryLedger) -> None:
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


def test_a_commit_past_an_unfinished_message_is_noticed(story: StoryLedger) -> None:
    story.ack(story.deliver(0))
    story.deliver(1)
    story.ledger.committed({0: 1})
    assert story.broken == ""
    story.ledger.committed({0: 2})
    assert "past unfinished 1" in story.broken


def test_a_commit_may_pass_a_message_that_may_be_dead(story: StoryLedger) -> None:
    story.deliver(0)
    story.ledger.fails_sent([(0, 0)] * 3)
    story.ledger.committed({0: 1})
    story.ledger.finish([(0, 0)])
    assert story.broken == ""


def test_dead_letters(story: StoryLedger) -> None:
    story.deliver(0, 1)
    story.ledger.fails_sent([(0, 0)] * 3)
    story.ledger.finish([(0, 0), (0, 0), (0, 1)])
    assert "more than one dead letter" in story.broken
    assert "after 0 failures" in story.broken
