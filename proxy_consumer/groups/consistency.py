"""The clients of a group, and whether they subscribe alike: compares the settings that ddmq_client states.

A filter that differs from the subscription's would lose messages of the clients that rely on the other one,
and with another order key messages would not come in the order on which the client relies: such a pull is
rejected, with a text that names both. Clients of one group that read different topics lose nothing (queues
belong to proxies, not to clients), but it is usually a mistake: they are reported. Both are counted, logged
once, and listed for operators. Filters are compared by meaning: tags as sets, SQL as
parsed. A client that states no filter agrees with any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ddmq_common.metrics.catalogue import INCONSISTENT
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.leases import Recipient
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.filters.message_filters import find_expression_error, parse_tags
from proxy_consumer.filters.sql_parser import parse_sql
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.subscription import Group

CLIENTS_MAX = 10_000  # remembered at one proxy; further clients are checked but not listed
TOPICS_MAX = 64  # topics remembered of one client
FILTER_BYTES_MAX = 4_096  # the longest filter or order key that a pull may state
FILTER, ORDER_KEY = "filter", "orderKey"  # the options of a pull, as a PullException names them
CLIENT_ID_BYTES_MAX = 255
COMPARED_MAX = 1_024  # cached comparisons of stated filters; all are short and valid
AWAY_S = 120.0  # a client that has not pulled for this long is forgotten
RECONNECT_S = 5.0  # a client without a connection for this long has left: shorter gaps are reconnects
CONNECTIONS_MAX = 64  # remembered of one client
SETTLED_S = 10.0  # a newer client may not have pulled all its topics yet
SWEEP_S = 10.0


@dataclass(frozen=True, slots=True)
class Difference:
    """One client that subscribes differently from its group. `since_ms`: epoch milliseconds."""

    topic: str
    client_id: str
    what: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class GroupClient:
    """One client that pulls for a group here.

    `client_id`: the name that the client sent; DDMQ clients are identified by their host, several as one.
    `since_ms`: epoch milliseconds of its first pull. `connected` False: its connections have closed, and its
    messages in flight wait for their leases to expire.
    """

    client_id: str
    address: str
    since_ms: int
    idle_s: float
    topics: tuple[str, ...]
    in_flight: int
    connected: bool = True


class Client(Recipient):
    """A client of a group, its last pulls, and where its subscriptions differ from the group's.

    `extended_client`: it sends an id of its own; then `connections` has the peer addresses of its
    connections, and it has left when the last of them has closed. DDMQ clients, which may connect for each
    request, are tracked by their pulls alone.
    """

    __slots__ = (
        "connections",
        "differences",
        "extended_client",
        "first_at",
        "leaves_at",
        "notice",
        "pulled_at",
        "since_ms",
        "topics",
    )  # fmt: skip

    def __init__(self, now: float, since_ms: int, name: bytes, *, extended_client: bool) -> None:
        super().__init__(name if extended_client else b"")
        self.first_at = self.pulled_at = now
        self.since_ms = since_ms
        self.extended_client = extended_client
        self.connections: set[str] = set()
        self.leaves_at = NEVER  # monotonic seconds: it has left from then on, unless it pulls again
        self.topics: set[bytes] = set()  # b"" = all topics of the group
        self.notice = ""  # a text for people in its next reply
        self.differences: dict[bytes, Difference] = {}  # by topic; b"" = it reads other topics than its group


class StatedDifference(NamedTuple):
    """An option of a pull that differs from the subscription's setting. `option`: filter or orderKey."""

    option: str
    text: str


class StatedOptionError(ValueError):
    """An option that a pull states cannot be used; `option`: filter or orderKey."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(text)
        self.option = option


class Consistency:
    """The clients of all groups of one proxy, and their differences. A task of the timer queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._groups: dict[bytes, dict[bytes, Client]] = {}
        self._by_connection: dict[str, set[tuple[bytes, bytes]]] = {}  # peer -> (group, client id)
        self._count = 0
        self.wake_at = NEVER

    # --- pulls

    def record_client(self, request: Any, address: str) -> Client | None:
        """Record the client of a pull from `address` (HOST:PORT) and return it; None at the bound on
        clients."""
        host = address.rpartition(":")[0]
        client = self._find_client(
            request.groupId, request.clientId or host.encode(), extended_client=bool(request.clientId)
        )
        topic: bytes = request.topic or b""
        if client is not None:
            client.address = address if client.extended_client else host
            if client.extended_client and address not in client.connections:
                self._add_connection(client, address, (request.groupId, request.clientId))
            if topic not in client.topics and len(client.topics) < TOPICS_MAX:
                client.topics.add(topic)
        return client

    def _add_connection(self, client: Client, peer: str, key: tuple[bytes, bytes]) -> None:
        client.leaves_at = NEVER
        if len(client.connections) < CONNECTIONS_MAX:
            client.connections.add(peer)
            self._by_connection.setdefault(peer, set()).add(key)

    def close_connection(self, peer: str) -> None:
        """Record a closed connection: a client without another is forgotten unless it reconnects soon."""
        for name, client_id in self._by_connection.pop(peer, ()):
            client = self._groups.get(name, {}).get(client_id)
            if client is not None:
                client.connections.discard(peer)
                if not client.connections:
                    client.leaves_at = self._runtime.now() + RECONNECT_S

    def remove_client(self, name: bytes, client_id: bytes) -> None:
        """Stop listing a client that announced its stop, unless it still has messages in flight."""
        client = self._groups.get(name, {}).get(client_id)
        if client is not None:
            self._drop_connections(client, (name, client_id))
            client.leaves_at = self._runtime.now()

    def _drop_connections(self, client: Client, key: tuple[bytes, bytes]) -> None:
        for peer in client.connections:
            keys = self._by_connection.get(peer, set())
            keys.discard(key)
            if not keys:
                self._by_connection.pop(peer, None)
        client.connections.clear()

    def find_stated_difference(
        self, request: Any, group: Group, client: Client | None
    ) -> StatedDifference | None:
        """Return how the options that this pull states differ from those of its subscriptions, or None."""
        who: bytes = request.clientId or b""
        for each in _subscriptions_named(group, request.topic or b""):
            difference = _find_stated_difference(request, each.config)
            if difference is not None:
                self._record_difference(group.name, client if who else None, who, each.topic, difference.text)
                text = f"topic {each.topic}: {difference.text}; state the same, or change the subscription"
                return difference._replace(text=text)
            if client is not None and client.differences:
                client.differences.pop(each.topic.encode(), None)
        return None

    def _find_client(self, group: bytes, client_id: bytes, *, extended_client: bool) -> Client | None:
        clients = self._groups.get(group)
        if clients is None:
            clients = self._groups[group] = {}
        now = self._runtime.now()
        client = clients.get(client_id)
        if client is not None:
            client.pulled_at = now
            return client
        if self._count >= CLIENTS_MAX:
            return None
        self._count += 1
        self._runtime.timers.set(self, now + SWEEP_S)
        client = clients[client_id] = Client(
            now, self._runtime.clock.wall_ms(), client_id, extended_client=extended_client
        )
        return client

    def _record_difference(
        self, group: str, client: Client | None, client_id: bytes, topic: str, what: str
    ) -> None:
        """Count, log and remember a difference, once. `topic` "": the client reads other topics than its
        group."""
        key, who = topic.encode(), _as_text(client_id)
        recorded_difference = None if client is None else client.differences.get(key)
        if recorded_difference is not None and recorded_difference.what == what:
            return
        self._runtime.metrics.cell(INCONSISTENT, group, topic).value += 1
        where = {"group": group, "topic": topic} if topic else {"group": group}
        log.warning("subscribes differently", extra=where | {"client": who, "what": what})
        if client is not None:
            client.differences[key] = Difference(topic, who, what, self._runtime.clock.wall_ms())

    # --- topics, and time

    def due(self, now: float) -> None:
        """Forget the clients that have left, and compare the topics of the others."""
        for name, clients in list(self._groups.items()):
            for client_id, client in list(clients.items()):
                away = client.pulled_at + AWAY_S <= now or client.leaves_at <= now
                if away and not client.in_flight:
                    self._drop_connections(client, (name, client_id))
                    del clients[client_id]
                    self._count -= 1
            if clients:
                self._compare_topics(name, clients, now)
            else:
                del self._groups[name]
        if self._groups:
            self._runtime.timers.set(self, now + SWEEP_S)

    def _compare_topics(self, name: bytes, clients: dict[bytes, Client], now: float) -> None:
        settled = {
            key: one
            for key, one in clients.items()
            if one.extended_client and one.first_at + SETTLED_S <= now
        }
        everything = frozenset().union(*(one.topics for one in settled.values())) - {b""}
        for client_id, client in settled.items():
            missing = everything - client.topics
            if not missing or b"" in client.topics:
                client.differences.pop(b"", None)
                continue
            what = f"reads {_join_texts(client.topics)}; others of the group read {_join_texts(missing)}"
            self._record_difference(_as_text(name), client, client_id, "", what)

    # --- for people

    def list_groups(self) -> list[str]:
        """Return the names of the groups with clients at this proxy, sorted."""
        return sorted(map(_as_text, self._groups))

    def list_clients(self, group: str) -> list[GroupClient]:
        """Return the clients that pull for a group at this proxy, those with most messages in flight
        first."""
        now = self._runtime.now()
        group_clients = [
            GroupClient(
                _as_text(name), each.address, each.since_ms, now - each.pulled_at,
                tuple(sorted(map(_as_text, each.topics - {b""}))), each.in_flight, each.leaves_at > now,
            )
            for name, each in self._groups.get(group.encode(), {}).items()
            if each.leaves_at > now or each.in_flight
        ]  # fmt: skip
        return sorted(group_clients, key=lambda each: (-each.in_flight, each.client_id))

    def list_differences(self, group: str) -> list[Difference]:
        """List the clients whose subscription settings differ from those of their group, the oldest
        difference first.

        `topic` is "" if a client reads other topics than the group.
        """
        now = self._runtime.now()
        clients = [each for each in self._groups.get(group.encode(), {}).values() if each.leaves_at > now]
        rows = [each for client in clients for each in client.differences.values()]
        return sorted(rows, key=lambda each: (each.since_ms, each.client_id, each.topic))


def stated_settings(request: Any, defaults: SubscriptionDefaults) -> SubscriptionDefaults:
    """Return the settings of a subscription that this pull creates, with its start, order key and filter.

    Raises StatedOptionError, whose text says what is wrong with the order key or the filter.
    """
    if request.start:
        defaults = replace(defaults, start=request.start.decode())
    if request.orderKey:
        try:
            defaults = replace(defaults, order_key=_order_key_of(request))
        except ValueError as error:
            raise StatedOptionError(ORDER_KEY, str(error)) from error
    if not request.filter:
        return defaults
    try:
        tags, sql = _split_filter(request.filterType or b"TAG", request.filter)
        return replace(defaults, tags=tags, sql=sql)
    except ValueError as error:
        raise StatedOptionError(FILTER, f"the filter cannot be used: {error}") from error


def find_length_error(request: Any) -> str | None:
    """Return which text of a pull is too long; None if none is. Call it before any of them is stored."""
    if len(request.filter or b"") > FILTER_BYTES_MAX:
        return f"filter has {len(request.filter)} bytes; allowed: at most {FILTER_BYTES_MAX}"
    if len(request.orderKey or b"") > FILTER_BYTES_MAX:
        return f"orderKey has {len(request.orderKey)} bytes; allowed: at most {FILTER_BYTES_MAX}"
    if len(request.clientId or b"") > CLIENT_ID_BYTES_MAX:
        return f"clientId has {len(request.clientId)} bytes; allowed: at most {CLIENT_ID_BYTES_MAX}"
    return None


def _find_stated_difference(request: Any, config: SubscriptionDefaults) -> StatedDifference | None:
    if request.filter:
        kind = request.filterType or b"TAG"
        what = _find_difference(kind, request.filter, config.tags, config.sql)
        if what is not None:
            return StatedDifference(FILTER, what)
    if request.orderKey and (order_key := _order_key_of(request)) != config.order_key:
        existing = f"order key {config.order_key}" if config.order_key else "no order key"
        return StatedDifference(
            ORDER_KEY, f"the pull states order key {order_key}, the subscription has {existing}"
        )
    return None


def _find_difference(kind: bytes, text: bytes, tags: str, sql: str) -> str | None:
    try:
        return find_difference(*_split_filter(kind, text), tags, sql)
    except ValueError as error:  # not cached: only valid filters are
        return str(error)


@lru_cache(maxsize=COMPARED_MAX)
def find_difference(own_tags: str, own_sql: str, tags: str, sql: str) -> str | None:
    """Describe how a stated filter differs from a subscription's; None if it does not.

    Raises ValueError for an invalid filter.
    """
    error = find_expression_error(own_tags, own_sql)
    if error is not None:
        raise ValueError(f"the filter cannot be used: {error}")
    if parse_tags(own_tags) == parse_tags(tags) and _same_sql(own_sql, sql):
        return None
    return (
        f"the pull states {_show_filter(own_tags, own_sql)}, the subscription has {_show_filter(tags, sql)}"
    )


def _split_filter(kind: bytes, text: bytes) -> tuple[str, str]:
    """Return the (tags, sql) of a stated filter. Raises ValueError."""
    try:
        written = text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the filter is not UTF-8: {error}") from error
    if kind == b"SQL92":
        return "*", written
    if kind == b"TAG":
        return written, ""
    raise ValueError(f"filterType is {kind[:40]!r}; allowed: TAG, SQL92")


def _same_sql(one: str, other: str) -> bool:
    if not one or not other:
        return one == other
    return one == other or parse_sql(one) == parse_sql(other)


def _show_filter(tags: str, sql: str) -> str:
    return f"sql {sql[:200]!r}" if sql else f"tags {tags[:200]!r}"


def _subscriptions_named(group: Group, topic: bytes) -> Iterable[Any]:
    if not topic:
        return group.subscriptions.values()
    subscription = group.subscriptions.get(topic)
    return () if subscription is None else (subscription,)


def _order_key_of(request: Any) -> str:
    order_key: bytes = request.orderKey
    return order_key.decode("utf-8", "replace")


def _as_text(name: bytes) -> str:
    return name[:255].decode("utf-8", "replace")


def _join_texts(topics: Iterable[bytes]) -> str:
    return ", ".join(sorted(_as_text(topic) or "all" for topic in topics))
