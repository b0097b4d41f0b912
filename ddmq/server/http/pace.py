"""Limits the processor time of the admin API, so that the event loop is free for clients of the proxies.

Each address has a debt: the processor time that its requests took, over all of its connections, less SHARE_S
for each second that passes. If the debt exceeds DEBT_S, the address waits before a request is answered and
also during an answer: a long listing calls `yield_if_long`, so it holds the loop only for short slices. Only
one listing of an address is made at a time. A person or a scraper has so small a debt that it never waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import gevent
from gevent.lock import BoundedSemaphore

from ddmq_common.errors import TryLaterError
from ddmq_rpc.addresses import address_of

SLICE_S = 0.001
SHARE_S = 0.2  # of each second
DEBT_S = 0.1
MORE_S = 0.01  # in the middle of an answer, so that it is not all waiting
LISTING_WAIT_S = 10.0  # for the listings before this one
YIELD_S = 1e-4  # long enough for what has come in to be seen
T = TypeVar("T")


class Account:
    """The processor time that the requests of one address have used and not paid off by waiting. `clock`:
    monotonic seconds."""

    def __init__(self, clock: Any = time.monotonic) -> None:
        self.connections = 0
        self._clock = clock
        self._probes: Account | None = None
        self._debt_s, self._at = 0.0, clock()
        self._listing = BoundedSemaphore()

    @property
    def debt_s(self) -> float:
        """The processor time in seconds that this address owes now. It falls by SHARE_S each second."""
        now = self._clock()
        self._debt_s, self._at = max(0.0, self._debt_s - (now - self._at) * SHARE_S), now
        return self._debt_s

    @property
    def probes(self) -> Account:
        """The separate account of this address for /health and /ready, so that they never wait for other
        requests."""
        if self._probes is None:
            self._probes = Account(self._clock)
        return self._probes

    def charge(self, seconds: float) -> None:
        """Add used processor time to the debt."""
        self._debt_s = self.debt_s + seconds

    def pause(self) -> None:
        """Wait until the debt is at most DEBT_S."""
        while (excess_s := self.debt_s - DEBT_S) > 0:
            gevent.sleep(excess_s / SHARE_S)

    def rest_if_long(self, spent_s: float) -> None:
        """Let other greenlets run if a greenlet has used up its time slice. `spent_s`: what it has used since
        it was resumed."""
        if spent_s > SLICE_S:
            gevent.sleep(YIELD_S)

    @contextmanager
    def listing_slot(self) -> Iterator[None]:
        """Wait for the earlier listings of this address, and hold the right to make a listing in the
        block."""
        if not self._listing.acquire(timeout=LISTING_WAIT_S):
            raise TryLaterError("too many answers are being made for this address; try again")
        try:
            self.pause()
            yield
        finally:
            self._listing.release()


class Accounts:
    """The accounts of all addresses that are connected or have a debt."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def connected(self, host: str) -> Iterator[Account]:
        """Yield the account of a connection's address, while the connection lasts."""
        address = address_of(host)
        account = self._accounts.get(address)
        if account is None:
            self._accounts = {
                name: each for name, each in self._accounts.items() if each.connections or each.debt_s
            }
            account = self._accounts[address] = Account()
        account.connections += 1
        try:
            yield account
        finally:
            account.connections -= 1

    def __len__(self) -> int:
        return len(self._accounts)


class PacedGreenlet(gevent.Greenlet):  # type: ignore[misc]  # gevent has no types
    """A greenlet that charges `account` with the processor time it uses, measured from each switch to it
    until it yields."""

    account: Account | None = None
    since = 0.0

    def switch(self, *arguments: Any) -> Any:
        """Resume the greenlet, and charge `account` with the processor time until it yields."""
        return self._run_charged(super().switch, *arguments)

    def throw(self, *arguments: Any) -> Any:
        """Resume the greenlet with an exception, and charge `account` as `switch` does."""
        return self._run_charged(super().throw, *arguments)

    def _run_charged(self, go: Any, *arguments: Any) -> Any:
        self.since = time.thread_time()
        try:
            return go(*arguments)
        finally:
            if self.account is not None:
                self.account.charge(time.thread_time() - self.since)


def yield_if_long(more_s: float = 0.0) -> None:
    """Let other greenlets run if this one has used up its time slice. Code that makes a long answer calls
    this between its steps; outside of a request, it does nothing.

    `more_s`: processor time that other threads used for this answer.
    """
    current = gevent.getcurrent()
    if not isinstance(current, PacedGreenlet) or current.account is None:
        return
    account = current.account
    account.charge(more_s)
    account.rest_if_long(time.thread_time() - current.since)
    if account.debt_s > DEBT_S + MORE_S:
        account.pause()


def paced(items: Iterable[T], step: int = 1) -> Iterator[T]:
    """Yield the items, and let other greenlets run between them if this one has run for long.

    `step`: how many items of little work are yielded between two looks at the clock.
    """
    for number, each in enumerate(items, 1):
        yield each
        if not number % step:
            yield_if_long()
