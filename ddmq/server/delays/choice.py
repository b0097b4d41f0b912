"""Which waiting messages a request of the admin API chooses, and where a listing continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from backend.progress.ack_map import OFFSET_END
from ddmq.server.admin.contract.forms import FIRST
from ddmq.server.admin.contract.queries import DelayCountQuery, DelaysQuery
from ddmq.server.http.routing import AdminRequest
from ddmq_common import delivery
from ddmq_common.errors import CallerError, DamagedError
from delay_service.store.port import DueKey, Pending

FOREVER_MS = 1 << 62
_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Cursor(NamedTuple):
    """A position in the listing of waiting messages of all shards, sorted by due time."""

    due_ms: int
    shard: int
    offset: int

    def after_in(self, shard: int) -> DueKey:
        """Return the key in the order of one shard behind which a listing continues from this position."""
        if shard == self.shard:
            return DueKey(self.due_ms, self.offset)
        return DueKey(self.due_ms, OFFSET_END) if shard < self.shard else DueKey(self.due_ms - 1, OFFSET_END)


class ListPosition(msgspec.Struct, array_like=True, frozen=True):
    """The position behind which the next page begins, as `next` of form 2 contains it. `passed`: the shards
    whose messages a page in front of it lacks."""

    due_ms: _Number
    shard: _Number
    offset: _Number
    passed: tuple[_Number, ...] = ()

    def to_cursor(self) -> Cursor:
        return Cursor(self.due_ms, self.shard, self.offset)


class DelayChoice(NamedTuple):
    """A choice of waiting messages: those of `topic` with this `key` (None: any key), due from `start` until
    before `end`, after the position `cursor`, with `text` in the key or the body. `allows`: whether the
    caller may see a topic; None: it may see all."""

    topic: str | None
    key: str | None
    start: int
    end: int
    after: Cursor | None
    text: str | None = None
    allows: Callable[[str], bool] | None = None

    def has_topic(self, topic: str) -> bool:
        """Return whether the choice includes messages of a topic."""
        return self.topic in (None, topic) and (self.allows is None or self.allows(topic))

    @property
    def is_examined(self) -> bool:
        """Whether a message must be examined, because the store does not check all criteria."""
        return self.key is not None or self.text is not None or self.allows is not None

    @property
    def includes_all(self) -> bool:
        """Whether the choice includes every waiting message of the topic."""
        return self == (self.topic, None, 0, FOREVER_MS, None, None, None)

    def matches(self, message: Pending) -> bool:
        """Return whether the message has the requested key; the store has checked the other criteria."""
        if self.allows is not None and not self.allows(message.topic):
            return False
        texts = [
            text.encode("utf-8", "surrogateescape") for text in (self.key, self.text) if text is not None
        ]
        if not all(text in message.delivery for text in texts):  # much cheaper than to parse it
            return False
        if not texts:
            return True
        try:
            content = delivery.decode(message.delivery)
        except DamagedError:
            return False
        text = None if self.text is None else texts[-1]
        return self.key in (None, content.key.decode("utf-8", "surrogateescape")) and (
            text is None or text in content.key or text in content.value
        )


def reads_contents(query: DelayCountQuery) -> bool:
    """Return whether a query chooses messages by their contents, of which its answer then says something."""
    return query.key is not None or getattr(query, "text", None) is not None


def read_choice(request: AdminRequest) -> DelayChoice:
    """Return the choice that the query of a request states, of the topics that its caller may see. `after` is
    that of form 1."""
    query: DelayCountQuery = request.query
    right = "browse" if reads_contents(query) else "describe"
    allows = request.visible(right) if query.topic is None else None  # a rule checks the right to one topic
    is_first = query.form == FIRST or not isinstance(query, DelaysQuery)
    after = parse_cursor(query.after) if query.after is not None and is_first else None
    end = FOREVER_MS if query.to_ms is None else query.to_ms
    return DelayChoice(query.topic, query.key, query.from_ms or 0, end, after, None, allows)


def parse_cursor(text: str) -> Cursor:
    numbers = text.split(".")
    if len(numbers) != 3 or not all(number.isdecimal() and len(number) <= 19 for number in numbers):
        raise CallerError(f"after is {text!r}; the `next` of an earlier answer is wanted")
    return Cursor(*map(int, numbers))


def format_cursor(cursor: Cursor | None) -> str | None:
    return None if cursor is None else ".".join(str(number) for number in cursor)
