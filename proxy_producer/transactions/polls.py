"""pollTransactionChecks: who waits here is given the checks of this proxy's shards, and those of others.

Other owners are asked once a second, for groups whose members wait here, without waiting there. A check that
comes when nobody waits any more is kept for the group's next poll for a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from backend.completion import Completion
from ddmq_common.clock import Clock
from ddmq_rpc.api import Call
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.transactions.asking import IDL, HeldPoll, HeldPolls, ask
from proxy_producer.transactions.context import TransactionCounts
from proxy_producer.transactions.deciding import OwnedShard
from proxy_producer.transactions.owners import Holders, Owners

ASKS_MAX = 200  # questions to other proxies each second
KEPT_S, KEPT_GROUPS_MAX = 10.0, 64  # each of up to ANSWER_BYTES_MAX
ASKING_MAX = 32  # answers that are made at a time, the same


class Polls:
    """All polls of one proxy. `owned()`: its shards that are ready."""

    def __init__(
        self,
        owners: Owners,
        clock: Clock,
        counts: TransactionCounts,
        owned: Callable[[], Iterable[OwnedShard]],
    ) -> None:
        self._owners = owners
        self._clock = clock
        self._counts = counts
        self._owned = owned
        self._pending_requests: set[tuple[str, str]] = set()  # address and group: an answer is under way
        self._turn = 0
        self._kept: dict[str, tuple[float, list[Any]]] = {}
        self._asking = 0
        self._behind: dict[str, None] = {}  # groups whose turn comes when some of these are made
        self.held = HeldPolls()

    def poll(self, call: Call, group: str, count: int, timeout_s: float, *, forwarded: bool) -> None:
        """One call; it was accepted."""
        poll = HeldPoll(self.held, call, group, count, self._clock.monotonic() + timeout_s, forwarded)
        self.held.hold(poll)
        waiting = self._kept.pop(group, None)
        if waiting is not None:
            poll.answer(waiting[1])
            return
        self.serve(group)
        if timeout_s <= 0 and not poll.asking:
            poll.answer(())

    def serve(self, group: str) -> None:
        """Give those who wait what there is."""
        for owned in self._owned():
            while owned.held.core.offered(group) and (poll := self.held.first(group)) is not None:
                if self._asking >= ASKING_MAX:
                    self._behind[group] = None
                    return
                poll.asking = True
                self._asking += 1
                if not ask(owned.held, owned.deciding, group, poll.count, partial(self._on_checks, poll)):
                    self._asking -= 1
                    poll.asking = False
                    break
                if not (poll.asking or poll.done):
                    break  # it came to nothing at once: at the next look

    def _on_checks(self, poll: HeldPoll, checks: list[Any]) -> None:
        poll.asking = False
        self._asking -= 1
        self._deliver_checks(poll, checks)
        while self._behind and self._asking < ASKING_MAX:
            group = next(iter(self._behind))
            del self._behind[group]
            self.serve(group)

    def _deliver_checks(self, poll: HeldPoll, checks: list[Any]) -> None:
        if not checks:
            if poll.deadline <= self._clock.monotonic():
                poll.answer(())
        elif poll.done:
            self._keep_checks(poll.group, checks)
        else:
            poll.answer(checks)

    def _keep_checks(self, group: str, checks: list[Any]) -> None:
        """Give checks to another poll of the group, or keep them for its next one."""
        poll = self.held.first(group)
        if poll is not None:
            poll.answer(checks)
        elif len(self._kept) < KEPT_GROUPS_MAX and group not in self._kept:
            self._kept[group] = self._clock.monotonic() + KEPT_S, checks
        else:
            self._count_lost(checks)

    def _count_lost(self, checks: list[Any]) -> None:
        """Count checks that found no poll; they are repeated after their interval."""
        for _ in checks:
            self._counts.refused("check: nobody waits")

    def beat(self) -> None:
        """Answer those whose time is up."""
        self.held.expire(self._clock.monotonic())

    def look(self) -> None:
        """Give what has become due, here and elsewhere, and forget what nobody came for."""
        for group in self.held.groups():
            self.serve(group)
        now = self._clock.monotonic()
        for group in [group for group, waiting in self._kept.items() if waiting[0] <= now]:
            self._count_lost(self._kept.pop(group)[1])
        if self.held.groups():
            self._owners.holders().then(self._ask_others)

    def _ask_others(self, holders: Completion[Holders]) -> None:
        if holders.error is not None:
            return
        candidates = [
            (address, group)
            for group in self.held.groups()
            if (poll := self.held.first(group)) is not None and not poll.forwarded
            for address in self._owners.others(holders.value)
            if (address, group) not in self._pending_requests
        ]
        if not candidates:
            return
        self._turn %= len(candidates)
        requests = (candidates[self._turn :] + candidates[: self._turn])[:ASKS_MAX]
        self._turn += len(requests)
        for address, group in requests:
            self._ask_other(address, group)

    def _ask_other(self, address: str, group: str) -> None:
        poll = self.held.first(group)
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
                self._keep_checks(group, list(answer.checks))

        self._owners.call(address, "pollTransactionChecks", request, on_answer)

    def end(self, fault: SendRefusal) -> None:
        """Answer every poll with this fault: the proxy stops."""
        self.held.end(fault)
