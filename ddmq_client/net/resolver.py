"""Names to addresses, by the system's resolver (gevent's, where it has patched the socket module)."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from ddmq_client.core.addresses import Address

RESOLVE_EVERY_S = 30.0
UNRESOLVED_RETRY_S = 1.0  # while no name resolves at all
ADDRESSES_MAX = 256


def resolve(addresses: Iterable[Address], known: dict[Address, list[Address]]) -> list[Address]:
    """Every address behind these; a name that does not resolve now keeps what it had in `known` (updated)."""
    found: dict[Address, None] = {}
    for address in addresses:
        try:
            known[address] = from_info(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            pass
        found.update(dict.fromkeys(known.get(address, ())))
    return list(found)[:ADDRESSES_MAX]


def from_info(info: Iterable[tuple[object, ...]]) -> list[Address]:
    """Addresses in a getaddrinfo answer, each once."""
    pairs = [entry[4] for entry in info]
    return list(
        dict.fromkeys(Address(str(pair[0]), int(pair[1])) for pair in pairs if isinstance(pair, tuple))
    )


def is_literal(address: Address) -> bool:
    """An IP address, not a name: it never resolves to anything else."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return False
    return True
