"""The metrics of this process, and the answers of the other processes of the server.

MetricsPage makes the page of metrics. An expensive page is reused for a while, so that scrapers cost little.

OtherProcesses sends a request to the admin ports of the other processes of `ddmq serve --processes`. The
process that started them sends their addresses line by line: `part producer 127.0.0.1:9913` to the process
that adds up the answers, `proxy producer 127.0.0.1:9913` to the one without a proxy.
"""

from __future__ import annotations

import http.client
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import gevent
import msgspec
from gevent import socket
from gevent.lock import BoundedSemaphore

from ddmq.address import HostPort, parse
from ddmq.server.http.oversight import ON_BEHALF
from ddmq.server.http.pace import yield_if_long
from ddmq.server.http.routing import FORWARDED, Text
from ddmq_common.clock import Clock
from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.registry import ANSWERS_S, Registry
from ddmq_common.security.callers import Caller
from ddmq_common.security.connecting import check_channel, secure_connection

PAGE_CHEAP_S = 0.05  # processor time; a page that takes less is made anew each time
PAGE_RESTS = 10  # others after so many times what they took
PAGE_CACHED_MAX_S = 10.0  # at most
ANSWERS_WAIT_S = 1.0  # for all of them together
PART, PROXY = "part", "proxy"  # the kinds of lines that name an admin address
FIGURES = ("value", "count", "mean", "p50", "p99", "max")
Counters = dict[str, list[dict[str, Any]]]  # as Registry.snapshot gives them
log = logging.getLogger("ddmq.server")


class MetricsPage:
    """The Prometheus page, cached. One greenlet at a time renders it."""

    def __init__(self, metrics: Registry, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._render_lock = BoundedSemaphore()
        self._page, self._valid_until = Text("text/plain", b""), -math.inf

    def text(self) -> Text:
        """Return the page, rendered now or at most PAGE_CACHED_MAX_S ago."""
        with self._render_lock:
            if self._valid_until <= self._clock.monotonic():
                start = time.thread_time()
                self._metrics.run_collectors()
                spent = time.thread_time() - start
                gevent.sleep(ANSWERS_S)
                payload, more = self._render_page()
                self._page = Text("text/plain; version=0.0.4", payload)
                self._valid_until = self._clock.monotonic() + _caching_s(spent + more)
            return self._page

    def _render_page(self) -> tuple[bytes, float]:
        """Render the page; return it and the processor time it took. Other greenlets run between its
        chunks."""
        chunks, spent, start = [], 0.0, time.thread_time()
        for chunk in self._metrics.exposition_chunks():
            chunks.append(chunk)
            spent += time.thread_time() - start
            yield_if_long()
            start = time.thread_time()
        return b"".join(chunks), spent


def _caching_s(spent_s: float) -> float:
    return 0.0 if spent_s < PAGE_CHEAP_S else min(spent_s * PAGE_RESTS, PAGE_CACHED_MAX_S)


class OtherAnswers(NamedTuple):
    """The answers of the other processes, and the admin addresses of those that did not answer within
    ANSWERS_WAIT_S."""

    answers: list[dict[str, Any]]
    silent: dict[str, str]


class OtherProcesses:
    """The admin addresses of the other processes of the server; empty until a line names one. `read_token`:
    returns the token with which this process logs in there; b"": it does not log in."""

    def __init__(self, read_token: Callable[[], bytes] = bytes) -> None:
        self.read_token = read_token
        self._addresses: dict[str, HostPort] = {}
        self._proxies: dict[str, HostPort] = {}

    def record_address(self, line: str) -> None:
        """Record the admin address that a line `part NAME ADDRESS` or `proxy NAME ADDRESS` names."""
        kind, name, address = line.split()
        addresses = self._proxies if kind == PROXY else self._addresses
        addresses[name] = parse(address)

    @property
    def addresses(self) -> Mapping[str, HostPort]:
        """Return the admin addresses of the processes whose answers are added to this one's, by name."""
        return self._addresses

    def list_proxies(self) -> list[str]:
        """Return the admin addresses of the processes with a producer proxy, as far as lines name them."""
        return [str(address) for address in self._proxies.values()]

    def fetch_answers(
        self, path: str, *keys: str, query: Mapping[str, str] = MappingProxyType({})
    ) -> OtherAnswers:
        """Request `path` from all other processes, each about itself alone. An answer without one of the
        `keys` counts as none."""
        return fetch_answers(self._addresses, path, *keys, query=query, token=self.read_token())


def fetch_answers(
    addresses: Mapping[str, HostPort],
    path: str,
    *keys: str,
    query: Mapping[str, str] = MappingProxyType({}),
    token: bytes = b"",
    caller: Caller | None = None,
    wait_s: float = ANSWERS_WAIT_S,
) -> OtherAnswers:
    """Request `path` from the processes at all `addresses`, each about itself alone. An answer without one of
    the `keys` counts as none. `token`: of this process; `caller`: for whom it asks, None for itself.
    `wait_s`: for all answers together."""
    target = f"{path}?{urlencode({**query, FORWARDED: '1'})}"
    headers = {"Authorization": f"Bearer {token.decode()}"} if token else {}
    if caller is not None:
        headers[ON_BEHALF] = caller.name
    requests = {
        name: gevent.spawn(_fetch_answer, address, target, keys, headers)
        for name, address in addresses.items()
    }
    gevent.joinall(list(requests.values()), timeout=wait_s)
    answers = {name: each.value for name, each in requests.items() if each.value is not None}
    gevent.killall(list(requests.values()), block=False)
    silent = {name: str(addresses[name]) for name in requests.keys() - answers.keys()}
    return OtherAnswers(list(answers.values()), silent)


def component_line(name: str, address: HostPort, kind: str = PART) -> str:
    """Return the line that reports the admin address of one component of the server, `part NAME HOST:PORT`.
    `OtherProcesses.record_address` parses it."""
    return f"{kind} {name} {address}\n"


def merge_counters(*snapshots: Counters) -> Counters:
    """Merge the counters of several processes.

    Counters and counts of histograms are added, means are weighted by count. Of gauges, percentiles and
    maxima the highest is taken, because percentiles over several processes cannot be computed from theirs.
    """
    merged_rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for snapshot in snapshots:
        for name, rows in snapshot.items():
            merged = merged_rows.setdefault(name, {})
            for row in rows:
                labels = tuple(value for key, value in row.items() if key not in FIGURES)
                before = merged.get(labels)
                merged[labels] = row if before is None else row | _merge_rows(name, before, row)
    return {name: list(rows.values()) for name, rows in merged_rows.items()}


def _merge_rows(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    if "value" in one:
        pair = (one["value"], other["value"])
        return {"value": sum(pair) if CATALOGUE[name].kind == "counter" else max(pair)}
    count = one["count"] + other["count"]
    total = one["count"] * one["mean"] + other["count"] * other["mean"]
    highest = {key: max(one[key], other[key]) for key in ("p50", "p99", "max")}
    return {"count": count, "mean": total / count if count else 0.0} | highest


def _fetch_answer(
    address: HostPort, target: str, keys: Sequence[str], headers: Mapping[str, str]
) -> dict[str, Any] | None:
    """Fetch `target` from the process at `address`; None without a valid answer."""
    connection = http.client.HTTPConnection(*address)
    try:
        raw = socket.create_connection(tuple(address), ANSWERS_WAIT_S)
        connection.sock = secure_connection(raw, "admin", address.host)
        if "Authorization" in headers:
            check_channel(connection.sock)
        connection.request("GET", target, headers=headers)
        answer = msgspec.json.decode(connection.getresponse().read(), type=dict[str, Any])
        return answer if answer.keys() >= set(keys) else None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
        log.debug("no answer of another process", extra={"admin": str(address), "why": str(error)})
        return None
    finally:
        connection.close()
