"""Quotas: how much of one process an identity may use. Pure; times are arguments.

Requests and bytes are counted in windows of one second, which cost a comparison and an addition for each
call. An identity at the edge of two windows may therefore send twice its quota within a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from ddmq_common.config import rules
from ddmq_common.token_bucket import TokenBucket

WINDOW_S = 1.0
HOUR_S = 3600.0
_RETRY = re.compile(r"\((\w+) in security\.yaml\); retry in (\d+) ms")


@dataclass(frozen=True)
class QuotaEntry:
    """The section `quotas` of an identity or role in conf/security.yaml; for each process. None: the most of
    the identity's roles, else the default. 0: no limit."""

    requests_per_s: int | None = field(default=None, metadata=rules(low=0))
    bytes_per_s: int | None = field(default=None, metadata=rules(low=0))
    connections: int | None = field(default=None, metadata=rules(low=0))
    created_per_hour: int | None = field(default=None, metadata=rules(low=0))
    waiting_calls: int | None = field(default=None, metadata=rules(low=0))
    in_flight: int | None = field(default=None, metadata=rules(low=0))
    open_transactions: int | None = field(default=None, metadata=rules(low=0))
    pending_delays: int | None = field(default=None, metadata=rules(low=0))
    idempotency_keys: int | None = field(default=None, metadata=rules(low=0))
    producers: int | None = field(default=None, metadata=rules(low=0))


class Quotas(NamedTuple):
    """The quotas of one identity. 0: no limit."""

    requests_per_s: int = 50_000
    bytes_per_s: int = 256 << 20
    connections: int = 5_000
    created_per_hour: int = 1_000  # topics and subscriptions
    waiting_calls: int = 5_000  # pulls, fetches and polls that wait
    in_flight: int = 100_000  # messages that pulls have received and not finished
    open_transactions: int = 5_000
    pending_delays: int = 1_000_000
    idempotency_keys: int = 0  # below the share of each sender (backend/idempotency.py)
    producers: int = 0


UNLIMITED = Quotas(*[0] * len(Quotas._fields))
DEFAULTS = Quotas()


class SenderQuota(NamedTuple):
    """Bounds how many idempotency keys and producers of one sender are remembered; 0: no bound of its own."""

    idempotency_keys: int
    producers: int


class OverQuota(str):
    """The sentence about a request above a quota. `quota`: its key. `wait_s`: when to send it again."""

    quota: str
    wait_s: float


def build_over_quota(quota: str, what: str, allowed: int, wait_s: float) -> OverQuota:
    """Build the sentence: what is over the quota, what is allowed, and when to retry."""
    retry = f"retry in {_to_ms(wait_s)} ms"
    text = OverQuota(f"{what}; allowed: {allowed} ({quota} in security.yaml); {retry}")
    text.quota, text.wait_s = quota, wait_s
    return text


def parse_over_quota(text: str) -> OverQuota | None:
    """Return the sentence of `build_over_quota` that a text contains, with its quota and time; None if it
    contains none."""
    match = _RETRY.search(text)
    if match is None:
        return None
    over = OverQuota(text)
    over.quota, over.wait_s = match[1], int(match[2]) / 1_000
    return over


def describe_cause(missing: str) -> str:
    """Return why a request was rejected, without the figures that differ from request to request."""
    return f"over the quota {missing.quota}" if isinstance(missing, OverQuota) else missing


def _to_ms(seconds: float) -> int:
    return max(1, int(seconds * 1_000) + 1)


def combine_quotas(own: QuotaEntry, of_roles: Iterable[QuotaEntry], is_client: bool = True) -> Quotas:
    """Return the quotas of an identity: its own, else the most of one of its roles, else the defaults.
    Administrators and nodes have none by default."""
    entries = list(of_roles)
    values = {}
    for entry in fields(QuotaEntry):
        value = getattr(own, entry.name)
        if value is None:
            stated = [each for role in entries if (each := getattr(role, entry.name)) is not None]
            value = None if not stated else 0 if 0 in stated else max(stated)
        if value is not None:
            values[entry.name] = value
    return (DEFAULTS if is_client else UNLIMITED)._replace(**values)


class UsageFigures(NamedTuple):
    """The usage of one process by an identity. `requests`, `bytes`, `created`: since its start. `rejected`:
    by quota."""

    connections: int
    requests: int
    bytes: int
    created: int
    waiting_calls: int
    in_flight: int
    rejected: dict[str, int]


class Usage:
    """Counts what an identity uses of this process, and compares it with its quotas."""

    __slots__ = (
        "_bytes", "_bytes_before", "_creations", "_requests", "_requests_before", "_window_end",
        "connections", "created", "in_flight", "quotas", "rejected", "waiting_calls",
    )  # fmt: skip

    def __init__(self, quotas: Quotas = UNLIMITED) -> None:
        self.quotas = quotas
        self.connections = self.created = self.waiting_calls = self.in_flight = 0
        self.rejected: dict[str, int] = {}
        self._requests = self._bytes = 0  # of the current window
        self._requests_before = self._bytes_before = 0
        self._window_end = float("-inf")
        self._creations: TokenBucket | None = None

    def use_quotas(self, quotas: Quotas) -> None:
        """Compare with these quotas from now on."""
        if quotas.created_per_hour != self.quotas.created_per_hour:
            self._creations = None
        self.quotas = quotas

    def count_request(self, size: int, now: float) -> OverQuota | None:
        """Count a request of `size` bytes; return why it is over a quota, or None. One that is over does not
        count. A request that is larger than the quota of bytes is accepted once in a window."""
        if now >= self._window_end:
            self._requests_before += self._requests
            self._bytes_before += self._bytes
            self._requests = self._bytes = 0
            self._window_end = now + WINDOW_S
        quotas = self.quotas
        if quotas.requests_per_s and self._requests >= quotas.requests_per_s:
            what = f"{self._requests} requests in this second"
            return self._count_rejection(
                "requests_per_s", what, quotas.requests_per_s, self._window_end - now
            )
        if quotas.bytes_per_s and self._bytes and self._bytes + size > quotas.bytes_per_s:
            what = f"{self._bytes} bytes in this second, and {size} in this request"
            return self._count_rejection("bytes_per_s", what, quotas.bytes_per_s, self._window_end - now)
        self._requests += 1
        self._bytes += size
        return None

    def count_connection(self) -> OverQuota | None:
        """Count one more connection; return why it is over the quota, and is not counted, or None."""
        allowed = self.quotas.connections
        if allowed and self.connections >= allowed:
            return self._count_rejection("connections", f"{self.connections} connections", allowed, WINDOW_S)
        self.connections += 1
        return None

    def count_creation(self, now: float, count: int = 1) -> OverQuota | None:
        """Count topics and subscriptions that a request makes; return why they are over the quota, or None.
        A request for more than a whole quota is accepted after an hour in which nothing was made."""
        allowed = self.quotas.created_per_hour
        if not allowed or not count:
            self.created += count
            return None
        if self._creations is None:
            self._creations = TokenBucket(allowed / HOUR_S, allowed, now)
        wait_s = self._creations.wait_s(count, now)
        if wait_s > 0:
            return self._count_rejection(
                "created_per_hour", "topics and subscriptions made lately", allowed, wait_s
            )
        self._creations.take_tokens(count)
        self.created += count
        return None

    def check_waiting(self) -> OverQuota | None:
        """Return why no further call of the identity may wait, or None."""
        allowed = self.quotas.waiting_calls
        if not allowed or self.waiting_calls < allowed:
            return None
        return self._count_rejection("waiting_calls", f"{self.waiting_calls} calls wait", allowed, WINDOW_S)

    def check_in_flight(self) -> OverQuota | None:
        """Return why the identity may receive no more messages before it finishes some, or None."""
        allowed = self.quotas.in_flight
        if not allowed or self.in_flight < allowed:
            return None
        return self._count_rejection("in_flight", f"{self.in_flight} messages in flight", allowed, WINDOW_S)

    def limit_batch(self, count: int) -> int:
        """Return how many of `count` messages the identity may receive; `check_in_flight` came before."""
        allowed = self.quotas.in_flight
        return min(count, max(allowed - self.in_flight, 1)) if allowed else count

    def reject_share(self, quota: str, what: str, allowed: int) -> OverQuota:
        """Count a rejection by a quota that others than this object compare, and return its sentence."""
        return self._count_rejection(quota, what, allowed, WINDOW_S)

    def _count_rejection(self, quota: str, what: str, allowed: int, wait_s: float) -> OverQuota:
        self.rejected[quota] = self.rejected.get(quota, 0) + 1
        return build_over_quota(quota, what, allowed, wait_s)

    def read_figures(self) -> UsageFigures:
        return UsageFigures(
            self.connections, self._requests_before + self._requests, self._bytes_before + self._bytes,
            self.created, self.waiting_calls, self.in_flight, dict(self.rejected),
        )  # fmt: skip
