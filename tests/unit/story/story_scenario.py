"""A story as text: what is known of a message, line by line, and the spans that are told of it.

copy main 100 born=98                     a record, and when it was stored
copy level 300 group=g due=10300 step=1   of a retry
event p SENT 98 client=c                  an event of process p, outside any group
event p READ 105 g queue=0 offset=0       one for group g
group g open in flight                    where it is for group g now; `done` in place of `open`
reset g 400                               when the offset of that group was reset
now 5000
tell
"""

from __future__ import annotations

import json
from typing import Any

from ddmq.server.story.core.facts import (
    CopyKind,
    GroupStanding,
    GroupStory,
    MessageCopy,
    RecordedEvent,
    StoryFacts,
)
from ddmq.server.story.core.story_builder import build_stories
from ddmq_common.trace.events import TraceEvent, TraceKind


class StoryScenario:
    """What was said so far."""

    def __init__(self) -> None:
        self.copies: list[MessageCopy] = []
        self.events: list[RecordedEvent] = []
        self.groups: list[GroupStanding] = []
        self.now_ms = 0

    def copy(self, kind: str, stored_ms: str, *words: str) -> None:
        values: dict[str, Any] = dict(word.split("=", 1) for word in words)
        number = {"born": "born_ms", "due": "due_ms", "step": "step", "deliveries": "deliveries",
                  "queue": "queue_id", "offset": "offset"}  # fmt: skip
        fields: dict[str, Any] = {"queue_id": 0, "offset": 0, "born_ms": 0}
        fields |= {number[name]: int(value) for name, value in values.items() if name in number}
        fields |= {name: value.replace("_", " ") for name, value in values.items() if name not in number}
        self.copies.append(MessageCopy(CopyKind[kind.upper()], "orders", stored_ms=int(stored_ms), **fields))

    def event(self, process: str, kind: str, at_ms: str, *words: str) -> None:
        group = words[0] if words and "=" not in words[0] else ""
        values = dict(word.split("=", 1) for word in words if "=" in word)
        facts: dict[str, Any] = {name: _value(text) for name, text in values.items()}
        number = len(self.events) + 1
        event = TraceEvent(number, TraceKind[kind], int(at_ms), group, facts)
        self.events.append(RecordedEvent(process, process, event))

    def group(self, name: str, finished: str, *state: str) -> None:
        self.groups.append(GroupStanding(name, " ".join(state), finished == "done"))

    def reset(self, name: str, at_ms: str) -> None:
        self.groups = [one._replace(reset_ms=int(at_ms)) if one.group == name else one for one in self.groups]

    def now(self, now_ms: str) -> None:
        self.now_ms = int(now_ms)

    def tell(self) -> str:
        stories = build_stories(StoryFacts(self.copies, self.events, self.groups, self.now_ms))
        return "\n> ".join(line for story in stories for line in shown(story))


def _value(text: str) -> Any:
    if text.startswith("["):
        return json.loads(text)
    return int(text) if text.lstrip("-").isdigit() else text.replace("_", " ")


def shown(story: GroupStory) -> list[str]:
    end = "" if story.end is None else f" → {story.end.name} at {story.end_ms} {story.end_why}".rstrip()
    lines = [f"{story.group or '(no group)'}: {story.total_ms} ms{end}"]
    for span in story.spans:
        words = "  ".join(word for word in (span.who, span.why) if word)
        lines.append(f"  {span.start_ms}-{span.end_ms} {span.phase.name} {words}".rstrip())
    return lines
