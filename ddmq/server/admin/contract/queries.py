"""The queries of requests: their names, and the allowed values of each.

A title says what a name means, a description which values are allowed. A count above the most that a request
returns is no error, so that clients may ask for more than this release returns.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from ddmq.server.admin.keys import LIMIT_DEFAULT, LIMIT_MAX
from ddmq.server.http.parameters import NUMBER_MAX, Query
from ddmq.server.http.routing import COUNT_MAX, Page
from ddmq.server.live.core.rings import STEP_MAX_S

_Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
TEXT_CHARS_MAX = 200  # of a text to search for
_WHOLE = "a whole number of 0 or more"
Flag = Annotated[bool, Meta(description="0, 1, false, true")]
Count = Annotated[_Number, Meta(title="the most entries that are returned", description=_WHOLE)]
PageCount = Annotated[
    _Number | None, Meta(title="the most entries that are returned; absent: all", description=_WHOLE)
]
Cursor = Annotated[
    str | None, Meta(title="the position to continue from", description="the `next` of an earlier answer")
]
TopicName = Annotated[str | None, Meta(title="only of this topic", description="the name of a topic")]
GroupName = Annotated[str | None, Meta(title="only of this group", description="the name of a group")]
KeyText = Annotated[str | None, Meta(title="only messages with this key", description="a text")]
MessageId = Annotated[str | None, Meta(title="the message with this id", description="32 hex digits")]
QueueNumber = Annotated[
    _Number, Meta(title="the queue that `offset` refers to", description="the number of a queue")
]
FromOffset = Annotated[_Number | None, Meta(title="the first offset in `queue`", description=_WHOLE)]
Time = Annotated[_Number | None, Meta(description="a time in epoch milliseconds")]
SearchText = Annotated[
    Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)] | None,
    Meta(description=f"a text of 1 to {TEXT_CHARS_MAX} characters"),
]
KeyState = Literal["ready", "in flight", "retrying", "parked", "being acknowledged", "to the dead letters"]
_STATES = ", ".join(get_args(KeyState))
KeysMax = Annotated[
    Annotated[int, Meta(ge=1, le=LIMIT_MAX)],
    Meta(title="the most keys that are returned", description=f"1 to {LIMIT_MAX}"),
]


Sort = Annotated[
    Annotated[str, Meta(min_length=1)] | None,
    Meta(title="the order; for form 2", description="a field by which the list can be sorted, or -field"),
]


class FormQuery(Query):
    """The form of an answer, which every query may state."""

    form: Annotated[
        Annotated[int, Meta(ge=1, le=2)],
        Meta(title="the form of the answer: 1 is that of earlier releases", description="1, 2"),
    ] = 1
    fields: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            title="only these fields of the object, or of each item, even if the others are required",
            description="names of fields with commas between them",
        ),
    ] = None


class ListQuery(FormQuery):
    """One page of a list. The names are for form 2, as far as a list has not had them before."""

    count: PageCount = None
    after: Cursor = None
    sort: Sort = None
    text: Annotated[SearchText, Meta(title="only items with this text in a name; for form 2")] = None


class PageQuery(ListQuery):
    """One page of a listing that is sorted by name. In form 1, `after` is the last name of the page before,
    and all entries are returned without a count."""

    @property
    def page(self) -> Page:
        """The page of the listing in form 1."""
        return Page(self.after or "", COUNT_MAX if self.count is None else self.count)


class TopicsQuery(PageQuery):
    """One page of the topics. `internal`: include the system's own topics."""

    internal: Annotated[Flag, Meta(title="include the system's own topics")] = False


class MessagesQuery(ListQuery):
    """A choice of messages of one topic: by id, key, offset or time, else the newest."""

    id: MessageId = None
    key: KeyText = None
    queue: QueueNumber = 0
    offset: FromOffset = None
    time_ms: Annotated[Time, Meta(title="the first messages stored at or after this time")] = None
    count: Count = 10
    group: Annotated[GroupName, Meta(title="add the state of each message in this group")] = None


class MessageQuery(FormQuery):
    """A message with its state in a group."""

    group: Annotated[GroupName, Meta(title="add the state of the message in this group")] = None


class StoryQuery(FormQuery):
    """The story of a message that the path names."""

    group: GroupName = None


class TopicStoryQuery(FormQuery):
    """A choice of one message of a topic: by id, by key, or by queue and offset."""

    id: MessageId = None
    key: Annotated[KeyText, Meta(title="the newest message with this key")] = None
    queue: QueueNumber = 0
    offset: Annotated[FromOffset, Meta(title="the message's offset in `queue`")] = None
    group: GroupName = None


class LagQuery(ListQuery):
    """A choice of the subscriptions that are furthest behind."""

    group: GroupName = None


class GroupDetailQuery(FormQuery):
    """The extent of the answer about a group."""

    keys: Annotated[KeysMax, Meta(title="the most blocked keys that are returned")] = LIMIT_DEFAULT


class GroupTopicQuery(FormQuery):
    """A choice of one subscription of a group, or of all."""

    topic: TopicName = None


class OffsetsQuery(ListQuery):
    """A choice of the queues of one topic, or of all that a group consumes."""

    topic: TopicName = None


class GroupKeysQuery(ListQuery):
    """The extent of a listing of blocked keys."""

    limit: KeysMax = LIMIT_DEFAULT


class KeysQuery(ListQuery):
    """A choice of the blocked and parked keys of all groups."""

    group: GroupName = None
    state: Annotated[KeyState | None, Meta(title="only keys in this state", description=_STATES)] = None
    error: Annotated[
        str | None, Meta(title="only keys with this error class", description="an `error` in `by_error`")
    ] = None
    text: Annotated[SearchText, Meta(title="only keys with this text in the key or in the error")] = None
    count: Count = 20


class DeadLetterChoiceQuery(FormQuery):
    """A choice of open dead letters."""

    reason: Annotated[str | None, Meta(title="only dead letters with this reason", description="a text")] = (
        None
    )
    error: Annotated[
        str | None,
        Meta(title="only dead letters with this error class", description="a `value` in `by_error`"),
    ] = None
    topic: TopicName = None
    since_ms: Annotated[Time, Meta(title="only dead letters since this time")] = None
    until_ms: Annotated[Time, Meta(title="only dead letters before this time")] = None
    text: Annotated[
        SearchText, Meta(title="only dead letters with this text in the key, the error or the body")
    ] = None


class DeadLetterExportQuery(DeadLetterChoiceQuery):
    """A choice of open dead letters that are exported."""

    after: Cursor = None


class DeadLetterFacetsQuery(DeadLetterChoiceQuery):
    """A choice of open dead letters that are counted, and the order in which they are examined."""

    order: Annotated[
        Literal["oldest", "newest"],
        Meta(title="the dead letters with which to begin", description="oldest, newest"),
    ] = "oldest"
    start: Annotated[
        _Number | None,
        Meta(title="the offset with which to begin: the `next` of an earlier answer", description=_WHOLE),
    ] = msgspec.field(name="from", default=None)


class DeadLettersQuery(DeadLetterFacetsQuery):
    """A choice of open dead letters that are listed. `from` and `order` are for form 1."""

    count: Count = 20
    after: Cursor = None
    sort: Sort = None


class ChangesQuery(ListQuery):
    """A page of the recorded changes, the newest first."""

    count: Count = 20


class IdentitiesQuery(Query):
    """A page of the identities, by name."""

    count: Count = 100
    after: Cursor = None
    text: Annotated[SearchText, Meta(title="only identities with this text in their name")] = None


class TokensQuery(Query):
    """A page of the tokens, the newest first."""

    identity: Annotated[
        str | None, Meta(title="only of this identity", description="the name of an identity")
    ] = None
    count: Count = 100
    after: Cursor = None


class RightQuery(Query):
    """The question whether an identity has a right on a name."""

    identity: Annotated[str, Meta(title="the identity", description="the name of an identity")]
    right: Annotated[str, Meta(title="the right", description="a right of docs/security.md")]
    name: Annotated[
        Annotated[str, Meta(max_length=256)],
        Meta(
            title="of a topic or group; empty for a right on the installation",
            description="a name of up to 256 characters",
        ),
    ] = ""


class AuditQuery(Query):
    """A page of the audit log, the newest lines first."""

    who: Annotated[str | None, Meta(title="only of this identity", description="a text")] = None
    event: Annotated[
        Literal["change", "rejected", "login", "login_rejected"] | None,
        Meta(title="only such lines", description="change, rejected, login, login_rejected"),
    ] = None
    text: Annotated[SearchText, Meta(title="only lines with this text")] = None
    count: Count = 50
    after: Cursor = None


class TransactionsQuery(ListQuery):
    """A choice of open transactions."""

    group: Annotated[
        str | None, Meta(title="only of this producer group", description="the name of a producer group")
    ] = None
    count: Count = 20


class DelayCountQuery(FormQuery):
    """A choice of delayed messages that are counted."""

    topic: TopicName = None
    key: KeyText = None
    from_ms: Annotated[Time, Meta(title="the first due time")] = None
    to_ms: Annotated[Time, Meta(title="the end of the due times, exclusive")] = None
    count: Annotated[
        _Number | None, Meta(title="the most messages that are counted; absent: 1000000", description=_WHOLE)
    ] = None
    after: Cursor = None


class DelaysQuery(DelayCountQuery):
    """A choice of delayed messages that are listed."""

    count: Count = 20
    sort: Sort = None
    text: Annotated[
        SearchText, Meta(title="only messages with this text in the key or the body; for form 2")
    ] = None


BUCKETS_MAX = 200


class DelayHistogramQuery(Query):
    """A range of due times that is divided into steps of equal length."""

    topic: TopicName = None
    from_ms: Annotated[Time, Meta(title="the first due time; absent: that of the first message")] = None
    to_ms: Annotated[
        Time, Meta(title="the end of the due times, exclusive; absent: after the last message")
    ] = None
    buckets: Annotated[
        Annotated[int, Meta(ge=1, le=BUCKETS_MAX)],
        Meta(title="the most steps", description=f"1 to {BUCKETS_MAX}"),
    ] = BUCKETS_MAX


class ClientsQuery(ListQuery):
    """A choice of the clients of all groups."""

    group: GroupName = None
    count: Count = 100


class RetriesQuery(ListQuery, kw_only=True):
    """A choice of the messages on the retry path of a group."""

    group: Annotated[
        Annotated[str, Meta(min_length=1)],
        Meta(title="the group", description="the name of a group"),
    ]
    topic: TopicName = None
    count: Count = 100
    text: Annotated[
        SearchText,
        Meta(title="only messages with this text in the key, the error or the body; for form 2"),
    ] = None


class ConfigQuery(Query):
    """A choice of the settings of a process. `changed`: only those that are not the defaults."""

    changed: Annotated[Flag, Meta(title="only settings that are not the defaults")] = False


class HistoryQuery(Query):
    """A choice of series: totals, or those of a topic or of a subscription, in a range of time."""

    series: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(title="the series; absent: all", description="names of series with commas between them"),
    ] = None
    topic: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(title="the series of this topic", description="the name of a topic"),
    ] = None
    group: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(title="the series of this group's subscription to `topic`", description="the name of a group"),
    ] = None
    from_ms: Annotated[Time, Meta(title="the beginning; absent: ten minutes ago")] = None
    step_s: Annotated[
        Annotated[int, Meta(ge=1, le=STEP_MAX_S)] | None,
        Meta(
            title="the seconds that a value covers; absent: as few as 1,000 values allow",
            description=f"1 to {STEP_MAX_S}",
        ),
    ] = None
