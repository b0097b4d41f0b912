"""A choice of dead letters by their bytes leaves out none that the parsed letters would match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from backend.internal_topics import DeadLetter
from backend.records import NewRecord, StoredRecord
from ddmq.server.admin.dlq import (
    DeadLetterFilter,
    DeadLetterRange,
    list_dead_letter_queues,
    read_dead_letters,
    read_open_dead_letters,
)
from ddmq.server.admin.search.error_classes import classify_error
from ddmq_common.delivery import encode
from proxy_consumer.retries.headers import RetryHeaders, dead_letter
from tests.support.dead_letters import DeadLettersRig

TEXTS = ["", "failed", "Error7: a 17", "queue 3 of 5 is full", "ü: \ufffd", "dead-letter-reason", "x" * 300]
texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


class Death(NamedTuple):
    """A message that becomes a dead letter. `bare`: its bytes stay as they are, with the facts beside them.
    `again`: it is a dead letter already, which becomes another one."""

    key: str
    body: bytes
    reason: str
    error: str
    bare: bool
    again: bool
    damaged: bool


deaths = st.lists(
    st.builds(
        Death, texts, st.binary(max_size=6) | texts.map(str.encode), texts, texts, st.booleans(),
        st.booleans(), st.booleans(),
    ),
    max_size=6,
)  # fmt: skip
choices = st.builds(
    DeadLetterFilter,
    reason=st.none() | texts,
    topic=st.none() | st.sampled_from(["T", "U", ""]),
    error=st.none() | texts | texts.map(classify_error),
    text=st.none() | texts,
)


def make_letter(number: int, death: Death) -> NewRecord:
    """The record of a dead letter."""
    delivery = encode(death.key.encode(), death.body, b"", None)
    if death.damaged:
        delivery = b"\xff" + death.body
    record = StoredRecord("T", 0, number, 0, number.to_bytes(16, "big"), 1, 1, 0, 0, delivery, {})
    if death.again:
        first = dead_letter("G", record, RetryHeaders(0, "U", 0, number, 4, 0, "first"), "first", 1)
        record = record._replace(delivery=first.delivery, system=first.system or {})
    headers = RetryHeaders(0, "T", 0, number, 4, 0, death.error)
    return dead_letter("G", record, headers, death.reason, 2, bare=death.bare)


def read_all(rig: DeadLettersRig, choice: DeadLetterFilter) -> Sequence[DeadLetter]:
    """All dead letters that match, read with the choice."""
    (queue,) = list_dead_letter_queues(rig.backend, "G")
    (limits,), (opened,) = read_open_dead_letters(rig.backend, (queue,))
    whole = DeadLetterRange(queue, limits.min, limits.next)
    letters, at = read_dead_letters(rig.backend, whole, opened, 100, choice)
    assert at == limits.next
    return letters


@given(deaths, choices)
@example([Death("k", b"", "new", "E: 1", True, True, False)], DeadLetterFilter(error="E"))
@example([Death("k", b"", "r", "full 17", False, False, False)], DeadLetterFilter(error="full #"))
def test_no_letter_that_matches_is_left_out(dead: list[Death], choice: DeadLetterFilter) -> None:
    rig = DeadLettersRig()
    rig.backend.append([make_letter(*each) for each in enumerate(dead)], rig.deadline()).wait(20)
    expected = [each for each in read_all(rig, DeadLetterFilter()) if choice.matches(each)]
    assert len(read_all(rig, DeadLetterFilter())) == len(dead)
    assert [each for each in read_all(rig, choice) if choice.matches(each)] == expected
