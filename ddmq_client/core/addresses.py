"""Proxy addresses as an application writes them: "host:port", several with commas, or a list. Pure.

`[::1]:9613` for IPv6. A name stands for every address it resolves to; resolving is the shell's work.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddmq_client.errors import OptionError

PROXIES_MAX = 256
ADDRESSES_MAX = 256  # that all names resolve to
RESOLVE_EVERY_S = 30.0  # a name, again
UNRESOLVED_RETRY_S = 1.0  # while no name resolves at all


class ProxyAddress(NamedTuple):
    """Where to connect: a name or a literal, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(proxies: str | Sequence[str], default_port: int) -> tuple[ProxyAddress, ...]:
    """All addresses named, in order, each once; OptionError for none or a malformed one."""
    texts = proxies.split(",") if isinstance(proxies, str) else proxies
    texts = list(texts) if isinstance(texts, Iterable) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise OptionError(f"proxies={proxies!r}; allowed: 'host:port', several with commas, or a list")
    found = dict.fromkeys(_parse_one(text.strip(), default_port) for text in texts if text.strip())
    if not 1 <= len(found) <= PROXIES_MAX:
        raise OptionError(f"proxies={proxies!r} names {len(found)} proxies; allowed: 1 to {PROXIES_MAX}")
    return tuple(found)


def _parse_one(text: str, default_port: int) -> ProxyAddress:
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not port:
        return ProxyAddress(host, default_port)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(f"proxy {text!r} is not host:port with a port from 1 to 65535")
    return ProxyAddress(host, int(port))


def from_info(info: Iterable[tuple[object, ...]]) -> list[ProxyAddress]:
    """Addresses in a getaddrinfo answer, each once."""
    pairs = [entry[4] for entry in info]
    return list(
        dict.fromkeys(ProxyAddress(str(pair[0]), int(pair[1])) for pair in pairs if isinstance(pair, tuple))
    )


def is_literal(address: ProxyAddress) -> bool:
    """An IP address, not a name: it never resolves to anything else."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True
