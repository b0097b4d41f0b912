"""GET /processes, /clients and /config: the processes of a server, who is connected to them, and how they are
configured.

The other processes are those that `ddmq serve --processes` started, and the owners of delay shards, which may
belong to other servers on the same data directory. Each answers about itself alone.
"""

from __future__ import annotations

import base64
import importlib.metadata
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from backend.port import Backend
from ddmq.address import HostPort, parse
from ddmq.server.admin.contract.queries import ClientsQuery
from ddmq.server.admin.contract.structs.process_answers import (
    ClientRow,
    ClientsAnswer,
    ConfigAnswer,
    ConfigRow,
    OwnedQueuesRow,
    ProcessesAnswer,
    ProcessRow,
)
from ddmq.server.admin.figures import OtherAnswers, OtherProcesses, fetch_answers
from ddmq.server.effective_settings import EffectiveSetting
from ddmq.server.http.pace import paced
from ddmq.server.http.parameters import query_texts
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, TryLaterError
from ddmq_common.security.callers import Caller
from delay_service.service import DelayService
from proxy_consumer.service import ConsumerService

SUBSCRIPTIONS_MAX = 100  # in the row of a process
CLIENTS_MAX = 1_000  # in an answer
OWNERS_S = 5.0  # the owners of delay shards are asked for so often
ClientPosition = tuple[str, str, str, str]  # group, client id, process, address


class ClientRows(NamedTuple):
    """Clients of all processes: all of this process, and a page of each other one.

    `total`: the number of all; `has_more`: another process has more than its page; `silent`: the admin
    addresses of the processes that did not answer.
    """

    rows: list[ClientRow]
    total: int
    has_more: bool
    silent: dict[str, str]


@dataclass(frozen=True)
class ProcessInfo:
    """The facts that a process knows of itself. `list_peers`: returns the addresses of the connections to its
    producer proxy. `instance`: another one after each start."""

    name: str = ""
    instance: str = ""
    parts: Sequence[str] = ()
    since_ms: int = 0
    addresses: Callable[[], dict[str, str]] = dict
    list_settings: Callable[[], list[EffectiveSetting]] = list
    list_peers: Callable[[], Iterable[str]] = tuple
    own_address: str = field(default="")


class ProcessViews:
    """Answers about the processes of the server. `list_owners`: returns the addresses of the owners of delay
    shards, apart from this process."""

    def __init__(
        self,
        backend: Backend,
        consumer: ConsumerService | None,
        timers: DelayService | None,
        clock: Clock,
        others: OtherProcesses,
        list_owners: Callable[[], list[str]],
        info: ProcessInfo,
    ) -> None:
        self._backend = backend
        self._consumer = consumer
        self._timers = timers
        self._clock = clock
        self._others = others
        self.read_token = others.read_token  # of this process, for requests to others
        self._list_owners = list_owners
        self._info = info
        self._owners: list[str] = []
        self._owners_at = float("-inf")

    def fetch_answers(
        self,
        path: str,
        *keys: str,
        query: Mapping[str, str] = MappingProxyType({}),
        caller: Caller | None = None,
    ) -> OtherAnswers:
        """Request `path` from all other known processes. `caller`: for whom, None for this process."""
        return fetch_answers(
            self._find_others(), path, *keys, query=query, token=self.read_token(), caller=caller
        )

    def list_other_addresses(self) -> list[HostPort]:
        """Return the admin addresses of all other processes that are known."""
        return list(self._find_others().values())

    def _find_others(self) -> dict[str, HostPort]:
        addresses = {_to_reachable(each): (name, each) for name, each in self._others.addresses.items()}
        now = self._clock.monotonic()
        if now >= self._owners_at + OWNERS_S:
            self._owners, self._owners_at = self._list_owners(), now
        for text in self._owners:
            addresses.setdefault(_to_reachable(parse(text)), (text, parse(text)))
        addresses.pop(_to_reachable(parse(self._info.own_address)) if self._info.own_address else "", None)
        return dict(addresses.values())

    # --- processes

    def list_processes(self, request: AdminRequest) -> ProcessesAnswer:
        """Answer GET /processes; to another process, with the row of this one."""
        rows, silent = self.collect_processes(request)
        items = sorted(rows, key=lambda row: (row.name, row.instance))
        return ProcessesAnswer(items=items, next=None, total=len(items), exact=not silent, missing=silent)

    def collect_processes(self, request: AdminRequest) -> tuple[list[ProcessRow], dict[str, str]]:
        """Return all processes, and the addresses of those that did not answer; to another process, this one
        alone."""
        rows, silent = [self._describe_process()], dict[str, str]()
        if not request.is_forwarded:
            others = self.fetch_answers("/processes", "items")
            silent = others.silent
            rows += [msgspec.convert(row, ProcessRow) for each in others.answers for row in each["items"]]
        return list({row.instance: row for row in rows}.values()), silent

    def _describe_process(self) -> ProcessRow:
        info, counts = self._info, Counter[tuple[str, str]]()
        if self._consumer is not None:
            counts.update(self._consumer.count_owned_queues())
        owned = [
            OwnedQueuesRow(group=group, topic=topic, queues=count)
            for (group, topic), count in sorted(counts.items())
        ]
        return ProcessRow(
            name=info.name, instance=info.instance, version=read_version(), parts=list(info.parts),
            addresses=info.addresses(), host=socket.gethostname(), pid=os.getpid(),
            engine=self._backend.capabilities.engine, since_ms=info.since_ms,
            memory_bytes=read_memory_bytes(), cpu_s=round(time.process_time(), 3),
            delay_shards=[] if self._timers is None else list(self._timers.shards),
            subscriptions=owned[:SUBSCRIPTIONS_MAX], subscription_count=len(owned),
        )  # fmt: skip

    # --- clients

    def list_clients(self, request: AdminRequest) -> ClientsAnswer:
        """Answer GET /clients; to another process, with the clients of this one. Raises CallerError."""
        query: ClientsQuery = request.query
        count = max(min(query.count, CLIENTS_MAX), 1)
        after = None if query.after is None else _decode_position(query.after)
        clients = self.collect_clients(request)
        by_position = {position_of_client(row): row for row in paced(clients.rows)}
        positions = sorted(each for each in by_position if after is None or each > after)
        page = positions[:count]
        has_more = len(positions) > count or (clients.has_more and bool(page))
        return ClientsAnswer(
            items=[by_position[each] for each in page],
            next=_encode_position(page[-1]) if has_more else None,
            total=clients.total, exact=not clients.silent, missing=clients.silent,
        )  # fmt: skip

    def collect_clients(
        self, request: AdminRequest, is_chosen: Callable[[ClientRow], bool] | None = None
    ) -> ClientRows:
        """Return the clients of all processes that the caller may see; to another process, those of this one.

        `is_chosen`: whether a client of this process matches. Each other process gets the query, and answers
        with a page of its own.
        """
        rows = [row for row in paced(self._list_own_clients(request)) if is_chosen is None or is_chosen(row)]
        total, has_more, silent = len(rows), False, dict[str, str]()
        if not request.is_forwarded:
            texts = query_texts(msgspec.structs.replace(request.query, fields=None))
            others = self.fetch_answers("/clients", "items", "total", query=texts, caller=request.caller)
            silent = others.silent
            rows += [msgspec.convert(row, ClientRow) for each in others.answers for row in each["items"]]
            total += sum(each["total"] for each in others.answers)
            has_more = any(each.get("next") is not None for each in others.answers)
        return ClientRows(rows, total, has_more, silent)

    def _list_own_clients(self, request: AdminRequest) -> list[ClientRow]:
        """Return the clients of this process that the caller may see: those of groups by the right to the
        group, and producers by the right to read the metrics."""
        group, caller = request.query.group, request.caller
        name, rows = self._info.name, list[ClientRow]()
        now_ms = self._clock.wall_ms()
        if self._consumer is not None:
            groups = [group] if group is not None else self._consumer.groups_with_clients()
            allows = request.visible()
            for group_name in paced([each for each in groups if allows is None or allows(each)]):
                rows += [
                    ClientRow(
                        kind="consumer", process=name, address=each.address, group=group_name,
                        client_id=each.client_id, topics=list(each.topics), since_ms=each.since_ms,
                        last_seen_ms=now_ms - round(each.idle_s * 1000), in_flight=each.in_flight,
                        connected=each.connected,
                    )
                    for each in self._consumer.clients(group_name)
                ]  # fmt: skip
        if group is None and (caller is None or caller.has_right("metrics")):
            hosts = Counter(peer.rpartition(":")[0] for peer in self._info.list_peers())
            rows += [
                ClientRow(kind="producer", process=name, address=host, connections=number)
                for host, number in hosts.items()
            ]
        return rows

    # --- configuration

    def list_settings(self, request: AdminRequest) -> ConfigAnswer:
        """Answer GET /config: the settings of this process. Raises TryLaterError if they are not known."""
        settings = self._info.list_settings()
        if not settings:
            raise TryLaterError("this process was started without a configuration")
        rows = [
            ConfigRow(
                key=each.key.name, value=each.value, source=each.source, changed=each.is_changed,
                variable=each.key.variable,
            )
            for each in settings
            if each.is_changed or not request.query.changed
        ]  # fmt: skip
        return ConfigAnswer(
            process=self._info.name, items=rows, next=None, total=len(rows), exact=True, missing={}
        )


def read_version() -> str:
    """Return the version of the installed package; "" if it is not installed."""
    try:
        return importlib.metadata.version("ddmq-proxy")
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_memory_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not state it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _to_reachable(address: HostPort) -> str:
    host = socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host
    return str(HostPort(host, address.port))


def position_of_client(row: ClientRow) -> ClientPosition:
    """Return the position of a client in the list of all."""
    return row.group or "", row.client_id or "", row.process, row.address


def _encode_position(position: ClientPosition) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode()


def _decode_position(text: str) -> Any:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=ClientPosition)
    except (ValueError, msgspec.MsgspecError) as error:
        raise CallerError(f"after is {text[:120]!r}; allowed: the `next` of an earlier answer") from error
