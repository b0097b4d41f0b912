"""T27: the admin API over a large installation: first pages of lists, and an operation under T1's load.

10,000 topics and groups, 100,000 blocked keys, a million dead letters, 10 million delays (or `--pending N`).
A page is the first of a list, requested on a new connection after a pause, so that the limit of the processor
time for one address does not count. A histogram has up to 200 steps. Floor of both: GET /health. An operation
resends 100,000 dead letters, once alone and once while T1's load runs; floor: the same load without it.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import scale_data, t01_send_sync
from bench.delay_rig import PENDING, PENDING_TOPIC
from bench.groups import admin
from bench.harness import CLIENT_CORE, SERVER_CORE, Series, pin, run, sized
from bench.scale_data import CLASSES, KEYED, LETTER_GROUP
from bench.servers import Running, start_ddmq
from ddmq_client import Consumer

TOPICS = sized(9_900, 50)  # with those of the others below topics_max
LETTERS = sized(1_000_000, 2_000)
KEYS = sized(100_000, 500)
REQUESTS = sized(15, 2)
PAUSE_S = sized(0.3, 0.0)  # after which an address has its credit of processor time again
LOAD_CALLS = sized(300_000, 2_000)
BODY = 1024
FAILING_S = 1_200.0
OPERATION_S = 600.0
FLOOR = "GET /health"
REACH_PAGE = "≤ 50 ms"
REACH_HISTOGRAM = "≤ 20 ms"
MAY_BE_EMPTY = ("/transactions", "/operations", "/findings", "/changes", "/retries")
PAGES = {
    "topics": "/topics?form=2&count=50",
    "topics with a text": "/topics?form=2&count=50&text=9",
    "groups": "/groups?form=2&count=50",
    "lag": "/lag?form=2&count=50",
    "keys": "/keys?form=2&count=50",
    "keys with a text": "/keys?form=2&count=50&text=-9",
    "keys of a group": f"/groups/{KEYED}/keys?form=2&count=50",
    "groups with dead letters": "/dlq?form=2&count=50",
    "dead letters, oldest": f"/dlq/{LETTER_GROUP}?form=2&count=50",
    "dead letters, newest": f"/dlq/{LETTER_GROUP}?form=2&count=50&sort=-offset",
    "dead letters with a text": f"/dlq/{LETTER_GROUP}?form=2&count=50&text=customer",
    "delays": "/delay",
    "delayed messages": "/delay/messages?form=2&count=50",
    "delayed messages of a topic": f"/delay/messages?form=2&topic={PENDING_TOPIC}&count=50",
    "transactions": "/transactions?form=2&count=50",
    "operations": "/operations?form=2&count=50",
    "changes": "/changes?form=2&count=50",
    "clients": "/clients?form=2&count=50",
    "processes": "/processes?form=2&count=50",
    "retries": f"/retries?form=2&group={KEYED}&count=50",
    "findings": "/findings?form=2",
    "snapshot": "/snapshot",
}
HISTOGRAMS = {
    "histogram of delays": "/delay/histogram",
    "histogram of the delays of a topic": f"/delay/histogram?topic={PENDING_TOPIC}",
}


def measure_page(server: Running, target: str) -> dict[str, float]:
    """Milliseconds from the request to the whole answer; and of the server's processor time meanwhile."""
    times, costs = [], []
    for _ in range(REQUESTS):
        time.sleep(PAUSE_S)
        began, spent = time.perf_counter(), server.cpu_seconds()
        connection = http.client.HTTPConnection(*server.addresses["admin"], timeout=60)
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        times.append((time.perf_counter() - began) * 1e3)
        costs.append((server.cpu_seconds() - spent) * 1e3)
        if answer.status != 200 or (b'"items":[]' in body and not target.startswith(MAY_BE_EMPTY)):
            raise AssertionError(f"{target}: {answer.status} {body[:200]!r}")
    cpu_ms = statistics.median(costs)
    return {"ms": statistics.median(times), "max_ms": max(times), "cpu_ms": cpu_ms, "kib": len(body) / 1024}


@contextmanager
def blocked_keys(server: Running) -> Iterator[None]:
    """Fail the first message of every key, and go on pulling, so that the proxy holds the queues."""
    host, port = server.addresses["consumer"]
    give_up = time.monotonic() + FAILING_S
    stopped = threading.Event()
    with Consumer(f"{host}:{port}", KEYED, [KEYED], linger_ms=1_000, max_batch=500) as consumer:
        failed = 0
        while failed < KEYS:
            for message in consumer.pull(500, timeout_ms=1_000):
                message.fail(reason=f"ValueError: customer {message.key} has no address")
                failed += 1
            if time.monotonic() > give_up:
                raise AssertionError(f"{failed} of {KEYS} keys failed in {FAILING_S:g} s")

        def pull_nothing() -> None:
            while not stopped.is_set():
                if consumer.pull(1, timeout_ms=1_000):
                    raise AssertionError("a message was delivered although its key is blocked")

        thread = threading.Thread(target=pull_nothing)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


class Resends:
    """Operations on dead letters: each on those of another error class."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._classes = iter(range(CLASSES))
        self.planned_s = 0.0

    def plan(self) -> dict[str, Any]:
        """The first class that no run has resent yet."""
        for error_class in self._classes:
            chosen = {"group": LETTER_GROUP, "error": f"Error{error_class}"}
            body = {"kind": "dead_letters", "action": "resend", "filter": chosen}
            began = time.perf_counter()
            plan: dict[str, Any] = admin(self._server, "POST", "/operations", body)
            self.planned_s = time.perf_counter() - began
            if plan["counted"]:
                return plan
        raise SystemExit("all dead letters were resent; delete the folder of the pending messages")

    def start(self, plan: dict[str, Any]) -> None:
        admin(self._server, "POST", f"/operations/{plan['id']}/start", {"token": plan["token"]})

    def wait(self, plan: dict[str, Any]) -> dict[str, float]:
        """How many a second were resent; raises if not all that the plan counted were."""
        give_up = time.monotonic() + OPERATION_S
        while True:
            row = admin(self._server, "GET", f"/operations/{plan['id']}")
            if row["state"] not in ("running", "planned"):
                break
            if time.monotonic() > give_up:
                raise AssertionError(f"not done: {row}")
            time.sleep(0.1)
        if row["state"] != "done" or row["skipped"] or row["changed"] < LETTERS // CLASSES:
            raise AssertionError(f"not all were resent: {row}")
        seconds = (row["ended_ms"] - row["started_ms"]) / 1e3
        return {"per_s": row["changed"] / max(seconds, 1e-3), "plan_s": self.planned_s}


def resend(server: Running, resends: Resends) -> dict[str, float]:
    plan = resends.plan()
    resends.start(plan)
    return resends.wait(plan)


def send(server: Running) -> dict[str, float]:
    """T1's load, p99 first."""
    figures = t01_send_sync.measure(server, BODY, LOAD_CALLS)
    return {"p99_ms": figures.pop("p99_ms")} | figures


def send_meanwhile(server: Running, resends: Resends) -> dict[str, float]:
    """The same while an operation resends."""
    plan = resends.plan()
    with watching(resends, plan) as outcome:
        figures = send(server)
    return figures | {f"resent_{name}": value for name, value in outcome.items()}


@contextmanager
def watching(resends: Resends, plan: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Start an operation; its figures are known when it has ended."""
    outcome: dict[str, float] = {}
    resends.start(plan)
    thread = threading.Thread(target=lambda: outcome.update(resends.wait(plan)))
    thread.start()
    try:
        yield outcome
    finally:
        thread.join()


def series(server: Running) -> list[Series]:
    resends = Resends(server)
    pages = [
        Series(f"first page: {name}", partial(measure_page, server, target), FLOOR, REACH_PAGE)
        for name, target in PAGES.items()
    ]
    histograms = [
        Series(name, partial(measure_page, server, target), FLOOR, REACH_HISTOGRAM)
        for name, target in HISTOGRAMS.items()
    ]
    return [
        Series(FLOOR, partial(measure_page, server, "/health")),
        *pages,
        *histograms,
        Series("resend", partial(resend, server, resends), None, "≥ 5,000/s"),
        Series("sendSync", partial(send, server)),
        Series(
            "sendSync while an operation resends", partial(send_meanwhile, server, resends), "sendSync",
            "p99 ≤ 1.2 × that without it",
        ),
    ]  # fmt: skip


def main() -> None:
    data: Path = scale_data.prepare(PENDING, TOPICS, LETTERS, KEYS)
    with ExitStack() as stack:
        server = stack.enter_context(start_ddmq(data, {SERVER_CORE}))
        pin(CLIENT_CORE)
        t01_send_sync.measure(server, 128, sized(2_000, 200))
        stack.enter_context(blocked_keys(server))
        facts = {"topics": TOPICS, "letters": LETTERS, "keys": KEYS, "pending": PENDING}
        run("t27_large", __doc__ or "", series(server), **facts)


if __name__ == "__main__":
    main()
