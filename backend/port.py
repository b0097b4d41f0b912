"""The backend port: the interface of every engine for the proxies and the delay service.

Rules of every engine (the tests of backend/testing prove them):
* No call blocks. A call that may wait returns a Completion, which is settled on the hub's thread, at the
  latest at its `deadline` (monotonic seconds, as Clock.monotonic). `into` passes the caller's own Completion
  subclass, so that one request is one object.
* Appends to one queue are stored in the order of the calls.
* Commits that name one queue's progress under one epoch take effect in the order of the calls, including
  those whose answer was "unknown". So when a later one has succeeded, an earlier one either counts or never
  will.
* A reader sees a record only when it has the durability that its topic requires.
* No caller assumes that an append is local, that offsets have no gaps, or that progress is stored locally.
* Errors come from ddmq_common.errors, inside the completion; bad arguments raise at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from backend.completion import Completion, failed, succeeded
from backend.engine import TopicAnswer, check_find, check_read
from backend.log_state import LogFilesState, LogSegment
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
from ddmq_common.errors import CallerError
from ddmq_common.security.quotas import SenderQuota

# Sends `data` to the process of the same engine at an address, by a deadline, and answers with what that one
# returns. Fails with TryLaterError if it certainly was not sent, else with RemoteError.
PeerCalls = Callable[[str, bytes, float], Completion[bytes]]


class Wait(Completion[bool]):
    """A wait until a queue has data at or after an offset, or until a deadline.

    It settles with True if there is data, or with False at the deadline.
    """

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the wait, so that it is never settled. Has no effect after it is done."""
        self.cancelled = True


class ReadCall(NamedTuple):
    """The arguments of one call of Backend.read."""

    queue: QueueRef
    offset: int
    count_max: int
    bytes_max: int
    tags: frozenset[int] | None = None
    ids: bool = False


class FindCall(NamedTuple):
    """The arguments of one call of Backend.find: either a key or a message id."""

    topic: str
    key: bytes | None
    message_id: bytes | None
    count_max: int


class Sharing(Enum):
    """The ways to share the queues of a topic among the members of a group that joined it."""

    AVERAGELY = "averagely"  # consecutive queues, as evenly as possible
    BY_CIRCLE = "by-circle"  # round robin
    CONSISTENT_HASH = "consistent-hash"  # few queues move when a member joins or leaves
    WHOLE_TOPIC = "whole topic"  # all queues of the topic to one member
    WHOLE_GROUP = "whole group"  # all queues of all topics joined with this value to one member


class Join(NamedTuple):
    """A request to join a group for one topic.

    `queues`: the only queue numbers that this member can take, None = any. `address`: the HOST:PORT of the
    member's RPC server, reported by `holders`. `member`: the name of the member, if one process joins for
    several; WHOLE_GROUP assigns to one of them. If the members of a topic request different kinds of sharing,
    the strictest (the last of the enum) applies to all.
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
    """Receives the notifications of one member of a group, all on the hub."""

    def assigned(self, assignment: Assignment) -> None:
        """Called when queues are assigned to this member, under the epoch of `assignment`."""

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        """Called when queues are revoked: flush finished offsets, then `Membership.release` by the
        deadline.
        """

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """Called when queues already belong to another member; commits under the old epoch are refused.

        If the writer was replaced, every member loses all its queues; `queues` is then empty for a member
        that held none.
        """


class Membership(Protocol):
    """One member's membership of a group on one topic."""

    def release(self, queues: Iterable[QueueRef]) -> None:
        """Release queues that were revoked."""

    def leave(self) -> None:
        """Leave the group; its queues go to other members at once."""


class Health(NamedTuple):
    """The state of an engine.

    `ready`: it accepts appends. `reason`: one line that describes any problem. `warning`: one line about a
    problem that does not keep it from being ready.
    """

    ready: bool
    reason: str
    warning: str = ""


class Backend(ABC):
    """One opened engine.

    `cluster` and `broker` are its names inside wire qids (configurable; the defaults are R_default and a).
    """

    capabilities: Capabilities
    cluster: str = "R_default"
    broker: str = "a"
    gapless: bool = True  # offsets of a queue are successive: a difference of offsets is a count
    recognises_numbers: bool = True  # if it is `idempotent`: also by numbers, not by keys alone
    compacts: bool = (
        False  # COMPACTED_TOPICS keep the last record of each key; one without a body deletes the key
    )

    # --- topics

    @abstractmethod
    def topic(self, name: str) -> TopicInfo | None:
        """Return a topic, or None if it is unknown. From memory, at once."""

    @abstractmethod
    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name, including internal ones."""

    @abstractmethod
    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        """Create a topic (incarnation 0 in `info`; the engine assigns one) or change it.

        Queues are only added.

        Creating an existing topic with incarnation 0 returns it unchanged, so that two proxies may create it
        on first use at the same time. Fails with BoundReachedError if there would be more than `topics_max`
        topics. The engine decides that for all processes together; on Kafka each process decides by the
        topics that it has seen.
        """

    @abstractmethod
    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        """Delete a topic. Its queues answer UNKNOWN_QUEUE from then on; a new topic of this name is a new
        incarnation.
        """

    def why_unavailable(self, topic: str) -> str:
        """Return why no record can be committed to the topic now, as far as is known; "" if one can.

        From memory, at once. Commits to the topic fail with TopicUnavailableError meanwhile.
        """
        return ""

    # --- settings: a small durable map, the same at every member (groups, subscriptions, …)

    @abstractmethod
    def setting(self, key: str) -> bytes | None:
        """Return a setting, or None. From memory, at once."""

    @abstractmethod
    def settings(self, prefix: str) -> Mapping[str, bytes]:
        """Return all settings whose key starts with `prefix`."""

    @abstractmethod
    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        """Call `listener(key)` after each change of a setting, or of a topic (with key `topic/NAME`).

        `prefixes` restrict the keys. Returns a function that removes the listener.
        """

    def caught_up(self) -> Completion[None]:
        """Settle when this process sees every change that was confirmed to any process before this call.

        Changes of settings and of topics are meant.
        """
        return succeeded(None)

    # --- writing

    @abstractmethod
    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        """Append records; answer with one AppendResult per record.

        The call succeeds even if no record is stored. A record whose topic does not exist is REFUSED with
        UnknownTopicError. An `idempotent` engine stores a record with an IDENTITY once; a repetition is
        answered with the location of the stored one (AppendResult.first), once that has the durability that
        its topic requires. Commits ignore IDENTITY.
        """

    @abstractmethod
    def commit(
        self,
        batch: CommitBatch,
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        """Commit records, progress and settings, all or nothing (capability `atomic`), durable on success.

        Fails with FencedError, UnknownTopicError, TryLaterError or StorageError (nothing is stored), or with
        RemoteError (uncertain outcome). Committing the same progress twice is harmless.
        """

    def serve_peers(self, address: str, peers: PeerCalls) -> None:  # noqa: B027
        """Allow the engine to call its other processes, and tell it at which address they reach this one.

        An engine that is one process, or that connects its processes itself, ignores it.
        """

    def take_peer_call(self, data: bytes, deadline: float) -> Completion[bytes]:
        """Answer a call of another process of this engine; see `serve_peers`.

        Fails with CallerError if it is not from one.
        """
        return failed(CallerError("this engine takes no calls of other processes"))

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
        """Read at least one and at most `count_max` records from `offset`, until `bytes_max` delivery bytes.

        A batch may hold fewer records than exist; continue at its `next_offset`.
        With `tags`, records whose tag hash (records.tag_hash) is not among them are passed over without
        reading their bodies; `next_offset` lies after those, also if the answer is NONE. One call
        passes over at most PASSED_MAX records, so that no call takes long: it then
        answers DATA with empty columns and a `next_offset` to continue from. NONE still means that there is
        nothing at or after `next_offset` yet.
        `ids`: the caller will need the batch's `message_ids`; an engine may read them with the rest.
        """
        check_read(offset, count_max, bytes_max)
        completion: Completion[ReadBatch] = Completion() if into is None else into
        self.start_read(ReadCall(queue, offset, count_max, bytes_max, tags, ids), completion)
        return completion

    @abstractmethod
    def start_read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        """Perform a checked `read`; implemented by each engine."""

    @abstractmethod
    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        """Wait until a record at or after `offset` can be read (True), or until the deadline (False)."""

    @abstractmethod
    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        """Return the bounds of several queues; None for a deleted queue."""

    @abstractmethod
    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        """Return the first offset stored at or after `wall_ms`, or the next offset if there is none."""

    def find(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        message_id: bytes | None = None,
        count_max: int = 64,
    ) -> Completion[list[StoredRecord]]:
        """Find records by key or message id, newest first (capability `find_by_key`, else
        UnsupportedError).
        """
        check_find(key, message_id, count_max)
        return self.start_find(FindCall(topic, key, message_id, count_max))

    @abstractmethod
    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        """Perform a checked `find`; implemented by each engine."""

    # --- group progress and membership

    @abstractmethod
    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        """Return the recorded progress of a group on several queues."""

    @abstractmethod
    def join(self, join: Join, listener: MembershipListener) -> Membership:
        """Become a member of a group; `listener.assigned` follows when queues are granted."""

    @abstractmethod
    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        """Return the address of the member that holds each queue.

        Queues that are being moved are left out.
        """

    # --- the engine itself

    def trim(self, queue: QueueRef, before: int) -> None:  # noqa: B027
        """Allow an engine without own retention to delete a queue's records below offset `before`.

        Returns at once.
        """

    def read_log_state(self) -> LogFilesState | None:
        """Return the state of the log's files and their disk. Blocks the calling greenlet.

        None: the engine has no files of its own, or another process writes them. Raises StorageError.
        """
        return None

    def clean_log(self, before_ms: int, dry_run: bool) -> list[LogSegment] | None:
        """Delete the segments all of whose records were stored before this time, apart from those that a hold
        retains; return them. Blocks the calling greenlet.

        `dry_run`: only return them. None: as in `read_log_state`. Raises StorageError.
        """
        return None

    def count_owned_sends(self) -> Mapping[str, SenderQuota]:
        """Return how many idempotency keys and producers of each sender this process remembers, by its owner
        (ddmq_common/send_identity.py). From memory."""
        return {}

    @abstractmethod
    def health(self) -> Health:
        """Return the health of the engine. From memory, at once."""

    @abstractmethod
    def clock_ms(self) -> int:
        """Return the time of the store's clock: the store time that a record would get now."""

    @abstractmethod
    def drain(self, deadline: float) -> Completion[None]:
        """Refuse new calls (DrainingError), settle the pending ones, and make everything durable."""

    @abstractmethod
    def close(self) -> None:
        """Close the engine at once; pending completions fail with DrainingError. May be called twice."""
