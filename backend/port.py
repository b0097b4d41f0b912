"""The backend port: what the proxies and the delay service ask of any engine.

Rules every engine keeps (the tests of backend/testing prove them):
* Nothing here blocks. A call that may wait returns a Completion, settled on the hub's thread, at the
  latest at its `deadline` (monotonic seconds, as Clock.monotonic). `into` hands in the caller's own
  Completion subclass, so that one request is one object.
* Appends to one queue that were called in order are stored in order.
* Commits that name one queue's progress under one epoch take effect in the order of the calls, those too
  whose answer was "unknown". So once a later one has succeeded, an earlier one counts or never will.
* A reader sees a record only once it has the durability its topic asks for.
* Nothing assumes that an append is local, that offsets have no gaps, or that progress lives here.
* Errors come from ddmq_common.errors, inside the completion; bad arguments raise at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from backend.completion import Completion, succeeded
from backend.engine import TopicAnswer, check_find, check_read
from backend.records import (
    AppendResult,
    Bounds,
    Capabilities,
    CommitBatch,
    NewRecord,
    ProgressView,
    QueueRef,
    ReadBatch,
    StoredRecord,
    TopicInfo,
)


class Wait(Completion[bool]):
    """True when there is data past the offset, False at the deadline. `cancel` settles nothing."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = False

    def cancel(self) -> None:
        """The caller lost interest; it will not be settled any more. Harmless when done."""
        self.cancelled = True


class ReadCall(NamedTuple):
    """What one call of Backend.read asks for."""

    queue: QueueRef
    offset: int
    count_max: int
    bytes_max: int
    tags: frozenset[int] | None = None
    ids: bool = False


class FindCall(NamedTuple):
    """What one call of Backend.find asks for: one of key and message id."""

    topic: str
    key: bytes | None
    message_id: bytes | None
    count_max: int


class Sharing(Enum):
    """How the queues of a topic that several members of a group joined are given to them."""

    AVERAGELY = "averagely"  # consecutive queues, as even as can be
    BY_CIRCLE = "by-circle"  # one each in turn
    CONSISTENT_HASH = "consistent-hash"  # few queues move when members come and go
    WHOLE_TOPIC = "whole topic"  # all queues of the topic to one member
    WHOLE_GROUP = "whole group"  # all queues of all topics that are joined like this to one member


class Join(NamedTuple):
    """What is asked for: to take part in a group on one topic.

    `queues`: the only queue numbers this member can take, None = any. `address`: where others reach this
    member (HOST:PORT of its RPC server), told by `holders`. `member`: whose membership this is, where one
    process speaks for several; what WHOLE_GROUP gives goes to one of them. When members of one topic ask
    for different kinds of sharing, the strictest (the last of the enum) holds for all.
    """

    group: str
    topic: str
    sharing: Sharing = Sharing.AVERAGELY
    queues: frozenset[int] | None = None
    address: str = ""
    member: str = ""


class Assignment(NamedTuple):
    """Queues of one topic granted to this member, with the epoch that fences earlier holders."""

    queues: tuple[QueueRef, ...]
    epoch: int


class MembershipListener(Protocol):
    """What a member of a group hears; all on the hub."""

    def assigned(self, assignment: Assignment) -> None:
        """These queues are this member's from now on, under this epoch."""

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        """Flush what is finished and call `Membership.release` by the deadline."""

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """These are someone else's already; commits under the old epoch are refused.

        When the writer was replaced everything is lost, also by whoever held nothing (no queues then).
        """


class Membership(Protocol):
    """One member's place in a group on one topic."""

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Give up queues that were revoked."""

    def leave(self) -> None:
        """Give up everything; the queues move at once."""


class Health(NamedTuple):
    """`ready`: takes appends. `reason`: one line for people when something is not as it should be."""

    ready: bool
    reason: str


class Backend(ABC):
    """One engine, opened. `cluster` and `broker` name it inside wire qids (conf, default R_default, a)."""

    capabilities: Capabilities
    cluster: str = "R_default"
    broker: str = "a"
    gapless: bool = True  # records of a queue have successive offsets: a difference of offsets is a count
    compacts: bool = (
        False  # of COMPACTED_TOPICS it keeps the last record of each key; one without body ends it
    )

    # --- topics

    @abstractmethod
    def topic(self, name: str) -> TopicInfo | None:
        """From memory, at once; None when unknown."""

    @abstractmethod
    def topics(self) -> Mapping[str, TopicInfo]:
        """All of them, internal ones too."""

    @abstractmethod
    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        """Create (incarnation 0 in `info`: the engine gives one) or change a topic; queues only grow.

        Creating one that exists with incarnation 0 gives the existing one back unchanged, so that
        two proxies may create on first use at the same time. BoundReachedError where one more would be more
        than `topics_max` topics; the engine decides that for all processes together, on Kafka each process
        decides by the topics that it has seen.
        """

    @abstractmethod
    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        """Its queues answer GONE from then on; a topic of the same name is a new incarnation."""

    # --- settings: a small durable map, the same at every member (groups, subscriptions, …)

    @abstractmethod
    def setting(self, key: str) -> bytes | None:
        """From memory, at once."""

    @abstractmethod
    def settings(self, prefix: str) -> Mapping[str, bytes]:
        """All whose key starts with `prefix`."""

    @abstractmethod
    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        """`listener(key)` after each change (topics too, as `topic/NAME`), of all keys or of those that begin
        with one of `prefixes`; returns how to stop."""

    def caught_up(self) -> Completion[None]:
        """Settled once this process sees what any process was answered before, in settings and topics."""
        return succeeded(None)

    # --- writing

    @abstractmethod
    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        """Append; one AppendResult per record, also for refusals: it succeeds even when none is stored.

        A record whose topic does not exist is REFUSED with UnknownTopicError. One that names its IDENTITY is
        stored once where the engine is `idempotent`; another one like it is answered with the first
        (AppendResult.first), once that has the durability its topic asks for. Commits do not look at it.
        """

    @abstractmethod
    def commit(
        self,
        batch: CommitBatch,
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        """Records, progress and settings, all or nothing (capability `atomic`), durable when it succeeds.

        Fails with FencedError, UnknownTopicError, TryLaterError, StorageError (nothing is stored), or
        RemoteError (unknown). Applying the same progress again is harmless.
        """

    # --- reading

    def read(
        self,
        queue: QueueRef,
        offset: int,
        count_max: int,
        bytes_max: int,
        into: Completion[ReadBatch] | None = None,
        tags: frozenset[int] | None = None,
        ids: bool = False,
    ) -> Completion[ReadBatch]:
        """Up to `count_max` records from `offset`; at least one, then until `bytes_max` of delivery bytes.

        A batch may hold fewer than there are; what follows is read from its `next_offset`.
        With `tags`, records whose tag hash (records.tag_hash) is not among them are passed over without
        reading their bodies; `next_offset` lies behind those, also where the answer is NONE. One call
        passes over at most PASSED_MAX records, so that nobody waits for a long search: it then
        answers DATA with empty columns and a `next_offset` to go on from. NONE still means that there is
        nothing at or after `next_offset` yet.
        `ids`: the batch will be asked for its `message_ids`; an engine may take them with the rest.
        """
        check_read(offset, count_max, bytes_max)
        completion: Completion[ReadBatch] = Completion() if into is None else into
        self.start_read(ReadCall(queue, offset, count_max, bytes_max, tags, ids), completion)
        return completion

    @abstractmethod
    def start_read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """What an engine does for `read`."""

    @abstractmethod
    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        """Settles True as soon as a record at or past `offset` can be read, False at the deadline."""

    @abstractmethod
    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        """Per queue, in bulk; None where the queue is gone."""

    @abstractmethod
    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        """The first offset stored at or after `wall_ms`; next offset when there is none."""

    def find(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        message_id: bytes | None = None,
        count_max: int = 64,
    ) -> Completion[list[StoredRecord]]:
        """By key or message id, newest first (capability `find_by_key`, else UnsupportedError)."""
        check_find(key, message_id, count_max)
        return self.start_find(FindCall(topic, key, message_id, count_max))

    @abstractmethod
    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        """What an engine does for `find`."""

    # --- group progress and membership

    @abstractmethod
    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        """What is recorded, per queue, in bulk."""

    @abstractmethod
    def join(self, join: Join, listener: MembershipListener) -> Membership:
        """Become a member; `listener.assigned` follows when something is granted."""

    @abstractmethod
    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        """Which member holds which queue now, by its `address`; queues between two owners are absent."""

    # --- the engine itself

    def trim(self, queue: QueueRef, before: int) -> None:  # noqa: B027
        """Nobody needs records of this queue below the offset `before` any more: an engine that keeps them
        for ever may let them go, some time. From memory, at once."""

    @abstractmethod
    def health(self) -> Health:
        """From memory, at once."""

    @abstractmethod
    def clock_ms(self) -> int:
        """The store's clock: the store time the next record would get."""

    @abstractmethod
    def drain(self, deadline: float) -> Completion[None]:
        """Refuse what is new (DrainingError), settle what is pending, make all of it durable."""

    @abstractmethod
    def close(self) -> None:
        """Release everything at once; pending completions fail with DrainingError. May be called twice."""
