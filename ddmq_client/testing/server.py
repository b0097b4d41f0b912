"""A real `ddmq serve` for tests: a process of its own on free ports, over a directory of its own.

It runs with the interpreter of the tests, so the server's distribution must be installed beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from ddmq_client.errors import ClientError

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 20.0
LOG_CHARS = 2_000


def missing_server() -> str:
    """Return a text that explains why a server cannot be started here; "" if it can."""
    if find_spec("ddmq") is None:
        return "the server's distribution is not installed: there is no module `ddmq`"
    return ""


class LocalServer:
    """A ddmq server that a test starts on this machine. Call `start` and `stop`, or use it as a context
    manager.

    folder     for its data and its log
    producers  where producers find it, once it is started: Producer(server.producers)
    consumers  the same for consumers
    admin      HOST:PORT of its admin API
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.producers = self.consumers = self.admin = ""
        self._log = folder / "server.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start the server and wait until it is ready. Raises ClientError with the end of its log if it
        fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "ddmq", "serve", "--data-dir", str(self.folder / "data")]
        for service in ("producer", "consumer", "admin"):
            command += [f"--{service}", "127.0.0.1:0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DDMQ_")}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        addresses = self._read_ready(self._process)
        try:
            self.producers, self.consumers = addresses["producer"], addresses["consumer"]
            self.admin = addresses["admin"]
        except KeyError:
            self.stop()
            text = self._log.read_text(errors="replace")[-LOG_CHARS:]
            raise ClientError(f"`ddmq serve` did not get ready; its log ends with: {text}") from None
        return self

    def _read_ready(self, process: subprocess.Popen[str]) -> dict[str, str]:
        assert process.stdout is not None
        watchdog = threading.Timer(READY_WITHIN_S, process.kill)
        watchdog.start()
        try:
            words = process.stdout.readline().split()
        finally:
            watchdog.cancel()
        pairs = (word.partition("=") for word in words if "=" in word)
        return {name: value for name, _, value in pairs} if words[:1] == ["ready"] else {}

    def stop(self) -> None:
        """Stop it as an operator would, and kill it where that takes too long. May be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
