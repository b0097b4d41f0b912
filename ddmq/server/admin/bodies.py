"""The bodies of changes, except settings of topics and groups, which have their own tables."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from ddmq.server.http.parameters import Body

Flag = Annotated[bool, Meta(description="true, false")]
EpochMs = Annotated[
    Annotated[int, Meta(ge=0, le=10**15)] | None, Meta(description="a time in epoch milliseconds")
]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


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
    reason: Annotated[str | None, Meta(description="a text")] = None
    topic: Annotated[str | None, Meta(description="a text")] = None
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
