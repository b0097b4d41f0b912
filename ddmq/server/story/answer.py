"""The story of one message as the admin port answers it; `ddmq message --story` prints the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.port import Backend
from backend.records import StoredRecord
from backend.traces import one_in_of
from ddmq.server.admin.messages import Live, find_by_id, find_by_key, find_by_offset
from ddmq.server.admin.offsets import check_group
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import AdminRequest, NoSuchMessageError
from ddmq.server.story.core.facts import GroupStory, StorySpan
from ddmq.server.story.core.story_builder import build_stories
from ddmq.server.story.gather import Delayed, GatheredStory, StoryGatherer, Waits
from ddmq_common import delivery
from ddmq_common.errors import CallerError
from ddmq_common.trace.sampling import is_sampled, limit_of


class StoryQueries:
    """Answers requests for the story of a message: where its time went. `live`, `waits`: what the consumer
    proxy of this process knows; None if it runs elsewhere."""

    def __init__(self, backend: Backend, live: Live | None, waits: Waits | None, delayed: Delayed) -> None:
        self._backend = backend
        self._delayed = delayed
        self._live = live
        self._waits = waits

    def by_id(self, request: AdminRequest) -> Any:
        """Return the story of the message with the id in the path, from any topic."""
        message_id = request.path["id"]
        records = find_by_id(self._backend, None, message_id)
        return self._story_answer(
            records, request, f"no message with id {message_id}; it may be older than what is kept"
        )

    def in_topic(self, request: AdminRequest) -> Any:
        """Return the story of one message of a topic, chosen by id, by queue and offset, or as the newest
        with a key."""
        topic, query = request.topic, request.query
        if sum(choice is not None for choice in (query.id, query.key, query.offset)) != 1:
            raise CallerError("a story is told of one message; allowed: one of id, key, or queue and offset")
        if query.id is not None:
            records = find_by_id(self._backend, topic, query.id)
        elif query.key is not None:
            records = find_by_key(self._backend, topic, query.key, 1)
        else:
            records = find_by_offset(self._backend, topic, query.queue, query.offset, 1)
            records = [record for record in records if record.offset == query.offset]
        return self._story_answer(
            records, request, f"no such message in topic {topic!r}; it may be older than what is kept"
        )

    def _story_answer(
        self, records: Sequence[StoredRecord], request: AdminRequest, missing: str
    ) -> dict[str, Any]:
        if not records:
            raise NoSuchMessageError(missing)
        only = request.query.group
        if only is not None:
            check_group(self._backend, only)
        gatherer = StoryGatherer(self._backend, self._live, self._waits, self._delayed)
        gathered = gatherer.gather_story(records[0], only)
        return story_row(self._backend, records[0], gathered)


def story_row(backend: Backend, record: StoredRecord, gathered: GatheredStory) -> dict[str, Any]:
    """Return the story of a message, for people and programs. Times are epoch milliseconds."""
    stories = list(paced(build_stories(gathered.facts)))
    key = delivery.key_and_tags(record.delivery)[0]
    row: dict[str, Any] = {
        "id": record.message_id.hex(),
        "topic": gathered.topic,
        "key": key[:200].decode("utf-8", "replace"),
        "sent_ms": min((story.spans[0].start_ms for story in stories), default=record.born_ms),
        "now_ms": gathered.facts.now_ms,
        "trace_events": len(gathered.facts.events),
        "notes": [*gathered.caveats, *_tracing_hints(backend, record.message_id, gathered)],
        "stories": [_group_row(story) for story in stories],
    }
    if gathered.main is not None:
        row |= {"queue": gathered.main.queue_id, "offset": gathered.main.offset}
    return row


def _tracing_hints(backend: Backend, message_id: bytes, gathered: GatheredStory) -> list[str]:
    if gathered.facts.events or not gathered.topic:
        return []
    topic, one_in = gathered.topic, one_in_of(backend, gathered.topic)
    if is_sampled(message_id, limit_of(one_in)):
        return [
            f"the log has no trace event of this message yet, although topic {topic} traces 1 in {one_in}: "
            "events arrive about a second late. Until then, this story is made from the stored records alone"
        ]
    if one_in:
        return [
            f"this message was not traced (topic {topic} traces 1 in {one_in}): this story is made from the "
            "stored records alone"
        ]
    return [
        "this message was not traced: this story is made from the stored records alone. To trace messages "
        f"that are sent from now on: `ddmq topic set {topic} --trace-one-in 1`"
    ]


def _group_row(story: GroupStory) -> dict[str, Any]:
    return {
        "group": story.group,
        "state": story.state,
        "whole_ms": story.total_ms,
        "end": None if story.end is None else story.end.name.lower(),
        "ended_ms": story.end_ms,
        "end_why": story.end_why,
        "spans": [_span_row(span) for span in story.spans],
    }


def _span_row(span: StorySpan) -> dict[str, Any]:
    return {
        "start_ms": span.start_ms,
        "end_ms": span.end_ms,
        "ms": span.end_ms - span.start_ms,
        "phase": span.phase.name.lower(),
        "what": span.phase.value,
        "known": span.has_reason,
        "who": span.who,
        "why": span.why,
    }
