"""A system that runs beside ours in a benchmark: started on one core, its processor time, gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, TypeVar

from bench.harness import SERVER_CORE
from bench.servers import scratch

START_S = 120.0
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
SESSION, USER, SYSTEM = 3, 11, 12  # in /proc/PID/stat, counted behind the program's name


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def launch(command: list[str], log: Path, core: int, **environment: str) -> subprocess.Popen[bytes]:
    """A server on one core, in a session of its own."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log.open("a"),
        stderr=subprocess.STDOUT,
        env=os.environ | environment,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until somebody listens. Raises AssertionError when the process ended or nobody did: it is killed."""
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    how = "ended" if process.poll() is not None else f"does not listen on port {port} after {START_S:.0f} s"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"{process.args!r} {how}; its log ends with: {log.read_text()[-2_000:]}")


class System(ABC):
    """`program` is looked for on the path; `install` says how to get it where it is not there."""

    name: ClassVar[str]
    program: ClassVar[str] = ""
    install: ClassVar[str] = ""
    asks_version: ClassVar[tuple[str, ...]] = ()  # a command, and what it prints first is the version

    def __init__(self, folder: Path) -> None:
        """Start it, with its files in a folder of its own in `folder`."""
        self.folder = folder / type(self).__name__
        self.folder.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """How to install what it needs and is not there; "": nothing."""
        return "" if not cls.program or shutil.which(cls.program, path=PATH) else cls.install

    @classmethod
    def version(cls) -> str:
        """As the program itself says it."""
        if not cls.asks_version:
            return ""
        program = shutil.which(cls.asks_version[0], path=PATH) or cls.asks_version[0]
        result = subprocess.run([program, *cls.asks_version[1:]], capture_output=True, text=True, check=False)
        return (result.stdout.strip() or result.stderr.strip()).partition("\n")[0]

    def sessions(self) -> set[int]:
        """Of the processes whose time counts."""
        return {self.processes[0].pid}

    def cpu_us(self, act: Callable[[], int]) -> float:
        """Microseconds of its processor time for each of the `act()` things done, to 10 ms in all."""
        before = _cpu_seconds(self.sessions())
        count = act()
        return (_cpu_seconds(self.sessions()) - before) / max(count, 1) * 1e6

    def stop(self) -> None:
        """End it."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Server(System):
    """A program that listens on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.address = ("127.0.0.1", self.port)
        log = self.folder / "log"
        self.processes.append(launch(self.command(), log, SERVER_CORE, **self.environment()))
        await_port(self.port, self.processes[-1], log)

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it, durable, on its port, with its files in its folder."""

    def environment(self) -> dict[str, str]:
        """What it is told beside that."""
        return {}


Kind = TypeVar("Kind", bound=System)


@contextmanager
def started(kinds: Sequence[type[Kind]]) -> Iterator[list[Kind]]:
    """Those of them that are installed; says which are left out, and how to get them."""
    running: list[Kind] = []
    with tempfile.TemporaryDirectory(prefix="peers-", dir=scratch()) as name:
        try:
            for kind in kinds:
                missing = kind.missing()
                if missing:
                    print(f"   left out: {kind.name}: {missing}")
                else:
                    running.append(kind(Path(name)))
            yield running
        finally:
            for one in running:
                one.stop()


def _cpu_seconds(sessions: set[int]) -> float:
    """User and system time of all processes of these sessions."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[SESSION]) in sessions:
                ticks += int(fields[USER]) + int(fields[SYSTEM])
    return ticks / os.sysconf("SC_CLK_TCK")
