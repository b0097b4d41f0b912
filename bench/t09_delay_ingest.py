"""T9: sendDelaySync, one add a call, fsync before the answer, 64 connections, server on one core.

Floor: sendSync at the same server in the same run. The delay service is a process of its own on the other
core, beside the load. Every add has its own uuid; in the end all of them wait in the delay store.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench import frames, load
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, scratch, start
from bench.t01_send_sync import CONNECTIONS, driven
from ddmq_common.delivery import zigzag

CALLS = sized(30_000, 1_000)
BODY = 1024
WAIT_S = 60.0
REACH = "≥ 0.85 of sendSync"


def delay_add(body: bytes, due_s: int, uuid: bytes, timeout_ms: int = 5_000) -> bytes:
    """sendDelaySync of an add of type 2, as the Java client writes it."""
    message = (
        b"\x18" + frames.text(b"later") + b"\x28" + frames.text(body) + b"\x18" + frames.text(b"tag")
        + b"\x15" + zigzag(1) + b"\x16" + zigzag(due_s) + b"\x15" + zigzag(2)
        + b"\x16\x00\x16\x00\x16\x00" + b"\x18" + frames.text(uuid)
        + b"\x28" + frames.text(b"bench") + b"\x00"
    )  # fmt: skip
    return frames.call("sendDelaySync", b"\x1c" + message + b"\x16" + zigzag(timeout_ms) + b"\x00")


class Adds:
    """The requests: one frame, cut around its uuid, which counts up over all rounds."""

    def __init__(self) -> None:
        mark = b"?" * 36
        frame = delay_add(bytes(BODY), int(time.time()) + 3_600, mark)
        self._head, _, self._tail = frame.partition(mark)
        self._number = 0

    def frame(self) -> bytes:
        self._number += 1
        return b"%b00000000-0000-0000-0000-%012x%b" % (self._head, self._number, self._tail)

    def requests(self, calls: int) -> load.Next:
        remaining = calls

        def next_frame(index: int, reply: bytes | None) -> bytes | None:
            nonlocal remaining
            if reply is not None and b"\x02OK" not in reply:
                raise AssertionError(f"not stored: {reply!r}")
            remaining -= 1
            return self.frame() if remaining >= 0 else None

        return next_frame


def pending(service: Running) -> int:
    """How many messages the delay service holds."""
    connection = http.client.HTTPConnection(*service.addresses["admin"], timeout=10)
    connection.request("GET", "/delay")
    status: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return status["pending"]


def measure_adds(server: Running, service: Running, adds: Adds, calls: int = CALLS) -> dict[str, float]:
    """One round; `to_store_per_s`: until the store had all; `service_cpu_us`: what each cost there."""
    before, began, spent = pending(service), time.perf_counter(), service.cpu_seconds()
    figures = driven(server, adds.requests(calls), calls)
    while pending(service) - before != calls:
        if time.perf_counter() - began > WAIT_S:
            raise AssertionError(f"{calls} answered OK, {pending(service) - before} in the store")
        time.sleep(0.02)
    figures["to_store_per_s"] = calls / (time.perf_counter() - began)
    return figures | {"service_cpu_us": (service.cpu_seconds() - spent) / calls * 1e6}


def measure_sends(server: Running) -> dict[str, float]:
    requests = [frames.send_sync(b"now", b"key-%d" % n, bytes(BODY), n) for n in range(CONNECTIONS)]
    return driven(server, load.answered_ok(requests, CALLS), CALLS)


def alone(service: str, data_dir: Path, *flags: str, cores: set[int] | None = None) -> Running:
    """Start one service as its own process."""
    return start(["ddmq", service, "--data-dir", str(data_dir), "--admin", "127.0.0.1:0", *flags], cores)


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=scratch())))
        server = stack.enter_context(alone("producer", folder / "data", "--producer", "127.0.0.1:0"))
        service = stack.enter_context(alone("delay-service", folder / "data", cores={CLIENT_CORE}))
        adds = Adds()
        measure_adds(server, service, adds, sized(2_000, 200))
        every = [
            Series(f"sendSync, {BODY} B", lambda: measure_sends(server)),
            Series(
                f"sendDelaySync, {BODY} B", lambda: measure_adds(server, service, adds),
                f"sendSync, {BODY} B", REACH,
            ),
        ]  # fmt: skip
        run("t09_delay_ingest", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS, body=BODY)


if __name__ == "__main__":
    main()
