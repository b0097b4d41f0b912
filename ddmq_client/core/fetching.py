"""What a low-level fetching client knows: which queues each proxy gave it, and where it is in each. Pure.

A queue belongs to the proxy that answered for it last. When a proxy leaves a queue out, or is gone, the
queue is somebody else's and its place is forgotten: whoever gets it goes on at the group's stored offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddmq_client.core.places import Offsets
from ddmq_client.received import Delivery, FetchedQueue, Message, Origin, Outcome

Queue = tuple[str, str]  # topic, queue


class Assignments:
    """The queues of one client, by proxy. Callers lock."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._held: dict[str, dict[Queue, int]] = {}  # proxy → queue → next offset to fetch
        self._handed: dict[Queue, int] = {}  # next offset after what the application was given
        self._wishes: dict[Queue, int] = {}  # of `seek`, not yet fetched

    def queues(self) -> list[Queue]:
        """All that are ours, sorted."""
        return sorted({queue for held in self._held.values() for queue in held})

    def ask(self, proxy: str) -> Offsets:
        """Where the next fetch from this proxy goes on."""
        wanted = self._wishes | {
            queue: self._wishes.get(queue, offset) for queue, offset in self._held.get(proxy, {}).items()
        }
        return by_topic(wanted)

    def answered(self, proxy: str, queues: Sequence[FetchedQueue], now: float) -> None:
        """A fetch was answered: these are ours there."""
        held: dict[Queue, int] = {}
        for each in queues:
            queue = (each.topic, each.queue)
            held[queue] = each.next_offset
            self._wishes.pop(queue, None)
            for other, theirs in self._held.items():
                if other != proxy:
                    theirs.pop(queue, None)
            if each.messages:
                self._handed[queue] = each.next_offset
                origin = Origin(self._group, *queue)
                delivery = Delivery(origin, now, None, _not_settled, _not_extended)
                for message in each.messages:
                    message.delivery = delivery
        gone = self._held.get(proxy, {}).keys() - held.keys()
        self._held[proxy] = held
        self._forget(gone)

    def lost(self, proxy: str) -> None:
        """The proxy does not answer: its queues go elsewhere."""
        self._forget(self._held.pop(proxy, {}).keys())

    def seek(self, topic: str, queue: str, offset: int) -> None:
        """Fetch from `offset` next."""
        self._wishes[topic, queue] = offset

    def acks(self, offsets: Mapping[str, Mapping[str, int]] | None) -> dict[str, Offsets]:
        """By proxy, what an ack says; without `offsets`, all that was handed out."""
        if offsets is None:
            wanted = dict(self._handed)
        else:
            wanted = {(topic, queue): n for topic, given in offsets.items() for queue, n in given.items()}
        found: dict[str, Offsets] = {}
        for proxy, held in self._held.items():
            mine = by_topic({queue: offset for queue, offset in wanted.items() if queue in held})
            if mine:
                found[proxy] = mine
        return found

    def acked(self, offsets: Offsets) -> None:
        """These are stored."""
        for topic, queues in offsets.items():
            for queue, offset in queues.items():
                if self._handed.get((topic, queue)) == offset:
                    del self._handed[topic, queue]

    def _forget(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self._handed.pop(queue, None)
            self._wishes.pop(queue, None)


def by_topic(offsets: Mapping[Queue, int]) -> Offsets:
    """topic → queue → offset."""
    found: Offsets = {}
    for (topic, queue), offset in offsets.items():
        found.setdefault(topic, {})[queue] = offset
    return found


def _not_settled(message: Message, outcome: Outcome, delay_ms: int | None, reason: str) -> bool:
    """Fetched messages are acknowledged by offset, not one by one."""
    return False


def _not_extended(message: Message) -> bool:
    """Fetched messages have no lease."""
    return False
