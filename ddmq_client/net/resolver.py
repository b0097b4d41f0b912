"""Names to addresses, by the system's resolver (gevent's, where it has patched the socket module)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from ddmq_client.core.addresses import ADDRESSES_MAX, ProxyAddress, from_info, is_literal

AGAIN_S = 0.2  # for what was resolved before: a name server that hangs does not hold up anybody for longer
T = TypeVar("T")


def resolve(
    addresses: Iterable[ProxyAddress], known: dict[ProxyAddress, list[ProxyAddress]]
) -> list[ProxyAddress]:
    """Every address behind these; a name that does not resolve now keeps what it had in `known` (updated)."""
    found: dict[ProxyAddress, None] = {}
    for address in addresses:
        try:
            known[address] = from_info(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            pass
        found.update(dict.fromkeys(known.get(address, ())))
    return list(found)[:ADDRESSES_MAX]


def in_time(work: Callable[[], T], addresses: Iterable[ProxyAddress], deadline: float) -> T | None:
    """What `work` makes of these addresses; None when a name server has not answered by then.

    Nothing ends a getaddrinfo that waits: it is left behind, on a thread of its own.
    """
    if all(map(is_literal, addresses)):
        return work()
    made: list[T] = []
    thread = threading.Thread(target=lambda: made.append(work()), name="ddmq-resolve", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    return made[0] if made else None
