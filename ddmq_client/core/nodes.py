"""Proxies: addresses as an application writes them, which are in rotation, and pauses between pulls. Pure.

An address is "host:port", several with commas, or a list; `[::1]:9613` for IPv6. A name stands for every
address it resolves to; resolving is the shell's work. Times are arguments (monotonic seconds).

A node goes out of rotation when a connection to it fails or ends, when it says that it is leaving, when it
rejects the login or is no proxy, or after three time-outs in a row. It stays out for a back-off that doubles
from 1 s to 30 s, with jitter; then a probe (a heartbeat) is due, and its success puts the node back. While
every node is out, the one that is due first is used all the same: trying is better than refusing. Callers
that share a Rotation lock it themselves.

A puller pauses before its next pull: not after messages, or after an empty answer that took the proxy the
linger time. An empty answer that came at once (a group unknown there, a proxy that cannot wait) is followed
by 50 ms, doubling to 500 ms; a failed call by 100 ms, doubling to 5 s, with jitter.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from ddmq_client.core.verdicts import PERMANENT, CallVerdict
from ddmq_client.errors import OptionError

if TYPE_CHECKING:
    import ssl

    from ddmq_client.security.login import ClientLogin

PROXIES_MAX = 256
UNIX = "unix:"  # before the path of a Unix socket
_BRACKETS = re.compile(r"\[([^]]*)\](?::(.*))?")  # [host]:port
_HOST_NAME = re.compile(r"[^\s:/@?#%,\[\]]+")
ADDRESSES_MAX = 256  # that all names resolve to
RESOLVE_EVERY_S = 30.0  # between two resolutions of a name
UNRESOLVED_RETRY_S = 1.0  # while no name resolves at all


class _HostPort(NamedTuple):
    host: str
    port: int


class ProxyAddress(_HostPort):
    """The address of a proxy: a host name or IP address, and a port. `login`: how connections to it log in,
    which is not part of its identity; None: they do not."""

    login: ClientLogin | None = None

    def with_login(self, login: ClientLogin | None) -> ProxyAddress:
        """Return the same address with another login."""
        address = ProxyAddress(*self)
        address.login = login
        return address

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(ProxyAddress):
    """The path of a Unix socket, as `host`; `port` is 0."""

    def with_login(self, login: ClientLogin | None) -> ProxyAddress:
        address = UnixAddress(*self)
        address.login = login
        return address

    def __str__(self) -> str:
        return UNIX + self.host


class ContextSource(Protocol):
    """The TLS of one client."""

    def get_context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Raises OSError if a file cannot be used."""


class SecureAddress(ProxyAddress):
    """The address of a proxy that is reached with TLS. It equals the plain address.

    `server_name`: the name that the certificate must state.
    """

    tls: ContextSource
    server_name: str

    @classmethod
    def build(cls, address: ProxyAddress, tls: ContextSource, server_name: str) -> Self:
        """Return `address` with TLS."""
        secure = cls(*address)
        secure.tls, secure.server_name, secure.login = tls, server_name, address.login
        return secure

    def secure_like(self, addresses: list[ProxyAddress]) -> list[ProxyAddress]:
        """Return the addresses to which this name resolves, each with the TLS and the name of this one."""
        return [self.build(address, self.tls, self.server_name) for address in addresses]


def parse_addresses(
    proxies: str | Sequence[str],
    default_port: int,
    name: str = "proxies",
    login: ClientLogin | None = None,
    *,
    takes_unix: bool = False,
) -> tuple[ProxyAddress, ...]:
    """Return all addresses in `proxies`, in order, without duplicates, with this login.

    `takes_unix`: also "unix:PATH". Raises OptionError if malformed or empty.
    """
    texts = proxies.split(",") if isinstance(proxies, str) else proxies
    texts = list(texts) if isinstance(texts, Iterable) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise OptionError(f"{name}={proxies!r}; allowed: 'host:port', several with commas, or a list")
    addresses: dict[ProxyAddress, None] = {}
    for text in filter(None, map(str.strip, texts)):
        is_path = takes_unix and text.startswith(UNIX)
        address = UnixAddress(text.removeprefix(UNIX), 0) if is_path else _parse_one(text, default_port, name)
        addresses[address] = None
    if not 1 <= len(addresses) <= PROXIES_MAX:
        raise OptionError(f"{name}={proxies!r} names {len(addresses)} addresses; allowed: 1 to {PROXIES_MAX}")
    return tuple(address.with_login(login) for address in addresses)


def _parse_one(text: str, default_port: int, name: str) -> ProxyAddress:
    brackets = _BRACKETS.fullmatch(text)
    if brackets is not None:
        host, port = brackets.groups(default="")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    port = port or str(default_port)
    is_ipv6 = ":" in host and is_literal(ProxyAddress(host, 0))
    is_host = is_ipv6 or (brackets is None and _HOST_NAME.fullmatch(host) is not None)
    if not is_host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(
            f"{name}: {text!r} is not an address; allowed: host:port with a port from 1 to 65535, or"
            f" [::1]:port for IPv6{', without a scheme' if '://' in text else ''}"
        )
    return ProxyAddress(host, int(port))


def describe_unresolved(addresses: Iterable[ProxyAddress], *, in_time: bool = True) -> str:
    """Return why no proxy address is known: no name resolves, or none resolved within the call's time-out."""
    names = ", ".join(map(str, addresses))
    if in_time:
        return f"no proxy address is known: no name resolves of {names}"
    return f"the time is up (timeout_ms) before the addresses of {names} were known"


def from_info(info: Iterable[tuple[object, ...]], name: ProxyAddress) -> list[ProxyAddress]:
    """Return the addresses in a getaddrinfo answer about `name`, without duplicates, with its login."""
    pairs = [entry[4] for entry in info]
    addresses = [ProxyAddress(str(pair[0]), int(pair[1])) for pair in pairs if isinstance(pair, tuple)]
    addresses = [address.with_login(name.login) for address in dict.fromkeys(addresses)]
    return name.secure_like(addresses) if isinstance(name, SecureAddress) else addresses


def is_literal(address: ProxyAddress) -> bool:
    """Return whether the address is an IP address, so that it needs no name resolution."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True


BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
TIME_OUTS_MAX = 3


_OUT_OF_ROTATION = frozenset((CallVerdict.NOT_SENT, CallVerdict.LOST, CallVerdict.LEAVING)) | PERMANENT


class Node:
    """One proxy at one resolved address."""

    __slots__ = (
        "address", "failures", "name", "probing", "recognises", "recognises_keys", "removed", "retry_at",
        "time_outs",
    )  # fmt: skip

    def __init__(self, address: ProxyAddress) -> None:
        self.address = address
        self.name = str(address)
        self.failures = 0
        self.time_outs = 0
        self.retry_at: float | None = None  # out of rotation until a probe after this time succeeds
        self.probing = False
        self.removed = False  # no longer among the resolved addresses
        # Whether it recognises resent messages, by numbers and by keys; None: not observed yet.
        self.recognises: bool | None = None
        self.recognises_keys: bool | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether the node is in rotation without a counted failure, so that a success changes nothing."""
        return self.retry_at is None and not self.time_outs and not self.failures

    @property
    def is_up(self) -> bool:
        """Whether the node is in rotation."""
        return self.retry_at is None

    def __repr__(self) -> str:
        return f"Node({self.name}, {'up' if self.is_up else f'out, {self.failures} failures'})"


def _combine_observations(observations: Iterable[bool | None]) -> bool | None:
    """Return False if one is False, else True if one is True, else None."""
    combined = None
    for recognises in observations:
        if recognises is False:
            return False
        if recognises:
            combined = True
    return combined


class Rotation:
    """Selects the proxy for each call: each in turn, but a proxy that has failed only after a back-off."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        """Create a rotation without proxies.

        `jitter` returns a number in [0, 1), which varies back-offs between 75 % and 125 %.
        """
        self._jitter = jitter
        self._nodes: list[Node] = []
        self._pick_count = 0

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes, in and out of rotation."""
        return self._nodes

    def update(self, addresses: Iterable[ProxyAddress]) -> list[Node]:
        """Replace the addresses by newly resolved ones; return the removed nodes.

        Known nodes keep their health.
        """
        resolved = dict.fromkeys(addresses)
        removed = [node for node in self._nodes if node.address not in resolved]
        for node in removed:
            node.removed = True
        by_address = {node.address: node for node in self._nodes}
        self._nodes = [by_address.get(address) or Node(address) for address in resolved]
        return removed

    def pick_node(self, avoid: Collection[Node]) -> Node | None:
        """Return the next node, if possible not one of `avoid`; None only while no address is known."""
        nodes = self._nodes
        if len(nodes) == 1:
            return nodes[0]
        up = [node for node in nodes if node.retry_at is None]
        fresh = [node for node in up if node not in avoid] if avoid else up
        candidates = fresh or up
        if candidates:
            self._pick_count += 1
            return candidates[self._pick_count % len(candidates)]
        return min(nodes, key=lambda node: node.retry_at or 0.0, default=None)

    def has_fresh(self, avoid: Collection[Node]) -> bool:
        """Return whether a node in rotation is not one of `avoid`."""
        return any(node.retry_at is None and node not in avoid for node in self._nodes)

    def recognises_resends(self) -> bool | None:
        """Return whether nodes recognise resent messages by their numbers; None if that is unknown.

        False if one node is known not to, else True if one is known to.
        """
        return _combine_observations(node.recognises for node in self._nodes)

    def recognises_keys(self) -> bool | None:
        """Return whether nodes recognise resent messages by idempotency keys; None if that is unknown."""
        return _combine_observations(node.recognises_keys for node in self._nodes)

    def record_outcome(self, node: Node, verdict: CallVerdict, now: float) -> None:
        """Count the outcome of a call towards the node's health."""
        if verdict is CallVerdict.TIMED_OUT:
            node.time_outs += 1
            if node.time_outs >= TIME_OUTS_MAX:
                self._take_out(node, now)
        elif verdict in _OUT_OF_ROTATION:
            self._take_out(node, now)
        else:
            self._put_back(node)

    def due_probes(self, now: float) -> list[Node]:
        """Return the nodes to probe now, as their back-off has ended, and mark them as being probed."""
        due = [n for n in self._nodes if n.retry_at is not None and n.retry_at <= now and not n.probing]
        for node in due:
            node.probing = True
        return due

    def _put_back(self, node: Node) -> None:
        node.failures = node.time_outs = 0
        node.retry_at = None
        node.probing = False

    def _take_out(self, node: Node, now: float) -> None:
        already = node.retry_at is not None and not node.probing and now < node.retry_at
        node.probing = False
        if already:
            return  # failures of calls that were under way together count once
        node.failures += 1
        backoff = min(BACKOFF_FIRST_S * 2.0 ** min(node.failures - 1, 16), BACKOFF_MAX_S)
        node.retry_at = now + backoff * (0.75 + self._jitter() / 2)


EMPTY_FIRST_S, EMPTY_MAX_S = 0.05, 0.5
FAILED_FIRST_S, FAILED_MAX_S = 0.1, 5.0
LINGER_MIN_S = 0.02  # proxies wait no shorter


class Pace:
    """Computes the pauses between the pulls of one puller, from empty and failed pulls before."""

    def __init__(self, linger_s: float, jitter: Callable[[], float]) -> None:
        """Start without empty or failed pulls. `jitter` returns a number in [0, 1)."""
        self._linger_s = linger_s
        self._jitter = jitter
        self._empties = 0
        self._failures = 0

    @property
    def is_failing(self) -> bool:
        """Whether the last call failed."""
        return self._failures > 0

    def pause_after_answer(self, messages: int, took_s: float, call_linger_s: float | None = None) -> float:
        """Return the seconds to wait after an answer.

        `took_s`: how long the call took. `call_linger_s`: the linger time of this call, if it differs from
        the puller's.
        """
        self._failures = 0
        linger_s = self._linger_s if call_linger_s is None else max(call_linger_s, LINGER_MIN_S)
        if messages or took_s >= linger_s / 2:
            self._empties = 0
            return 0.0
        pause = min(EMPTY_FIRST_S * 2.0 ** min(self._empties, 10), EMPTY_MAX_S)
        self._empties += 1
        return pause

    def pause_after_failure(self) -> float:
        """Return the seconds to wait after a call that got no answer or was rejected."""
        pause = min(FAILED_FIRST_S * 2.0 ** min(self._failures, 10), FAILED_MAX_S)
        self._failures += 1
        return pause * (0.75 + self._jitter() / 2)
