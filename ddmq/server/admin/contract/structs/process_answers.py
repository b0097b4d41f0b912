"""The answers about processes, their clients and their configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from ddmq.server.admin.contract.forms import OptionalText
from ddmq.server.admin.contract.structs.live_answers import Missing
from ddmq.server.http.parameters import Answer


class OwnedQueuesRow(Answer):
    """A subscription of which a process owns queues."""

    group: str
    topic: str
    queues: int


class ProcessRow(Answer):
    """A process of the server.

    `instance`: another one after each start. `addresses`: by part. `cpu_s`: processor time since the start.
    `subscriptions`: up to 100 of which it owns queues; `subscription_count`: of all.
    """

    name: str
    instance: str
    version: OptionalText
    parts: list[str]
    addresses: dict[str, str]
    host: str
    pid: int
    engine: str
    since_ms: int
    memory_bytes: int
    cpu_s: float
    delay_shards: list[int]
    subscriptions: list[OwnedQueuesRow]
    subscription_count: int


class ProcessesAnswer(Answer):
    """The processes of the server. `exact`: no process is missing."""

    items: list[ProcessRow]
    next: str | None
    total: int
    exact: bool
    missing: Missing


class ClientRow(Answer):
    """A client of a group at a consumer proxy, or all connections from a host to a producer proxy.

    `process`: the name of the process. `last_seen_ms`: of its last pull. `connected` False: its messages in
    flight wait for their leases to expire.
    """

    kind: Literal["consumer", "producer"]
    process: str
    address: str
    connections: int | UnsetType = UNSET
    group: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET
    since_ms: int | UnsetType = UNSET
    last_seen_ms: int | UnsetType = UNSET
    in_flight: int | UnsetType = UNSET
    connected: bool | UnsetType = UNSET


class ClientsAnswer(Answer):
    """Clients of all processes, sorted by group, client id, process and address. `exact`: no process is
    missing."""

    items: list[ClientRow]
    next: str | None
    total: int
    exact: bool
    missing: Missing


class ConfigRow(Answer):
    """A setting of a process, with secrets masked. `source`: `default`, FILE:LINE, `variable NAME` or
    `command line`; `variable`: the environment variable that sets it."""

    key: str
    value: Annotated[Any, Meta(description="the value, as a file would contain it")]
    source: str
    changed: Annotated[bool, Meta(description="it is not the default")]
    variable: str


class ConfigAnswer(Answer):
    """The settings of the process that answers, sorted by file."""

    process: str
    items: list[ConfigRow]
    next: str | None
    total: int
    exact: bool
    missing: Missing
