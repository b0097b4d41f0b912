"""Which brokers accept no connection: partitions that only such a broker can lead take no record now.

For some seconds after a broker is lost, its cluster still names it as the leader of its partitions, until
`broker.session.timeout.ms` has passed. If it has the only replica in sync, no other broker can take its place
afterwards either. So a process that has reason to ask tries to connect. Nothing is sent: whether the broker
would answer is not known. Everything here blocks, and runs in native threads.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Mapping
from typing import Any

from backend.kafka.targets import sole_leaders

CONNECT_S = 0.5


def find_unreachable(brokers: Mapping[int, Any], partitions: Collection[Any]) -> frozenset[int]:
    """Return those brokers that accept no connection and have the only replica in sync of a partition.

    `brokers` and `partitions` are metadata of Kafka.
    """
    unreachable: list[int] = []

    def connect(number: int) -> None:
        if not accepts_connections(brokers[number].host, brokers[number].port):
            unreachable.append(number)

    candidates = [number for number in sole_leaders(partitions) if number in brokers]
    threads = [threading.Thread(target=connect, args=(number,), daemon=True) for number in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return frozenset(unreachable)


def accepts_connections(host: str, port: int) -> bool:
    """Return whether a TCP connection can be made to the address within CONNECT_S for each of its names."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True
