"""What an engine can do. A caller that needs more turns the missing flag into a clear error."""

from dataclasses import dataclass
from enum import IntEnum


class Durability(IntEnum):
    """What an answered append has reached. The numbers are Result field 103 on the wire."""

    WRITTEN = 0  # handed to the operating system
    DURABLE = 1  # fsync has returned
    REPLICATED = 2  # on several machines


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One engine's limits and abilities."""

    engine: str
    atomic: bool  # commit() of several queues and progress, all or nothing
    idempotent: bool  # appends recognised as resent
    find_by_key: bool  # find() by key or message id
    topic_order: bool  # one position orders all topics: queues can be merged by it
    durability: frozenset[Durability]  # classes it can answer with
    body_bytes_max: int
    properties_bytes_max: int
    forbidden_bytes: bytes  # never inside names, keys, property text
    empty_body: bool
    queues_can_grow: bool
