"""How queues are spread over members: who gets what, when nobody holds anything yet.

Members and queues come sorted, by whoever asks: every caller then reaches the same result from the same
names. Each strategy answers with one member's index per queue. The three are those that RocketMQ calls
AllocateMessageQueueAveragely, -AveragelyByCircle and -ConsistentHash.

Pure; hashes are SHA-1 of names, so they are the same in every process and at every start.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1

POINTS = 64  # places of one member on the ring: with ten members shares differ by about a third
NAMES_CACHED = 4096


def averagely(queues: int, members: int) -> list[int]:
    """Consecutive queues to each member; the first ones get one more where it does not come out even."""
    each, more = divmod(queues, members)
    owners: list[int] = []
    for member in range(members):
        owners += [member] * (each + (member < more))
    return owners


def by_circle(queues: int, members: int) -> list[int]:
    """One queue to each member in turn, again and again."""
    return [queue % members for queue in range(queues)]


def consistent_hash(queues: Sequence[str], members: Sequence[str]) -> list[int]:
    """Each queue to the next member on a ring of hashes; a member that comes takes only its own share.

    Members of the same name are told apart by their order.
    """
    ring = _ring(members)
    hashes = [point for point, _ in ring]
    return [ring[bisect_left(hashes, _point(queue)) % len(ring)][1] for queue in queues]


def _ring(members: Sequence[str]) -> list[tuple[int, int]]:
    seen: dict[str, int] = {}
    ring: list[tuple[int, int]] = []
    for index, name in enumerate(members):
        twin = seen[name] = seen.get(name, -1) + 1
        ring += [(point, index) for point in _points(name, twin)]
    return sorted(ring)


@lru_cache(maxsize=NAMES_CACHED)
def _points(name: str, twin: int) -> tuple[int, ...]:
    return tuple(_point(f"{name}#{twin}#{number}") for number in range(POINTS))


def _point(name: str) -> int:
    return int.from_bytes(sha1(name.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()[:8])
