"""The events of the coordination topic and their bytes. Pure.

A version byte, then MessagePack: an array that starts with the event's word. docs/formats-kafka.md has them
all. An event that does not parse is passed over by everybody alike; so is one of a newer version, which a
rolling upgrade must therefore not write before every process knows it.
"""

from __future__ import annotations

import msgspec

from backend.kafka.coordination.feature_level import UNSTATED
from backend.ownership.group import AssignmentState
from backend.port import Sharing

VERSION = 1
_VERSION_BYTE = bytes([VERSION])
Id = tuple[str, int]  # process, and the number that it gave to its membership


class _Event(msgspec.Struct, array_like=True):
    pass


class Begun(_Event, tag="begin"):
    """Starts an empty table; ignored if a table or snapshot was written after offset `read_until`.

    Epochs are granted above `epoch`, which is above every epoch granted before. `level`: see feature_level.
    """

    epoch: int
    read_until: int
    level: int = UNSTATED


class Joined(_Event, tag="join"):
    """A process joined a group for a topic.

    `incarnation`, `queue_count`: the topic as that process sees it. `lanes`: how many transactional ids the
    process uses; 0 if an earlier version wrote the event. `level`: the highest feature level that it
    supports; 0 if its version knows nothing of levels.
    """

    process: str
    number: int
    group: str
    topic: str
    sharing: Sharing
    queues: list[int] | None
    address: str
    member: str
    incarnation: int
    queue_count: int
    lanes: int = 0
    level: int = 0


class Left(_Event, tag="leave"):
    """Memberships of a process have ended."""

    process: str
    numbers: list[int]


class Released(_Event, tag="release"):
    """A membership released queues, given as pairs of incarnation and queue number."""

    process: str
    number: int
    queues: list[tuple[int, int]]


class Recalled(_Event, tag="recall"):
    """Requests all queues of a topic back from their holders, who become the last candidates for them."""

    group: str
    topic: str


class HeartbeatSent(_Event, tag="beat"):
    """A heartbeat: the process is alive."""

    process: str
    number: int


class Died(_Event, tag="dead"):
    """A process has ended with all its memberships.

    `by`: itself, or the process that fenced it. Its name is never reused.
    """

    process: str
    by: str


class Retired(_Event, tag="retired"):
    """Lanes of a process whose transactional ids it will never use again; their transactions are decided."""

    process: str
    lanes: list[int]


class LevelRaised(_Event, tag="level"):
    """Raises the feature level; ignored if the table has a process that is not listed here.

    `processes`: those of which the writer knows that they support the level.
    """

    level: int
    processes: list[str]


class TopicChanged(_Event, tag="topic"):
    """A topic's queues changed: it was created (`was` 0), has grown, or was deleted (`queue_count` 0)."""

    topic: str
    was: int
    incarnation: int
    queue_count: int


class SnapshotMember(_Event):
    """One membership in a snapshot, as it joined. `serial`: its position in the order of members."""

    process: str
    number: int
    sharing: Sharing
    queues: list[int] | None
    address: str
    member: str
    serial: int


class SnapshotCell(_Event):
    """The assignment of a queue in a snapshot; members are indexes into the row's members, -1 for none."""

    incarnation: int
    queue_id: int
    state: AssignmentState
    member: int
    epoch: int
    deadline: float
    aim: int


class SnapshotRow(_Event):
    """A group's members and queue owners on one topic, as stored in a snapshot."""

    topic: str
    epoch: int
    members: list[SnapshotMember]
    cells: list[SnapshotCell]


class SnapshotGroup(_Event):
    """A group's state in a snapshot; `holder` is "" if no process holds the group."""

    group: str
    holder: str
    withheld: bool
    rows: list[SnapshotRow]


class Snapshot(_Event, tag="snapshot"):
    """The whole table as it was after all events before offset `at`.

    `lanes`: of the processes that stated them. `retired`: see Retired. `level`: the feature level;
    `levels`: the highest that each process supports, of those that stated it.
    """

    at: int
    epoch: int
    serial: int
    processes: list[str]
    dead: list[str]
    topics: list[tuple[str, int, int]]
    groups: list[SnapshotGroup]
    lanes: list[tuple[str, int]] = []
    retired: list[tuple[str, list[int]]] = []
    level: int = UNSTATED
    levels: list[tuple[str, int]] = []


Event = (
    Begun | Joined | Left | Released | Recalled | HeartbeatSent | Died | Retired | LevelRaised | TopicChanged
    | Snapshot
)  # fmt: skip
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """Encode an event for the coordination topic."""
    return _VERSION_BYTE + _encode(event)


def decode_event(data: bytes) -> Event | None:
    """Decode an event; None if it is malformed or of a newer version."""
    if data[:1] != _VERSION_BYTE:
        return None
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, ValueError):
        return None
