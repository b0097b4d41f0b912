"""pollTransactionChecks: polls wait here for the checks of this proxy's shards and of other owners' shards.

Once a second this proxy polls the other owners, without waiting, for the groups that have a poll here. A
check that arrives when no poll waits any more is stored for the group's next poll for a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from backend.completion import Completion
from ddmq_common.clock import Clock
from ddmq_rpc.api import Call
from proxy_producer.core.rejections import SendRejection
from proxy_producer.transactions.check_back import IDL, WaitingPoll, WaitingPolls, hand_out_checks
from proxy_producer.transactions.context import TransactionCounts
from proxy_producer.transactions.deciding import OwnedShard
from proxy_producer.transactions.owners import OwnerAddresses, Owners

REQUESTS_MAX = 200  # requests to other proxies each second
STORED_CHECKS_S, STORED_GROUPS_MAX = 10.0, 64  # each of up to ANSWER_BYTES_MAX
HANDOUTS_MAX = 32  # answers under preparation at a time, each of up to ANSWER_BYTES_MAX


class Polls:
    """Matches the waiting polls of one proxy with transaction checks.

    `list_ready_shards()`: the ready shards of this proxy.
    """

    def __init__(
        self,
        owners: Owners,
        clock: Clock,
        counts: TransactionCounts,
        list_ready_shards: Callable[[], Iterable[OwnedShard]],
    ) -> None:
        self._owners = owners
        self._clock = clock
        self._counts = counts
        self._list_ready_shards = list_ready_shards
        self._pending_requests: set[tuple[str, str]] = set()  # address and group of requests under way
        self._next_candidate = 0
        self._stored_checks: dict[str, tuple[float, list[Any]]] = {}
        self._handouts = 0
        self._behind: dict[str, None] = {}  # groups that are served when handouts finish
        self.waiting = WaitingPolls()

    def poll(self, call: Call, group: str, count: int, timeout_s: float, *, forwarded: bool) -> None:
        """Register an accepted poll, and answer it at once if checks are stored or due."""
        poll = WaitingPoll(self.waiting, call, group, count, self._clock.monotonic() + timeout_s, forwarded)
        self.waiting.add_poll(poll)
        waiting = self._stored_checks.pop(group, None)
        if waiting is not None:
            poll.answer_poll(waiting[1])
            return
        self.serve_group(group)
        if timeout_s <= 0 and not poll.is_served:
            poll.answer_poll(())

    def serve_group(self, group: str) -> None:
        """Hand out the due checks of this proxy's shards to the waiting polls of a group."""
        for owned in self._list_ready_shards():
            while (
                owned.shard.core.has_offer(group) and (poll := self.waiting.find_unserved(group)) is not None
            ):
                if self._handouts >= HANDOUTS_MAX:
                    self._behind[group] = None
                    return
                poll.is_served = True
                self._handouts += 1
                if not hand_out_checks(
                    owned.shard, owned.deciding, group, poll.count, partial(self._on_checks, poll)
                ):
                    self._handouts -= 1
                    poll.is_served = False
                    break
                if not (poll.is_served or poll.done):
                    break  # it failed at once: retried with the next periodic run

    def _on_checks(self, poll: WaitingPoll, checks: list[Any]) -> None:
        poll.is_served = False
        self._handouts -= 1
        self._deliver_checks(poll, checks)
        while self._behind and self._handouts < HANDOUTS_MAX:
            group = next(iter(self._behind))
            del self._behind[group]
            self.serve_group(group)

    def _deliver_checks(self, poll: WaitingPoll, checks: list[Any]) -> None:
        if not checks:
            if poll.deadline <= self._clock.monotonic():
                poll.answer_poll(())
        elif poll.done:
            self._store_checks(poll.group, checks)
        else:
            poll.answer_poll(checks)

    def _store_checks(self, group: str, checks: list[Any]) -> None:
        """Answer another poll of the group with these checks, or store them for the group's next poll."""
        poll = self.waiting.find_unserved(group)
        if poll is not None:
            poll.answer_poll(checks)
        elif len(self._stored_checks) < STORED_GROUPS_MAX and group not in self._stored_checks:
            self._stored_checks[group] = self._clock.monotonic() + STORED_CHECKS_S, checks
        else:
            self._count_lost(checks)

    def _count_lost(self, checks: list[Any]) -> None:
        """Count checks for which no poll came. They are repeated after the check interval."""
        for _ in checks:
            self._counts.count_rejected("check: nobody waits")

    def expire_polls(self) -> None:
        """Answer the polls whose deadline has come."""
        self.waiting.expire(self._clock.monotonic())

    def serve_groups(self) -> None:
        """Serve all waiting polls, drop expired stored checks, and request checks from other proxies.

        Called every second.
        """
        for group in self.waiting.groups():
            self.serve_group(group)
        now = self._clock.monotonic()
        for group in [group for group, waiting in self._stored_checks.items() if waiting[0] <= now]:
            self._count_lost(self._stored_checks.pop(group)[1])
        if self.waiting.groups():
            self._owners.fetch_addresses().then(self._poll_owners)

    def _poll_owners(self, addresses: Completion[OwnerAddresses]) -> None:
        if addresses.error is not None:
            return
        candidates = [
            (address, group)
            for group in self.waiting.groups()
            if (poll := self.waiting.find_unserved(group)) is not None and not poll.forwarded
            for address in self._owners.list_others(addresses.value)
            if (address, group) not in self._pending_requests
        ]
        if not candidates:
            return
        self._next_candidate %= len(candidates)
        requests = (candidates[self._next_candidate :] + candidates[: self._next_candidate])[:REQUESTS_MAX]
        self._next_candidate += len(requests)
        for address, group in requests:
            self._poll_owner(address, group)

    def _poll_owner(self, address: str, group: str) -> None:
        poll = self.waiting.find_unserved(group)
        if poll is None:
            return
        self._pending_requests.add((address, group))
        request = IDL.PollChecksRequest(
            producerGroup=group.encode(),
            clientId=poll.call.args.request.clientId or b"",
            countMax=poll.count,
            timeout=0,
            forwardedBy=self._owners.address or "-",
        )

        def on_answer(answer: Any, error: Exception | None) -> None:
            self._pending_requests.discard((address, group))
            if error is None and answer is not None and answer.checks:
                self._store_checks(group, list(answer.checks))

        self._owners.call(address, "pollTransactionChecks", request, on_answer)

    def end(self, rejection: SendRejection) -> None:
        """Answer every poll with this rejection, because the proxy stops."""
        self.waiting.end(rejection)
