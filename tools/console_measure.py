"""Measure the console: its first paint, a long list while it scrolls, and what its viewers cost the server.

    python tools/console_measure.py [--seconds 10] [--viewers 100]

Needs playwright and Debian's chromium. Starts a server of its own. Other work on the machine makes all
figures larger, so they are upper bounds.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from playwright.sync_api import sync_playwright

from tests.console.conftest import CHROMIUM, OPTIONS
from tests.console.long_list import KEYS, serve_keys
from tests.console.pages import Console
from tests.console.populated import populate
from tests.scenarios.real_server import RealServer, running

LOADS = 20
ROWS = (0, 50, 1_000)  # at first: none, to see the machine; as many as the console requests; more
SCROLLS = 60
SLOW_FRAME_MS = 50
CHANGES_PERIOD_S = 30.0  # of the first page's list of changes
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
WATCH_FRAMES = """() => {
    window.frames_ms = [];
    let before = performance.now();
    const next = (at) => { window.frames_ms.push(at - before); before = at; requestAnimationFrame(next); };
    requestAnimationFrame(next);
}"""


def measure_first_paint(browser: Any, port: int) -> tuple[list[float], list[float]]:
    """Return the times of the first paint and of the first numbers, in ms, each with an empty cache."""
    paints, numbers = [], []
    for _ in range(LOADS):
        with Console.open(browser, port) as console:
            console.load("")
            console.page.locator(".tile").first.wait_for()
            numbers.append(console.page.evaluate("performance.now()"))
            paints.append(console.page.evaluate(PAINT))
    return paints, numbers


def measure_scrolling(browser: Any, port: int, rows: int) -> list[float]:
    """Return the lengths of all frames while a list of keys is scrolled, in ms."""
    with Console.open(browser, port) as console:
        page = console.page
        serve_keys(page, least=rows, total=KEYS if rows else 0)
        console.goto("keys")
        if rows:
            page.get_by_text("customer-49", exact=True).wait_for()
        page.mouse.move(600, 600)
        page.evaluate(WATCH_FRAMES)
        for _ in range(SCROLLS):
            page.mouse.wheel(0, 400)
            page.wait_for_timeout(16)
        return list(page.evaluate("window.frames_ms"))


@contextmanager
def viewing(port: int, viewers: int) -> Iterator[selectors.DefaultSelector]:
    """Open the streams of so many consoles."""
    with selectors.DefaultSelector() as selector:
        for number in range(viewers):
            stream = socket.create_connection(("127.0.0.1", port))
            stream.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            selector.register(stream, selectors.EVENT_READ, number)
        yield selector
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]


def measure_viewers(server: RealServer, viewers: int, seconds: float) -> tuple[float, int]:
    """Return the share of a core that the server uses while so many consoles watch, and the bytes they get.
    Raises AssertionError if one of them gets nothing."""
    received, silent = 0, set(range(viewers))
    with viewing(server.ports["admin"], viewers) as selector:
        began, used = time.monotonic(), read_cpu_s(server.pid)
        next_list = began
        while time.monotonic() < began + seconds:
            for key, _ in selector.select(0.05):
                received += len(key.fileobj.recv(1 << 16))  # type: ignore[union-attr]
                silent.discard(key.data)
            if viewers and time.monotonic() >= next_list:
                server.request("GET", "/changes?count=5")
                next_list += CHANGES_PERIOD_S / viewers
        assert not silent, f"{len(silent)} of {viewers} viewers got nothing"
        return (read_cpu_s(server.pid) - used) / (time.monotonic() - began), received


def read_cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the viewers watch")
    parser.add_argument("--viewers", type=int, default=100, help="how many consoles are open")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as server, populate(server):
        alone, _ = measure_viewers(server, 0, arguments.seconds)
        watched, received = measure_viewers(server, arguments.viewers, arguments.seconds)
        print(
            f"server: {alone:.2%} of a core without viewers, {watched:.2%} with {arguments.viewers} "
            f"(each got {received / arguments.viewers / arguments.seconds / 1e3:.1f} kB/s)",
            flush=True,
        )
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
            frames = {rows: measure_scrolling(browser, server.ports["admin"], rows) for rows in ROWS}
            paints, numbers = measure_first_paint(browser, server.ports["admin"])
            browser.close()
    print(
        f"first paint: median {statistics.median(paints):.0f} ms of {LOADS} "
        f"({min(paints):.0f} to {max(paints):.0f})"
    )
    print(f"first numbers: median {statistics.median(numbers):.0f} ms")
    for rows, lengths in frames.items():
        slow = sum(length > SLOW_FRAME_MS for length in lengths)
        print(f"{rows:,} of {KEYS:,} keys: {slow} of {len(lengths)} frames longer than {SLOW_FRAME_MS} ms")
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
