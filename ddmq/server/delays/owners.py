"""The shards of delayed messages, and the processes that own them.

Only the process that owns a shard can read it. A request about one shard is answered by its owner, one about
all shards by all owners. The delay service continues while an answer waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gevent

from backend.port import Backend
from ddmq.address import parse
from ddmq.server.admin.figures import fetch_answers
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.delays.backup import OpenShard
from ddmq.server.http.routing import AdminRequest, forward_request
from ddmq_common.clock import Clock
from ddmq_common.delays.command import is_uuid, parse_delay_id, shard_of
from ddmq_common.errors import CallerError, DdmqError, TryLaterError, UnsupportedError
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC
from ddmq_common.native_threads import in_thread
from delay_service.service import DelayService
from delay_service.store.port import DelayStore, DueTimeCounts

CATCH_UP_S, POLL_INTERVAL_S = 3.0, 0.01  # for commands that were stored before a request
OWNERS_WAIT_S = 10.0  # for the answers of the other owners, each of which may have to catch up first


class OwnShards(NamedTuple):
    """The shards of this process that the answer to a request covers.

    `open`: those that are read. `behind`: by shard, the number of commands that were stored before the
    request and are not processed yet. `not_open`, `elsewhere`: the shards that are not read, because they are
    not open, or because this process does not own them or has just got them.
    """

    service: DelayService
    open: list[OpenShard]
    behind: dict[int, int]
    not_open: list[int]
    elsewhere: list[int]

    def count_pending(self, topic: str | None) -> int:
        """Return the number of waiting messages of a topic in the open shards; None: of all topics."""
        counts = [shard.store.counts() for shard in self.open]
        return sum(sum(each.values()) if topic is None else each.get(topic, 0) for each in counts)


class DelayOwners:
    """The shards of this process and the other processes that own shards. `timers`: the delay service of this
    process, or None. `read_token`: returns the token with which this process logs in to others."""

    def __init__(
        self, backend: Backend, timers: DelayService | None, clock: Clock,
        read_token: Callable[[], bytes] = bytes,
    ) -> None:  # fmt: skip
        self.backend = backend
        self.timers = timers
        self.clock = clock
        self.read_token = read_token

    def answer_anywhere(self, request: AdminRequest, act: Callable[[AdminRequest], Any]) -> Any:
        """Return the answer of `act` or, if another process owns the requested shard, that process's
        answer."""
        address = None if request.is_forwarded else self._other_owner(request)
        if address is None:
            return act(request)
        return in_thread(forward_request, address, request, self.read_token())

    def _other_owner(self, request: AdminRequest) -> str | None:
        """Return the address of the owner of the requested shard, or of any owner if no delay service runs
        here."""
        service = self.timers
        shard = self.find_shard(request.path["id"])[1] if "id" in request.path else None
        if service is not None and (shard is None or shard in service.shards):
            return None
        addresses = self.map_addresses()
        if shard is not None:
            return addresses.get(shard)
        return next(iter(addresses.values()), None)

    def map_addresses(self) -> dict[int, str]:
        """Return the addresses at which the owners of the shards are reached."""
        owners = self.backend.holders(DELAY_GROUP, DELAY_TOPIC, self.clock.monotonic() + WAIT_S)
        return {queue.queue_id: address for queue, address in owners.wait(WAIT_S).items() if address}

    def list_other_addresses(self) -> list[str]:
        """Return the admin addresses of the other processes that own shards; none if they are unknown."""
        owned = {} if self.timers is None else self.timers.shards
        try:
            addresses = self.map_addresses()
        except (DdmqError, TimeoutError):
            return []
        return [address for shard, address in addresses.items() if shard not in owned]

    def list_other_owners(self) -> dict[int, str]:
        """Return, for each shard that this process does not own, the admin address of its owner; "" if that
        is not known."""
        owned = {} if self.timers is None else self.timers.shards
        try:
            addresses = self.map_addresses()
        except (DdmqError, TimeoutError):
            addresses = {}
        return {
            number: addresses.get(number, "") for number in range(self.count_shards()) if number not in owned
        }

    def fetch_answers(
        self, request: AdminRequest, path: str, query: Mapping[str, str], *keys: str
    ) -> list[dict[str, Any]]:
        """Return the answers of all other owners to a request for `path`. Raises UnsupportedError if no
        process with a delay service is known."""
        owners = self.list_other_owners()
        addresses = {address: parse(address) for address in owners.values() if address}
        if self.timers is None and not addresses:
            self.map_addresses()  # raises why they are not known
            self.require_service()
        return fetch_answers(
            addresses, path, *keys, query=query, token=self.read_token(), caller=request.caller,
            wait_s=OWNERS_WAIT_S,
        ).answers  # fmt: skip

    def find_shard(self, text: str) -> tuple[str, int]:
        """Return (uuid, shard) for a delay id or a uuid."""
        parsed = parse_delay_id(text.encode())
        if parsed is None and not is_uuid(text.encode()):
            raise CallerError(f"{text[:140]!r} is neither a delay id nor a uuid")
        uuid, queues = text if parsed is None else parsed.uuid, self.count_shards()
        return uuid, shard_of(uuid, queues) if parsed is None else parsed.shard % queues

    def require_service(self) -> DelayService:
        """Return the delay service of this process. Raises UnsupportedError."""
        service = self.timers
        if service is None:
            raise UnsupportedError(
                "no delay service in this process; ask the admin port of the one that has it"
            )
        return service

    def catch_up(self) -> OwnShards:
        """Wait until the delay service has processed every command that was stored before this request, at
        most CATCH_UP_S. Return the shards that were open all the time, for the answer to the request."""
        service = self.require_service()
        owned = set(service.shards)
        shards = {shard.queue: shard for shard in service.shards.values() if shard.running}
        bounds = self.backend.bounds(list(shards)).wait(WAIT_S)
        ends = {
            queue: limits.next for queue, limits in zip(shards, bounds, strict=True) if limits is not None
        }
        give_up = self.clock.monotonic() + CATCH_UP_S  # a poll takes long while the loop is busy
        while behind := {
            queue.queue_id: end - (shards[queue].position or 0)
            for queue, end in ends.items()
            if shards[queue].running and end > (shards[queue].position or 0)
        }:
            if self.clock.monotonic() >= give_up:
                break
            gevent.sleep(POLL_INTERVAL_S)
        numbers = {queue.queue_id for queue in shards}
        open_shards = [each for each in self.list_open_shards() if each.number in numbers]
        read = {each.number for each in open_shards}
        not_open = [number for number in service.shards if number in owned - read]
        return OwnShards(
            service,
            open_shards,
            behind,
            not_open,
            [number for number in range(self.count_shards()) if number not in read.union(not_open)],
        )

    def list_open_shards(self) -> list[OpenShard]:
        """Return the shards of this process that can be read. Raises UnsupportedError."""
        return [
            OpenShard(number, shard.context.store)
            for number, shard in self.require_service().shards.items()
            if shard.context is not None and shard.context.running
        ]

    def find_store(self, number: int) -> DelayStore:
        """Return the store of an open shard of this process. Raises TryLaterError."""
        for shard in self.list_open_shards():
            if shard.number == number:
                return shard.store
        if number in self.require_service().shards:
            raise TryLaterError(f"delay shard {number} is not open yet; try again")
        raise TryLaterError(f"delay shard {number} is held by another delay service; ask its admin port")

    def list_missing_shards(self, service: DelayService) -> dict[str, list[int]]:
        """Return the shards whose messages are missing from an overview of this process: those of other
        processes, and those that are not open now."""
        closed = [number for number, shard in service.shards.items() if not shard.running]
        return {"elsewhere": self.list_foreign_shards(service), "not_open": closed}

    def list_foreign_shards(self, service: DelayService) -> list[int]:
        """Return the shards that this process does not own."""
        return [number for number in range(self.count_shards()) if number not in service.shards]

    def count_shards(self) -> int:
        """Return the number of shards of all processes. Raises TryLaterError."""
        info = self.backend.topic(DELAY_TOPIC)
        if info is None:
            raise TryLaterError("the delay service has not started yet; try again")
        return info.queues

    def count_due(self, topic: str | None, start: int, end: int, step: int) -> list[DueTimeCounts]:
        """Return the numbers of waiting messages by due time, in minutes, of each open shard that this
        process owns."""
        if self.timers is None:
            return []
        return [one.store.count_due(topic, start, end, step) for one in self.list_open_shards()]

    def list_closed_shards(self) -> dict[int, str]:
        """Return the shards of this process that are not open, with the reasons."""
        shards = {} if self.timers is None else self.timers.shards
        return {number: shard.why for number, shard in shards.items() if not shard.running}

    def is_behind(self) -> bool:
        """Return whether this process has not processed all commands that were stored before this call."""
        if self.timers is None:
            return False
        shards = [shard for shard in self.timers.shards.values() if shard.running]
        bounds = self.backend.bounds([shard.queue for shard in shards]).wait(WAIT_S)
        return any(
            limits is not None and limits.next > (shard.position or 0)
            for shard, limits in zip(shards, bounds, strict=True)
        )

    def group_by_owner(self, numbers: Sequence[int]) -> dict[str, list[int]]:
        """Return the numbers of these shards by the admin address of their owner; shards without an owner are
        left out."""
        if not numbers:
            return {}
        by_address: dict[str, list[int]] = {}
        for number, address in self.map_addresses().items():
            if number in numbers:
                by_address.setdefault(address, []).append(number)
        return by_address
