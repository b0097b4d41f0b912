"""T24: what the compiled modules bring: the loads of T1 to T4 at a server with them, and at one without.

The first figure is the server's processor time a message. Floor: the same sources, interpreted
(DDMQ_COMPILED=0). Says so where nothing was compiled for these sources; `make setup` does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench import groups, t01_send_sync, t02_batch, t03_pull, t04_latency
from bench.harness import CLIENT_CORE, Series, pin, run
from bench.servers import Running, ddmq
from ddmq_common.compiled import STATE, SWITCH

BODY = 1024
LOADS: dict[str, Callable[[Running], dict[str, float]]] = {
    "sendSync": lambda running: t01_send_sync.measure(running, BODY),
    "sendBatch": t02_batch.measure,
    "pull and ack": lambda running: t03_pull.measure(running, BODY),
    "send to delivered": t04_latency.measure,
}
REACH = {"sendSync": "≤ 0.75 of interpreted"}


@contextmanager
def server(interpreted: bool) -> Iterator[Running]:
    """A server over a fresh directory, its topics and groups made."""
    with ExitStack() as stack:
        if interpreted:
            os.environ[SWITCH] = "0"
        try:
            running = stack.enter_context(ddmq())
        finally:
            os.environ.pop(SWITCH, None)
        groups.send_once(running, b"batch")
        groups.establish(running, b"pull-%d" % BODY, t03_pull.GROUP % BODY)
        groups.establish(running, t04_latency.TOPIC, t04_latency.GROUP)
        t04_latency.OpenLoop(running, 500).run()
        yield running


def series(without: Running, compiled: Running) -> list[Series]:
    """Of each load: interpreted, which is the floor, then compiled."""
    all_series = []
    for what, load in LOADS.items():
        floor = Series(f"{what}, interpreted", _round(without, load))
        all_series += [
            floor,
            Series(f"{what}, compiled", _round(compiled, load), floor.name, REACH.get(what, "")),
        ]
    return all_series


def _round(running: Running, load: Callable[[Running], dict[str, float]]) -> Callable[[], dict[str, float]]:
    def measured() -> dict[str, float]:
        figures = load(running)
        return {"cpu_us": figures.pop("cpu_us")} | figures

    return measured


def main() -> None:
    if not STATE.modules:
        print(f"T24: NOT MEASURED: {STATE}")
        return
    pin(CLIENT_CORE)
    with server(interpreted=True) as without, server(interpreted=False) as compiled:
        run("t24_compiled", __doc__ or "", series(without, compiled))


if __name__ == "__main__":
    main()
