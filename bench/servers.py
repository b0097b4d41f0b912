"""Starting what is measured: our server, and the servers that give the floors, each its own process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.harness import SERVER_CORE

Target = tuple[str, int]
PROCESS_CPU = 2  # clock_getcpuclockid(3): a process's scheduler clock


@dataclass
class Running:
    """A server process that said it is ready."""

    process: subprocess.Popen[str]
    addresses: dict[str, Target]

    def cpu_seconds(self) -> float:
        """User and system time so far, of all threads, also of those that have ended."""
        return time.clock_gettime(~self.process.pid << 3 | PROCESS_CPU)

    def cpu_us(self, act: Callable[[], int]) -> float:
        """Microseconds of the server's processor time for each of the `act()` things done.

        It hardly changes with what else the machine does, unlike a rate.
        """
        before = self.cpu_seconds()
        count = act()
        return (self.cpu_seconds() - before) / max(count, 1) * 1e6

    def anonymous_bytes(self) -> int:
        """RssAnon."""
        return self.memory()["RssAnon"]

    def memory(self) -> dict[str, int]:
        """RssAnon and RssFile in bytes, as the kernel counts them now."""
        sizes = {"RssAnon": 0, "RssFile": 0}
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in sizes:
                sizes[name] = int(value.split()[0]) * 1024
        return sizes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start(arguments: list[str], cores: Set[int] | None = None) -> Running:
    """`python -m ARGUMENTS`, pinned, up to its `ready name=host:port …` line."""
    chosen = cores or {SERVER_CORE}
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=(scratch() / "servers.log").open("a"),
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("ready"):
        process.kill()
        raise RuntimeError(f"{arguments}: not ready, said {line!r}")
    addresses: dict[str, Target] = {}
    for pair in line.split()[1:]:
        name, _, where = pair.partition("=")
        host, _, port = where.rpartition(":")
        if port.isdecimal():
            addresses[name] = (host, int(port))
    return Running(process, addresses)


def start_ddmq(data_dir: Path, cores: Set[int] | None = None, config: Path | None = None) -> Running:
    """`ddmq serve` on free ports."""
    free = ["--producer", "127.0.0.1:0", "--consumer", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    extra = ["--config", str(config)] if config else []
    return start(["ddmq", "serve", "--data-dir", str(data_dir), *free, *extra], cores)


@contextmanager
def ddmq(cores: Set[int] | None = None, config: Path | None = None) -> Iterator[Running]:
    """A server over a fresh directory, gone afterwards. The directory is on the disk this runs on."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch()) as folder:
        running = start_ddmq(Path(folder) / "data", cores, config)
        try:
            yield running
        finally:
            running.stop()


def scratch() -> Path:
    """A folder on a real disk (not a memory file system); DDMQ_BENCH_DIR chooses another."""
    folder = Path(os.environ.get("DDMQ_BENCH_DIR", Path(__file__).parent / ".scratch"))
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def roomy_scratch(log_bytes: int) -> Iterator[Path]:
    """A folder there, gone at the end; the run ends at once where a log of that size would not fit twice."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        free = shutil.disk_usage(folder).free
        if free < 2 * log_bytes:
            raise SystemExit(f"{folder}: {free} bytes free; {2 * log_bytes} are wanted (DDMQ_BENCH_DIR)")
        yield Path(folder)
