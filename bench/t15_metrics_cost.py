"""T15: what metrics cost: the loads of T1 and T3 with instruments muted, live, and looked at every second.

The first figure is the server's processor time a message, because a cost of a few percent is less than what
the rate varies by itself. Floor: the same server with every instrument taken out (bench/serve_metered.py).
"Watched" is scraped by Prometheus' path and writes a sample file, both every second; 15 s and 10 s are usual.
"""

from __future__ import annotations

import http.client
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

from bench import groups, t01_send_sync, t03_pull
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.serve_metered import MODES
from bench.servers import Running, scratch, start

BODY = 1024
CALLS = sized(40_000, 1_000)
SCRAPE_S = 1.0
REACH = "≤ 1.03 of muted"


@contextmanager
def server(mode: str) -> Iterator[Running]:
    """A server in this mode over a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch()) as folder:
        running = start(["bench.serve_metered", f"{folder}/data", mode])
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def scraped(running: Running, enabled: bool) -> Iterator[list[int]]:
    """Ask for /metrics every SCRAPE_S meanwhile, first at once; the sizes of the answers."""
    sizes: list[int] = []
    stopped = Event()

    def scrape() -> None:
        while not stopped.is_set():
            connection = http.client.HTTPConnection(*running.addresses["admin"], timeout=30)
            connection.request("GET", "/metrics")
            sizes.append(len(connection.getresponse().read()))
            connection.close()
            stopped.wait(SCRAPE_S)

    thread = Thread(target=scrape)
    if enabled:
        thread.start()
    try:
        yield sizes
    finally:
        stopped.set()
        if enabled:
            thread.join()


def measure(running: Running, mode: str, load: Callable[[Running], dict[str, float]]) -> dict[str, float]:
    """One round, processor time first."""
    with scraped(running, mode == "watched") as sizes:
        figures = load(running)
    if (mode == "watched") != bool(sizes):
        raise AssertionError(f"{mode}: {len(sizes)} answers of /metrics")
    return {"cpu_us": figures.pop("cpu_us")} | figures


def send(running: Running) -> dict[str, float]:
    """T1's load."""
    return t01_send_sync.measure(running, BODY, CALLS)


def pull(running: Running) -> dict[str, float]:
    """T3's load, unordered."""
    return t03_pull.measure(running, BODY)


def series(servers: dict[str, Running]) -> list[Series]:
    """Of each load: muted, which is the floor, then live and watched."""
    all_series = []
    for what, load in (("sendSync", send), ("pull and ack", pull)):
        for mode, running in servers.items():
            floor, reach = (None, "") if mode == "muted" else (f"{what}, muted", REACH)
            all_series.append(Series(f"{what}, {mode}", _round(running, mode, load), floor, reach))
    return all_series


def _round(
    running: Running, mode: str, load: Callable[[Running], dict[str, float]]
) -> Callable[[], dict[str, float]]:
    return lambda: measure(running, mode, load)


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        servers = {mode: stack.enter_context(server(mode)) for mode in MODES}
        for running in servers.values():
            groups.establish(running, b"pull-%d" % BODY, t03_pull.GROUP % BODY)
            t01_send_sync.measure(running, 128, sized(2_000, 200))
        run("t15_metrics_cost", __doc__ or "", series(servers), calls=CALLS, messages=t03_pull.MESSAGES)


if __name__ == "__main__":
    main()
