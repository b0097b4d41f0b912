"""The story of one message, made of its records and of trace events. Pure.

The way to its topic is the same for all groups; each group's story goes on from there. Copies (in the order
of the log) and the events of each process (in its own order) are merged by time; a copy comes before what was
done with it, and an event that is late news about a delivery that has been followed by a copy already only
explains the span before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from ddmq.server.story.core import words
from ddmq.server.story.core.facts import (
    ENDS,
    WAITABLE,
    CopyKind,
    GroupStanding,
    GroupStory,
    MessageCopy,
    Phase,
    RecordedEvent,
    StoryFacts,
)
from ddmq.server.story.core.merging import ENDINGS, TimedEvent, merge_by_time, redelivered_ms, streams_of
from ddmq.server.story.core.timeline import StoryMark, Timeline, add_why
from ddmq_common.trace.events import TraceKind

_AFTER = frozenset((Phase.DELAYED, Phase.DEAD, Phase.OVERDUE))  # a copy has followed the delivery
_UNDONE = frozenset((Phase.DONE, Phase.PASSED))  # it comes again after the group's offset was reset
_KINDS = frozenset(TraceKind)
_NEVER = {CopyKind.ROLLED_BACK: Phase.ROLLED_BACK, CopyKind.CANCELLED: Phase.CANCELLED}
MOVED_MS = 1_000  # so late the delay service hardly is
_when = attrgetter("when")


def build_stories(facts: StoryFacts) -> Iterator[GroupStory]:
    """Yield the story for each group. If no group reads the topic, yield the story up to the topic; if
    nothing is known of the message, yield nothing."""
    if not facts.copies and not facts.events:
        return
    way, reached_topic = _timeline_to_topic(facts)
    if not reached_topic or not facts.groups:
        yield _finish_story(way, "", GroupStanding("", "", False), facts.now_ms)
        return
    by_group: dict[str, list[RecordedEvent]] = {}
    for one in facts.events:
        if one.event.kind in _KINDS:
            by_group.setdefault(one.event.group, []).append(one)
    for standing in facts.groups:
        yield _group_story(way.copy(), facts, standing, by_group.get(standing.group, []))


# --- to its topic


def _timeline_to_topic(facts: StoryFacts) -> tuple[Timeline, bool]:
    """Build the timeline up to the message's first record in its topic; return it and whether there is such a
    record."""
    copies = sorted((one for one in facts.copies if not one.group), key=_when)
    events = {TraceKind(one.event.kind): one for one in facts.events if _is_of_none(one)}
    timeline = _sending_timeline(facts, copies, events.get(TraceKind.SENT))
    for index, copy in enumerate(copies):
        stored_ms = copy.stored_ms
        if not index and TraceKind.STORED in events:
            timeline.mark(stored_ms, Phase.COMMIT)
            stored_ms = max(stored_ms, events[TraceKind.STORED].event.at_ms)
        if copy.kind is CopyKind.MAIN:
            _explain_late_firing(timeline, stored_ms, copies[:index])
            timeline.mark(stored_ms, Phase.QUEUED, why=words.describe_position(copy))
            return timeline, True
        if copy.kind is CopyKind.HALF:
            timeline.mark(stored_ms, Phase.TRANSACTION, why=copy.reason)
            continue
        if copy.kind in _NEVER:
            timeline.mark(stored_ms, _NEVER[copy.kind])
            return timeline, False
        if copy.kind is CopyKind.DEAD:
            timeline.mark(stored_ms, Phase.DEAD, why=words.death_reason(copy))
            return timeline, False
        ingested = events.get(TraceKind.INGESTED)
        who = "" if ingested is None else ingested.process
        why = f"level {copy.step}" if copy.kind is CopyKind.LEVEL else "by the delay service"
        timeline.mark(stored_ms, Phase.DELAYED, who, why, _overdue_from(copy))
    reached_topic = not copies  # its records are gone; what groups did may still be known
    if reached_topic:
        stored = events.get(TraceKind.STORED)
        timeline.mark(timeline.last.at_ms if stored is None else stored.event.at_ms, Phase.QUEUED)
    return timeline, reached_topic


def _explain_late_firing(timeline: Timeline, stored_ms: int, before: Sequence[MessageCopy]) -> None:
    """Explain a late firing in the timeline: the message may have been rescheduled without a trace in its
    records."""
    timeline.pass_to(stored_ms)
    late_ms = stored_ms - timeline.last.at_ms
    if timeline.phase is Phase.OVERDUE and before[-1].kind is CopyKind.COMMAND and late_ms >= MOVED_MS:
        timeline.explain_phase("unless it was moved to a later time: that is not recorded")


def _sending_timeline(
    facts: StoryFacts, copies: Sequence[MessageCopy], sent: RecordedEvent | None
) -> Timeline:
    times = [one.stored_ms for one in copies] + [one.event.at_ms for one in facts.events]
    times += [one.stored_ms for one in facts.copies]
    born_ms = min([one.born_ms for one in facts.copies if one.born_ms > 0], default=min(times))
    if sent is None:
        return Timeline(StoryMark(min(born_ms, *times), Phase.SENDING))
    event = sent.event
    first = StoryMark(min(event.at_ms, *times), Phase.SENDING, words.describe_route(sent), "")
    wait_ms = event.number_of("held_ms")
    if wait_ms <= 0:
        return Timeline(first)
    timeline = Timeline(StoryMark(first.at_ms, Phase.HELD_BACK, first.who, event.text_of("held_by")))
    timeline.mark(first.at_ms + wait_ms, Phase.SENDING, first.who)
    return timeline


# --- for one group


def _group_story(
    timeline: Timeline, facts: StoryFacts, standing: GroupStanding, events: Iterable[RecordedEvent]
) -> GroupStory:
    group = standing.group
    own = sorted((one for one in facts.copies if one.group == group), key=_when)
    mains = sorted(
        (one for one in facts.copies if not one.group and one.kind is CopyKind.MAIN),
        key=_when,
    )
    copies = sorted([*mains[1:], *own], key=_when)
    read = [*mains, *(one for one in own if one.kind in (CopyKind.RETRY, CopyKind.MAIN))]
    stored = {(one.kind is CopyKind.RETRY, one.queue_id, one.offset): one.stored_ms for one in read}
    streams = streams_of(_not_passed_over(events, facts.copies, group), stored)
    if streams:  # the answer to the sender may have come after the first reader had it
        first_ms = min(stream[0].at_ms for stream in streams)
        timeline.last.at_ms = max(
            min(timeline.last.at_ms, first_ms), timeline.marks[-2].at_ms if len(timeline.marks) > 1 else 0
        )
    builder = _GroupStoryBuilder(timeline, redelivered_ms(standing, streams))
    for item in merge_by_time(copies, streams):
        if isinstance(item, MessageCopy):
            builder.add_copy(item)
        else:
            builder.add_event(item)
    builder.reset_by(facts.now_ms)
    return _finish_story(timeline, group, standing, facts.now_ms)


def _not_passed_over(
    events: Iterable[RecordedEvent], copies: Iterable[MessageCopy], group: str
) -> list[RecordedEvent]:
    """Return the events without those about copies that were resent to other groups, because this group
    skipped those copies."""
    others = {
        (one.queue_id, one.offset)
        for one in copies
        if one.kind is CopyKind.MAIN and one.group not in ("", group)
    }
    return [
        one
        for one in events
        if one.event.number_of("retry")
        or (one.event.number_of("queue", -1), one.event.number_of("offset", -1)) not in others
    ]


def _is_of_none(recorded_event: RecordedEvent) -> bool:
    return not recorded_event.event.group and recorded_event.event.kind in _KINDS


class _GroupStoryBuilder:
    """Adds copies and events, in order, to the timeline of one group."""

    def __init__(self, timeline: Timeline, reset_ms: int) -> None:
        """Begin a story on `timeline`, without any deliveries yet.

        `reset_ms`: when a reset of the group's offset made the message be redelivered; 0: never.
        """
        self._timeline = timeline
        self._reset_ms = reset_ms
        self._extended = 0
        self._lease: StoryMark | None = None  # the last delivery's

    def reset_by(self, at_ms: int) -> None:
        """Apply the reset of the group's offset if it happened by `at_ms`: a message that was finished is
        queued again."""
        reset_ms = self._reset_ms
        if 0 < reset_ms <= at_ms:
            self._reset_ms = 0
            self._timeline.pass_to(reset_ms)
            if self._timeline.phase in ENDS:
                self._timeline.mark(reset_ms, Phase.QUEUED, "", "the group's offset was reset")

    def add_copy(self, copy: MessageCopy) -> None:
        """Add a stored record to the timeline."""
        timeline, at_ms = self._timeline, copy.stored_ms
        self.reset_by(at_ms)
        if copy.kind is CopyKind.LEVEL:
            why = f"retry path, step {copy.step} of 16, after {words.count_deliveries(copy)}"
            timeline.mark(at_ms, Phase.DELAYED, "", words.with_error(why, copy.error), _overdue_from(copy))
        elif copy.kind is CopyKind.RETRY:
            timeline.mark(
                at_ms, Phase.QUEUED, "", f"back from the retry path in {words.describe_position(copy)}"
            )
        elif copy.kind is CopyKind.DEAD:
            timeline.mark(at_ms, Phase.DEAD, "", words.death_reason(copy))
        elif copy.kind is CopyKind.MAIN:
            alone = " to this group alone" if copy.group else ""
            why = f"sent again from the dead letters{alone}, to {words.describe_position(copy)}"
            timeline.mark(at_ms, Phase.QUEUED, "", why)

    def add_event(self, timed_event: TimedEvent) -> None:
        """Add an event that a process recorded. An event that cannot follow the present phase (it came late,
        or an event before it is missing) changes nothing."""
        kind, timeline = TraceKind(timed_event.event.kind), self._timeline
        self.reset_by(timed_event.at_ms)
        timeline.pass_to(timed_event.at_ms)
        if kind in ENDINGS and timeline.phase in _AFTER:
            if self._lease is not None:
                add_why(self._lease, words.describe_ending(timed_event.event))
            return
        is_redelivery = kind is TraceKind.HANDED_OUT and timeline.phase in _UNDONE
        if is_redelivery or timeline.phase not in ENDS:
            _HANDLERS[kind](self, timed_event)

    def on_read(self, timed_event: TimedEvent) -> None:
        last = self._timeline.last
        has_new_owner = last.phase in (Phase.TURN, Phase.AGAIN) and last.who not in ("", timed_event.process)
        if has_new_owner or last.phase in (Phase.QUEUED, Phase.BETWEEN, Phase.OVERDUE, Phase.DELAYED):
            self._timeline.mark(timed_event.at_ms, Phase.TURN, timed_event.process)

    def on_released(self, timed_event: TimedEvent) -> None:
        timeline = self._timeline
        if timeline.phase is Phase.TURN:
            timeline.last.phase = Phase.KEY
            add_why(timeline.last, words.describe_key(timed_event.event))
            timeline.mark(timed_event.at_ms, Phase.TURN, timed_event.process)
        elif timeline.phase in (Phase.PARKED, Phase.KEY, Phase.BACKOFF):
            timeline.mark(timed_event.at_ms, Phase.AGAIN, timed_event.process)

    def on_handed_out(self, timed_event: TimedEvent) -> None:
        timeline, event = self._timeline, timed_event.event
        timeline.split_waits(event.waits(), timed_event.at_ms, timed_event.process)
        why = f"delivery {event.number_of('attempt', 1)} at {timed_event.process}"
        timeline.mark(timed_event.at_ms, Phase.LEASED, words.describe_client(event), why)
        self._lease, self._extended = timeline.last, 0

    def on_extended(self, timed_event: TimedEvent) -> None:
        lease = self._lease
        if self._timeline.phase is Phase.LEASED and lease is not None:
            before = f", lease extended {self._extended} ×" if self._extended else ""
            self._extended += 1
            lease.why = lease.why.removesuffix(before) + f", lease extended {self._extended} ×"

    def on_acked(self, timed_event: TimedEvent) -> None:
        self._timeline.mark(timed_event.at_ms, Phase.DONE)

    def on_failed(self, timed_event: TimedEvent) -> None:
        timeline, event = self._timeline, timed_event.event
        if timeline.phase is Phase.LEASED:
            timeline.explain_phase(words.describe_ending(event))
        following = event.text_of("next")
        retry_ms = event.number_of("again_ms", timed_event.at_ms)
        if following == "wait":
            timeline.mark(timed_event.at_ms, Phase.BACKOFF, timed_event.process, "", (retry_ms, Phase.AGAIN))
        elif following in _NEXT:
            timeline.mark(timed_event.at_ms, _NEXT[following], timed_event.process)
        else:
            timeline.mark(timed_event.at_ms, Phase.AGAIN, timed_event.process)

    def on_returned(self, timed_event: TimedEvent) -> None:
        following = _NEXT.get(timed_event.event.text_of("next"), Phase.AGAIN)
        if self._timeline.phase is Phase.LEASED:
            self._timeline.explain_phase("given back untried")
        self._timeline.mark(timed_event.at_ms, following, timed_event.process)

    def on_parked(self, timed_event: TimedEvent) -> None:
        self._timeline.mark(
            timed_event.at_ms, Phase.PARKED, timed_event.process, words.describe_key(timed_event.event)
        )

    def on_spent(self, timed_event: TimedEvent) -> None:
        if self._timeline.phase is Phase.LEASED:
            self._timeline.explain_phase(words.describe_ending(timed_event.event))
        if self._timeline.phase is not Phase.MOVING:
            self._timeline.mark(timed_event.at_ms, Phase.MOVING, timed_event.process)

    def on_queue_left(self, timed_event: TimedEvent) -> None:
        """Add that the process no longer owns the queue. The lease of a client stays in force."""
        if self._timeline.phase is Phase.LEASED:
            self._timeline.explain_phase(f"{timed_event.process} gave up the queue meanwhile")
        else:
            self._timeline.mark(timed_event.at_ms, Phase.BETWEEN, timed_event.process)

    def on_passed(self, timed_event: TimedEvent) -> None:
        self._timeline.mark(timed_event.at_ms, Phase.PASSED)

    def ignore_event(self, timed_event: TimedEvent) -> None:
        """Ignore an event that concerns no group."""


_NEXT = {"parked": Phase.PARKED, "spent": Phase.MOVING, "key": Phase.KEY}
_HANDLERS = {
    TraceKind.SENT: _GroupStoryBuilder.ignore_event,
    TraceKind.STORED: _GroupStoryBuilder.ignore_event,
    TraceKind.INGESTED: _GroupStoryBuilder.ignore_event,
    TraceKind.READ: _GroupStoryBuilder.on_read,
    TraceKind.RELEASED: _GroupStoryBuilder.on_released,
    TraceKind.HANDED_OUT: _GroupStoryBuilder.on_handed_out,
    TraceKind.EXTENDED: _GroupStoryBuilder.on_extended,
    TraceKind.ACKED: _GroupStoryBuilder.on_acked,
    TraceKind.FAILED: _GroupStoryBuilder.on_failed,
    TraceKind.TIMED_OUT: _GroupStoryBuilder.on_failed,
    TraceKind.RETURNED: _GroupStoryBuilder.on_returned,
    TraceKind.PARKED: _GroupStoryBuilder.on_parked,
    TraceKind.SPENT: _GroupStoryBuilder.on_spent,
    TraceKind.LEFT: _GroupStoryBuilder.on_queue_left,
    TraceKind.PASSED: _GroupStoryBuilder.on_passed,
}

# --- the end

FINISHED_SOMEWHERE = "finished in here; when was not recorded"
_NOW = {"behind its key": Phase.KEY, "parked": Phase.PARKED}  # states that say why it waits


def _finish_story(timeline: Timeline, group: str, standing: GroupStanding, now_ms: int) -> GroupStory:
    timeline.pass_to(now_ms)
    last = timeline.last
    if last.phase is Phase.PASSED:
        add_why(last, standing.filter_reason)
    elif last.phase not in ENDS and group:
        if standing.finished:
            _finished_somewhere(timeline, standing, now_ms)
        elif last.phase in WAITABLE:
            _waits_now(timeline, standing, now_ms)
    spans = timeline.spans(now_ms)
    end = timeline.last if timeline.phase in ENDS else None
    return GroupStory(
        group,
        standing.state,
        spans,
        None if end is None else end.phase,
        None if end is None else end.at_ms,
        "" if end is None else end.why,
    )


def _finished_somewhere(timeline: Timeline, standing: GroupStanding, now_ms: int) -> None:
    last = timeline.last
    why = FINISHED_SOMEWHERE
    if standing.created_ms > last.at_ms and last.phase is Phase.QUEUED:
        why = "finished: consumed, or passed over when the group was made, which was later"
    elif last.phase is not Phase.QUEUED:
        why = f"{last.phase.value}, then {why}"
    if last.phase is Phase.QUEUED:
        add_why(last, standing.filter_reason)
    last.phase = Phase.UNKNOWN
    add_why(last, why)


def _waits_now(timeline: Timeline, standing: GroupStanding, now_ms: int) -> None:
    last = timeline.last
    phase = _NOW.get(standing.state)
    if phase is not None and last.phase is Phase.TURN:
        last.phase = phase
    elif phase is not None or standing.state not in ("", "not yet"):
        add_why(last, f"now: {standing.state}")
    else:
        timeline.split_waits(standing.waits, now_ms)


def _overdue_from(copy: MessageCopy) -> tuple[int, Phase] | None:
    """Return when the message becomes overdue and the phase that then begins; None if its due time is unknown
    (of a repeating message)."""
    return (copy.due_ms, Phase.OVERDUE) if copy.due_ms else None
