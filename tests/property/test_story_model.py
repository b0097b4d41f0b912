"""The story of one message against a naive model: a life is simulated, and told again from what it left.

With everything recorded the story says of each millisecond what the message did in it. Whatever is lost of
the records, and however far the clocks of the processes are apart, the spans are consecutive and add up to
the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq.server.story.core.facts import (
    ENDS,
    CopyKind,
    GroupStanding,
    GroupStory,
    MessageCopy,
    Phase,
    RecordedEvent,
    StoryFacts,
)
from ddmq.server.story.core.story_builder import build_stories
from ddmq_common.trace.events import TraceEvent, TraceKind
from tests.examples import examples

K = TraceKind
START_MS = 1_000_000
some_ms = st.integers(1, 5_000)


@dataclass
class SimulatedLife:
    """One message for one group. `truth`: from when on it did what."""

    at_ms: int = START_MS
    truth: list[tuple[int, Phase]] = field(default_factory=list)
    copies: list[MessageCopy] = field(default_factory=list)
    events: list[RecordedEvent] = field(default_factory=list)
    location: dict[str, Any] = field(default_factory=lambda: {"queue": 0, "offset": 5})
    numbers: dict[str, int] = field(default_factory=dict)
    proxy: str = "c0"
    attempt: int = 0

    def now(self, phase: Phase) -> None:
        self.truth.append((self.at_ms, phase))

    def record_event(self, process: str, kind: TraceKind, group: str, **facts: Any) -> None:
        number = self.numbers[process] = self.numbers.get(process, 0) + 1
        self.events.append(
            RecordedEvent(process, process, TraceEvent(number, kind, self.at_ms, group, facts))
        )

    def group(self, kind: TraceKind, **facts: Any) -> None:
        self.record_event(self.proxy, kind, "g", **self.location, **facts)

    def copy(self, kind: CopyKind, **fields: Any) -> None:
        queue_id, offset = self.location["queue"], self.location["offset"]
        position = len(self.copies)
        self.copies.append(
            MessageCopy(kind, "t", queue_id, offset, START_MS, self.at_ms, position=position, **fields)
        )


@st.composite
def lives(draw: st.DrawFn) -> SimulatedLife:
    life = SimulatedLife()
    _send(life, draw)
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            _move(life, draw)
        _delivered(life, draw)
        ending = draw(st.sampled_from(("fail", "time out", "return", "spent", "ack", "stop")))
        if ending == "stop":
            break
        if not _end_delivery(life, draw, ending):
            break
    return life


def _send(life: SimulatedLife, draw: st.DrawFn) -> None:
    held_ms = draw(st.sampled_from((0, 0, 40)))
    life.record_event("p", K.SENT, "", client="x", held_ms=held_ms)
    if held_ms:
        life.now(Phase.HELD_BACK)
        life.at_ms += held_ms
    life.now(Phase.SENDING)
    life.at_ms += draw(some_ms)
    if draw(st.booleans()):
        life.copy(CopyKind.HALF)
        life.now(Phase.TRANSACTION)
        life.at_ms += draw(some_ms)
    if draw(st.booleans()):
        due_ms = life.at_ms + draw(some_ms)
        life.copy(CopyKind.COMMAND, due_ms=due_ms)
        life.now(Phase.DELAYED)
        life.at_ms = due_ms
        life.now(Phase.OVERDUE)
        life.at_ms += draw(some_ms)
        life.copy(CopyKind.MAIN)
    else:
        in_transaction = bool(life.copies)
        life.copy(CopyKind.MAIN)
        if not in_transaction:
            life.now(Phase.COMMIT)
            life.at_ms += draw(some_ms)
            life.record_event("p", K.STORED, "", **life.location)
    life.now(Phase.QUEUED)
    life.at_ms += draw(some_ms)
    _read(life, draw)


def _read(life: SimulatedLife, draw: st.DrawFn) -> None:
    life.group(K.READ)
    if draw(st.booleans()):
        life.now(Phase.KEY)
        life.at_ms += draw(some_ms)
        life.group(K.RELEASED)
    life.now(Phase.TURN)


def _move(life: SimulatedLife, draw: st.DrawFn) -> None:
    """The queue goes to another proxy before the message is handed out."""
    life.at_ms += draw(some_ms)
    life.group(K.LEFT)
    life.now(Phase.BETWEEN)
    life.at_ms += draw(some_ms)
    life.proxy = f"c{int(life.proxy[1:]) + 1}"
    life.group(K.READ)
    life.now(Phase.TURN)


def _delivered(life: SimulatedLife, draw: st.DrawFn) -> None:
    """It waits, perhaps for something that is noted, and goes to a client."""
    life.at_ms += draw(some_ms)
    waits = []
    if draw(st.booleans()):
        reason, begin = draw(st.sampled_from((Phase.RATE, Phase.NO_PULL))), life.at_ms
        life.now(reason)
        life.at_ms += draw(some_ms)
        waits = [(reason.name.lower(), begin, life.at_ms)]
    life.attempt += 1
    life.group(K.HANDED_OUT, attempt=life.attempt, client="w", waits=waits)
    life.now(Phase.LEASED)
    life.at_ms += draw(some_ms)
    for _ in range(draw(st.integers(0, 2))):
        life.group(K.EXTENDED)
        life.at_ms += draw(some_ms)


def _end_delivery(life: SimulatedLife, draw: st.DrawFn, ending: str) -> bool:
    """How the delivery ends; False: it was the last."""
    if ending == "ack":
        life.group(K.ACKED)
        life.now(Phase.DONE)
        return False
    if ending == "fail":
        retry_ms = life.at_ms + draw(some_ms)
        life.group(K.FAILED, next="wait", again_ms=retry_ms)
        life.now(Phase.BACKOFF)
        life.at_ms = retry_ms
        life.now(Phase.AGAIN)
    elif ending == "time out":
        life.group(K.TIMED_OUT, next="again")
        life.now(Phase.AGAIN)
    elif ending == "return":
        life.group(K.RETURNED)
        life.now(Phase.AGAIN)
    else:
        return _spent(life, draw)
    return True


def _spent(life: SimulatedLife, draw: st.DrawFn) -> bool:
    life.group(K.FAILED, next="spent")
    life.group(K.SPENT)
    life.now(Phase.MOVING)
    life.at_ms += draw(some_ms)
    if draw(st.booleans()):
        life.copy(CopyKind.DEAD, group="g", reason="failed")
        life.now(Phase.DEAD)
        return False
    due_ms = life.at_ms + draw(some_ms)
    life.copy(CopyKind.LEVEL, group="g", due_ms=due_ms, step=1)
    life.now(Phase.DELAYED)
    life.at_ms = due_ms
    life.now(Phase.OVERDUE)
    life.at_ms += draw(some_ms)
    life.location = {"queue": 0, "offset": 9 + len(life.copies), "retry": 1}
    life.copy(CopyKind.RETRY, group="g")
    life.now(Phase.QUEUED)
    life.at_ms += draw(some_ms)
    life.group(K.READ)
    life.now(Phase.TURN)
    return True


def _truth(life: SimulatedLife, now_ms: int) -> list[tuple[int, int, Phase]]:
    """The model: from, until, what; those without length are nothing."""
    ends = [*(at_ms for at_ms, _ in life.truth[1:]), now_ms]
    phases = [(at, end, phase) for (at, phase), end in zip(life.truth, ends, strict=True)]
    return _joined([row for row in phases if row[1] > row[0] and row[2] not in ENDS])


def _joined(phases: list[tuple[int, int, Phase]]) -> list[tuple[int, int, Phase]]:
    """Neighbours in the same phase are one, unless each is a delivery."""
    joined: list[tuple[int, int, Phase]] = []
    for start, end, phase in phases:
        if joined and joined[-1][2] is phase is not Phase.LEASED:
            joined[-1] = (joined[-1][0], end, phase)
        else:
            joined.append((start, end, phase))
    return joined


def _check_complete(story: GroupStory, now_ms: int, newest_ms: int = 0) -> None:
    spans = story.spans
    assert spans
    assert all(one.end_ms >= one.start_ms for one in spans)
    assert all(one.end_ms == two.start_ms for one, two in pairwise(spans))
    if story.end_ms is not None:
        assert spans[-1].end_ms == story.end_ms
    else:
        assert spans[-1].end_ms == max(now_ms, newest_ms)
    assert sum(one.end_ms - one.start_ms for one in spans) == story.total_ms


@given(life=lives(), later_ms=st.integers(0, 100_000))
@settings(max_examples=examples(300))
def test_a_complete_recording_gives_the_complete_story(life: SimulatedLife, later_ms: int) -> None:
    now_ms = life.at_ms + later_ms
    last = life.truth[-1][1]
    standing = GroupStanding("g", "", last in ENDS)
    (story,) = build_stories(StoryFacts(life.copies, life.events, [standing], now_ms))
    _check_complete(story, now_ms)
    phases = [(one.start_ms, one.end_ms, one.phase) for one in story.spans if one.end_ms > one.start_ms]
    assert phases == _truth(life, now_ms)
    assert story.end is (last if last in ENDS else None)


@given(life=lives(), data=st.data(), finished=st.booleans())
@settings(max_examples=examples(300))
def test_an_incomplete_recording_still_adds_up(
    life: SimulatedLife, data: st.DataObject, finished: bool
) -> None:
    surviving = data.draw(st.lists(st.booleans(), min_size=len(life.events), max_size=len(life.events)))
    skews = {name: data.draw(st.integers(-3_000, 3_000)) for name in life.numbers}
    events = [
        RecordedEvent(one.process, one.instance, _at(one.event, one.event.at_ms + skews[one.process]))
        for one, keep in zip(life.events, surviving, strict=True)
        if keep
    ]
    copies = [one for one in life.copies if data.draw(st.booleans())]
    now_ms = life.at_ms + data.draw(st.integers(-1_000, 10_000))
    standing = GroupStanding("g", data.draw(st.sampled_from(("", "parked", "in flight"))), finished)
    stories = list(build_stories(StoryFacts(copies, data.draw(st.permutations(events)), [standing], now_ms)))
    assert bool(stories) is bool(copies or events)
    for story in stories:
        _check_complete(story, now_ms, story.spans[-1].end_ms if story.spans[-1].end_ms > now_ms else 0)


def _at(event: TraceEvent, at_ms: int) -> TraceEvent:
    return TraceEvent(event.number, event.kind, at_ms, event.group, event.facts)
