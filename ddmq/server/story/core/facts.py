"""The facts about one message, and the story made of them. Plain data. Times: epoch ms."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ddmq_common.trace.events import TraceEvent, Wait


class Phase(Enum):
    """The state of a message, or the reason why it waits; the value is the text for people. The reasons of
    recorded waits are members, by their names in lower case."""

    SENDING = "on its way into the log"
    COMMIT = "the commit: written, synced, answered"
    HELD_BACK = "held back by the producer proxy"
    TRANSACTION = "in its transaction, not decided"
    DELAYED = "delayed"
    OVERDUE = "due, not fired yet"
    QUEUED = "in its queue, not recorded why"
    NO_PULL = "nobody pulled"
    TURN = "its turn had not come"
    CONCURRENCY = "concurrency: as many in flight as may be"
    BYTES = "in_flight_bytes_max: as many bytes in flight as may be"
    RATE = "rate_max: the group's rate limit"
    RETRYING = "retrying_max: as many retries waiting as may be"
    BETWEEN = "its queue was between two owners"
    ANEW = "its queues were loaded anew"
    CLOSED = "the topic may not be read"
    KEY = "behind an earlier message of its order key"
    PARKED = "its order key was parked"
    LEASED = "with a client"
    BACKOFF = "waited for its retry"
    AGAIN = "to be delivered again"
    MOVING = "on its way to the retry path or the dead letters"
    UNKNOWN = "not recorded"
    MANY = "much else, left out here"
    DONE = "acknowledged"
    DEAD = "dead letter"
    PASSED = "finished undelivered"
    ROLLED_BACK = "rolled back with its transaction"
    CANCELLED = "cancelled before it was due"

    __hash__ = object.__hash__  # members are singletons


ENDS = frozenset((Phase.DONE, Phase.DEAD, Phase.PASSED, Phase.ROLLED_BACK, Phase.CANCELLED))
WAITABLE = frozenset((Phase.QUEUED, Phase.TURN, Phase.AGAIN))  # what a noted wait says more about
OPEN = frozenset((Phase.QUEUED, Phase.UNKNOWN))  # nobody knows what for


class CopyKind(Enum):
    """The kind of topic in which a record of the message is stored."""

    MAIN = "its topic"
    HALF = "a transaction"
    ROLLED_BACK = "how its transaction ended"
    LEVEL = "a delay level"
    COMMAND = "the delay service's topic"
    CANCELLED = "how its delay ended"
    RETRY = "the group's retry topic"
    DEAD = "the dead letters"


class MessageCopy(NamedTuple):
    """One stored record of the message. `group`: the group that it concerns; "" means every group (in the
    message's own topic) or none.

    `step`, `deliveries`, `error`: of a retry. `reason`: for a dead letter why it is one, for a half message
    its transaction, for a command its uuid.
    """

    kind: CopyKind
    topic: str
    queue_id: int
    offset: int
    born_ms: int
    stored_ms: int
    group: str = ""
    due_ms: int = 0
    step: int = 0
    deliveries: int = 0
    reason: str = ""
    error: str = ""
    position: int = -1  # in the log, where the engine has one order of all topics

    @property
    def when(self) -> tuple[int, int]:
        return self.stored_ms, self.position


class RecordedEvent(NamedTuple):
    """A trace event, the process that recorded it, and the start of that process (`instance`)."""

    process: str
    instance: str
    event: TraceEvent


class GroupStanding(NamedTuple):
    """The present state of the message for one group: `state` in words; `finished`: the group will not get it
    any more.

    `waits`: the recorded reasons why the group's deliveries wait. `created_ms`: when the group was created.
    `filter_reason`: the group's present filter, if it rejects the message. `reset_ms`: when the group's
    offset was reset; 0: never.
    """

    group: str
    state: str
    finished: bool
    waits: Sequence[Wait] = ()
    created_ms: int = 0
    filter_reason: str = ""
    reset_ms: int = 0


class StoryFacts(NamedTuple):
    """All facts from which a story is built, as of `now_ms` on the store's clock."""

    copies: Sequence[MessageCopy]
    events: Sequence[RecordedEvent]
    groups: Sequence[GroupStanding]
    now_ms: int


class StorySpan(NamedTuple):
    """One span of a message's time, in one phase. `has_reason` is False if no record says what the message
    waited for."""

    start_ms: int
    end_ms: int
    phase: Phase
    who: str
    why: str

    @property
    def has_reason(self) -> bool:
        return self.phase not in OPEN


class GroupStory(NamedTuple):
    """The story of the message for one group: consecutive spans from the send to the end, or to now.

    `end`: None if there is no known end. `group`: "" for the way to the topic, if no group reads the topic.
    """

    group: str
    state: str
    spans: Sequence[StorySpan]
    end: Phase | None
    end_ms: int | None
    end_why: str

    @property
    def total_ms(self) -> int:
        return self.spans[-1].end_ms - self.spans[0].start_ms if self.spans else 0
