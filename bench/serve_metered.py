"""A whole server with its instruments as they are, or without: for what metrics cost.

python -m bench.serve_metered DATA_DIR MODE
    muted    nothing is observed: no histogram, no queue wait, no watch over the event loop, no samples
    live     the instruments, and nobody who looks
    watched  the same with a sample file every second (every 10 s is usual)
Counters count in all of them: a number that is added to costs as much as one that stands for it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddmq.address import ready_line
from ddmq.server.config import SamplesConfig, load_folder, with_flags
from ddmq.server.process import logs
from ddmq.server.process.hub import HubWatch
from ddmq.server.process.server_process import COMPONENTS, ServerProcess
from ddmq.server.process.signals import install_signals
from ddmq_common.metrics.cells import Histogram
from proxy_consumer.runtime import DeliveryMetrics

MODES = ("muted", "live", "watched")


def main() -> None:
    data_dir, mode = Path(sys.argv[1]), sys.argv[2]
    if mode not in MODES:
        raise SystemExit(f"mode is {mode!r}; allowed: {', '.join(MODES)}")
    if mode == "muted":
        mute()
    anywhere = "127.0.0.1:0"
    flags = {"data_dir": data_dir, "producer": anywhere, "consumer": anywhere, "admin": anywhere}
    config = with_flags(load_folder(None), **flags)
    samples = SamplesConfig(enabled=mode == "watched", interval_ms=1_000)
    config = replace(config, serve=replace(config.serve, samples=samples))
    logs.set_up(config.serve.log_level, config.serve.log_format)
    process = ServerProcess(config, COMPONENTS)
    process.start()
    install_signals(process)
    print(ready_line(process.addresses, config.serve.data_dir), flush=True)
    process.run_until_stopped()


def mute() -> None:
    """Take every instrument out that this process would use."""
    instruments: list[tuple[Any, str]] = [
        (Histogram, "observe"), (DeliveryMetrics, "note"), (HubWatch, "start"),
    ]  # fmt: skip
    for where, name in instruments:
        setattr(where, name, _nothing)


def _nothing(*_: object) -> None:
    pass


if __name__ == "__main__":
    main()
