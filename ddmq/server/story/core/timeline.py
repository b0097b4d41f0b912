"""A timeline: marks, each of which says what the message does from then on. Pure.

A mark is never before the one that it follows, so the spans between marks are consecutive and their sum is
the whole, whatever the clocks say that the marks were taken from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddmq.server.story.core.facts import ENDS, WAITABLE, Phase, StorySpan
from ddmq_common.trace.events import Wait

SHOWN_IF_EMPTY = frozenset((Phase.LEASED, Phase.SENDING))  # even if they took no millisecond
BEFORE_WAITS = (
    frozenset((Phase.LEASED, Phase.SENDING, Phase.COMMIT, Phase.OVERDUE, Phase.DELAYED, Phase.BETWEEN)) | ENDS
)
SPANS_MAX = 500  # of one story
_REASONS = {phase.name.lower(): phase for phase in Phase}


class StoryMark:
    """The beginning of a phase of the message, at `at_ms`."""

    __slots__ = ("at_ms", "phase", "who", "why")

    def __init__(self, at_ms: int, phase: Phase, who: str = "", why: str = "") -> None:
        self.at_ms = at_ms
        self.phase = phase
        self.who = who
        self.why = why


class Timeline:
    """The phases of a message in order of time, each given by its beginning (a mark). There is always a first
    mark."""

    def __init__(self, first: StoryMark) -> None:
        self.marks = [first]
        self._until: tuple[int, Phase] | None = None

    def copy(self) -> Timeline:
        """Return an independent copy of the timeline."""
        clone = Timeline(self.marks[0])
        clone.marks = [StoryMark(mark.at_ms, mark.phase, mark.who, mark.why) for mark in self.marks]
        clone._until = self._until
        return clone

    @property
    def last(self) -> StoryMark:
        return self.marks[-1]

    @property
    def phase(self) -> Phase:
        return self.marks[-1].phase

    def mark(
        self, at_ms: int, phase: Phase, who: str = "", why: str = "", until: tuple[int, Phase] | None = None
    ) -> None:
        """End the present phase of the message's story at `at_ms`, and begin `phase`.

        `until`: the time at which it ends and the phase that follows then, unless another mark comes first.
        """
        self.pass_to(at_ms)
        self.marks.append(StoryMark(max(at_ms, self.last.at_ms), phase, who, why))
        self._until = until

    def pass_to(self, at_ms: int) -> None:
        """Advance the timeline to `at_ms`: a phase that was announced (`until`) for an earlier time
        begins."""
        until, last = self._until, self.last
        if until is not None and until[0] < at_ms:
            self._until = None
            self.marks.append(StoryMark(max(until[0], last.at_ms), until[1]))

    def explain_phase(self, text: str) -> None:
        """Add a text to the present phase."""
        add_why(self.last, text)

    def split_waits(self, waits: Iterable[Wait], until_ms: int, process: str = "") -> None:
        """Split the waiting phases since the last delivery, up to `until_ms`, by the recorded reasons of
        waiting.

        `process`: the process that recorded them. Phases in which another process owned the queue are not
        split.
        """
        self.pass_to(until_ms)
        first = len(self.marks)
        while first and self.marks[first - 1].phase not in BEFORE_WAITS:
            first -= 1
        if first == len(self.marks):
            return
        waiting, by_start = self.marks[first:], sorted(waits, key=lambda wait: wait[1])
        ends = [*(mark.at_ms for mark in waiting[1:]), until_ms]
        self.marks[first:] = [
            split
            for mark, end_ms in zip(waiting, ends, strict=True)
            for split in (_split_by_waits(mark, end_ms, by_start) if _is_of(mark, process) else [mark])
        ]

    def spans(self, now_ms: int) -> list[StorySpan]:
        """Return the spans from the first mark to the end, or to `now_ms`. Empty spans without information
        are
        left out; at least one span remains."""
        self.pass_to(now_ms)
        marks = self.marks[:-1] if self.phase in ENDS and len(self.marks) > 1 else self.marks
        end_ms = self.last.at_ms if marks is not self.marks else max(now_ms, self.last.at_ms)
        ends = [*(mark.at_ms for mark in self.marks[1 : len(marks)]), end_ms]
        all_spans = [
            StorySpan(mark.at_ms, end, mark.phase, mark.who, mark.why)
            for mark, end in zip(marks, ends, strict=True)
        ]
        spans = [one for one in all_spans if one.end_ms > one.start_ms or one.phase in SHOWN_IF_EMPTY]
        return _fold_middle(_join_neighbours(spans)) or all_spans[:1]


def _is_of(mark: StoryMark, process: str) -> bool:
    return mark.phase in WAITABLE and (not process or mark.who in ("", process))


def add_why(mark: StoryMark, text: str) -> None:
    """Add a sentence to a mark, unless the mark has it already."""
    if text and text not in mark.why:
        mark.why = f"{mark.why}; {text}" if mark.why else text


def _join_neighbours(spans: Iterable[StorySpan]) -> list[StorySpan]:
    """Join neighbouring spans of the same phase, except deliveries."""
    joined = list[StorySpan]()
    for span in spans:
        before = joined[-1] if joined else None
        if before is None or before.phase is not span.phase or span.phase is Phase.LEASED:
            joined.append(span)
            continue
        why = f"{before.why}; {span.why}" if before.why and span.why else before.why or span.why
        joined[-1] = before._replace(end_ms=span.end_ms, who=span.who or before.who, why=why)
    return joined


def _fold_middle(spans: list[StorySpan]) -> list[StorySpan]:
    """Return at most SPANS_MAX spans and one more: if there are more, those in the middle are replaced by a
    single span."""
    if len(spans) <= SPANS_MAX:
        return spans
    half = SPANS_MAX // 2
    between = spans[half:-half]
    many = StorySpan(between[0].start_ms, between[-1].end_ms, Phase.MANY, "", f"{len(between)} spans")
    return [*spans[:half], many, *spans[-half:]]


def _split_by_waits(mark: StoryMark, end_ms: int, waits: Sequence[Wait]) -> list[StoryMark]:
    """Split a waiting phase up to `end_ms` by the recorded waits."""
    marks, at_ms = list[StoryMark](), mark.at_ms
    for reason, start, until in waits:
        start, until = max(start, at_ms), min(until, end_ms)
        if until <= start:
            continue
        if start > at_ms:
            marks.append(StoryMark(at_ms, mark.phase, mark.who, mark.why))
        phase = _REASONS.get(reason)
        why = "" if phase is not None else reason
        marks.append(StoryMark(start, phase or mark.phase, mark.who, mark.why if not marks else why))
        at_ms = until
    if at_ms < end_ms or not marks:
        marks.append(StoryMark(at_ms, mark.phase, mark.who, "" if marks else mark.why))
    return marks
