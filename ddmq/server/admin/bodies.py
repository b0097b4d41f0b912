"""The bodies of changes, except settings of topics and groups, which have their own tables."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from ddmq.server.http.parameters import Body

Flag = Annotated[bool, Meta(description="true, false")]
EpochMs = Annotated[
    Annotated[int, Meta(ge=0, le=10**15)] | None, Meta(description="a time in epoch milliseconds")
]
DueMs = Annotated[
    Annotated[int, Meta(ge=0, le=253_402_300_799_999)] | None,
    Meta(description="a time in epoch milliseconds, at most the end of the year 9999"),
]
DurationMs = Annotated[
    Annotated[int, Meta(ge=0, le=10**15)] | None, Meta(description="milliseconds, 0 or more")
]
TimeoutMs = Annotated[
    Annotated[int, Meta(ge=1, le=10**9)] | None, Meta(description="milliseconds, 1 or more")
]
OptionalText = Annotated[str | None, Meta(description="a text")]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
QUEUE_MAX = (1 << 31) - 1


class OffsetResetBody(Body):
    """A reset of a group's offsets. `to`: "first", "last", an offset or a time; `queue`: None for all."""

    topic: Annotated[str, Meta(min_length=1, description="the name of a topic that the group consumes")]
    to: Annotated[Any, Meta(description="first, last, an offset, or a time")] = None
    queue: Annotated[int | None, Meta(description="a queue number, or null for all")] = None
    dry_run: Flag = False


class KeyActionBody(Body):
    """An operator's action on a blocked key. `take_away`: a replay ends the lease of a client."""

    action: Annotated[Literal["park", "skip", "replay"], Meta(description="park, skip, replay")]
    key: Annotated[str, Meta(description="the key as text, as `ddmq group keys` shows it")]
    take_away: Flag = False


class DeadLetterResendBody(Body):
    """Which dead letters are sent again, and to whom. `cursor`: the one of an earlier answer."""

    all: Flag = False
    offsets: Annotated[list[Offset], Meta(description="a list of whole numbers of 0 or more")] = []
    reason: OptionalText = None
    topic: OptionalText = None
    since_ms: EpochMs = None
    to_topic: Flag = False
    dry_run: Flag = False
    cursor: Annotated[
        list[tuple[Offset, Offset, Offset]] | None,
        Meta(description="the cursor of an earlier answer, or null"),
    ] = None


class DeadLetterPurgeBody(Body):
    """Which dead letters are discarded: all, or those stored before a time."""

    all: Flag = False
    before_ms: EpochMs = None
    dry_run: Flag = False


class TransactionEndBody(Body):
    """An operator's decision about an open transaction."""

    action: Annotated[Literal["commit", "rollback"], Meta(description="commit, rollback")]


class DelayBackupBody(Body):
    """A backup of the delay service. `shards` and `secret`: from a process that has begun the backup."""

    folder: Annotated[Any, Meta(description="the name of a new folder below backup_dir")] = None
    shards: Annotated[list[Offset] | None, Meta(description="a list of shard numbers")] = None
    secret: Annotated[Any, Meta(description="the secret of a backup that has begun")] = None


class MessageSendBody(Body):
    """A message to send. `shard_key`: a text, which is hashed, or the hash id itself."""

    topic: Annotated[str, Meta(description="the name of a topic")]
    body: OptionalText = None
    body_base64: Annotated[bytes | None, Meta(description="bytes in base64")] = None
    key: OptionalText = None
    tags: OptionalText = None
    properties: Annotated[dict[str, str] | None, Meta(description="a map of text to text")] = None
    queue: Annotated[Annotated[int, Meta(ge=0, le=QUEUE_MAX)] | None, Meta(description="a queue number")] = (
        None
    )
    shard_key: Annotated[
        str | Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None,
        Meta(description="a text, or a whole number of 64 bits"),
    ] = None
    idempotency_key: OptionalText = None
    delay_ms: DurationMs = None
    due_ms: DueMs = None
    cron: OptionalText = None
    zone: OptionalText = None
    every_ms: Annotated[
        Annotated[int, Meta(ge=1, le=10**15)] | None, Meta(description="milliseconds, 1 or more")
    ] = None
    times: Annotated[Annotated[int, Meta(ge=1, le=10**9)] | None, Meta(description="1 or more")] = None
    catch_up: Annotated[
        Literal["fire_once", "all", "skip"] | None, Meta(description="fire_once, all, skip")
    ] = None
    level: Annotated[int | None, Meta(description="the number of a delay level")] = None
    timeout_ms: TimeoutMs = None


class DelayChangeBody(Body):
    """An operator's change of a delayed message. `due_ms` or `delay_ms`: the new due time."""

    action: Annotated[Literal["cancel", "fire", "reschedule"], Meta(description="cancel, fire, reschedule")]
    due_ms: DueMs = None
    delay_ms: DurationMs = None
    timeout_ms: TimeoutMs = None
