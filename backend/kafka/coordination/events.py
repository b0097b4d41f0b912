"""The events of the coordination topic and their bytes. Pure.

A version byte, then MessagePack: an array that starts with the event's word. docs/formats-kafka.md has them
all. An event that does not parse is passed over by everybody alike; so is one of a newer version, which a
rolling upgrade must therefore not write before every process knows it.
"""

from __future__ import annotations

import msgspec

from backend.ownership.group import AssignmentState
from backend.port import Sharing

VERSION = 1
_VERSION_BYTE = bytes([VERSION])
Id = tuple[str, int]  # process, and the number that it gave to its membership


class _Event(msgspec.Struct, array_like=True):
    pass


class Begun(_Event, tag="begin"):
    """The log has no table yet, as far as its writer has seen: up to the offset `seen`.

    Epochs are granted above `epoch`, which is above all that were ever granted.
    """

    epoch: int
    seen: int


class Joined(_Event, tag="join"):
    """A membership; the topic as its process sees it, for when nobody has told of it yet."""

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


class Left(_Event, tag="leave"):
    """Memberships that are over."""

    process: str
    numbers: list[int]


class Released(_Event, tag="release"):
    """A membership lets queues go: pairs of incarnation and number."""

    process: str
    number: int
    queues: list[tuple[int, int]]


class Recalled(_Event, tag="recall"):
    """All of a topic's queues are asked back from their holders, who come last in line."""

    group: str
    topic: str


class Beat(_Event, tag="beat"):
    """The process is there."""

    process: str
    number: int


class Died(_Event, tag="dead"):
    """A process is gone, with all its memberships; `by` itself, or who has fenced it. Its name is used up."""

    process: str
    by: str


class TopicSeen(_Event, tag="topic"):
    """A topic has other queues than before: it was made (`was` 0), has grown, or is gone (queues 0)."""

    topic: str
    was: int
    incarnation: int
    queue_count: int


class SnapshotMember(_Event):
    """A membership in a snapshot, as it joined; `serial`: its place in line."""

    process: str
    number: int
    sharing: Sharing
    queues: list[int] | None
    address: str
    member: str
    serial: int


class SnapshotCell(_Event):
    """One queue in a snapshot; members by their place in the line, -1 for nobody."""

    incarnation: int
    queue_id: int
    state: AssignmentState
    member: int
    epoch: int
    deadline: float
    aim: int


class SnapshotLine(_Event):
    """The state of one group on one topic, in a snapshot."""

    topic: str
    epoch: int
    members: list[SnapshotMember]
    cells: list[SnapshotCell]


class SnapshotGroup(_Event):
    """A group in a snapshot; `holder` empty: nobody."""

    group: str
    holder: str
    withheld: bool
    lines: list[SnapshotLine]


class Snapshot(_Event, tag="snapshot"):
    """The whole table as the events before offset `at` made it."""

    at: int
    epoch: int
    serial: int
    processes: list[str]
    gone: list[str]
    topics: list[tuple[str, int, int]]
    groups: list[SnapshotGroup]


Event = Begun | Joined | Left | Released | Recalled | Beat | Died | TopicSeen | Snapshot
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """The bytes of one event."""
    return _VERSION_BYTE + _encode(event)


def decode_event(data: bytes) -> Event | None:
    """The event in `data`; None for what nobody of this version can read."""
    if data[:1] != _VERSION_BYTE:
        return None
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, ValueError):
        return None
