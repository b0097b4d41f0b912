"""A server whose time limits for slow clients are short, and a bystander that must not notice anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.interop.apache_client import Client, done
from tests.scenarios.real_server import RealServer, running, write_config
from tests.service.hostile.attack import WIRES
from tests.support.waits import until

PROMPT_S = 2.0  # on a busy machine; usually it is a few milliseconds
PACE_S = 0.005
RPC = {"frame_read_s": 1.0, "answer_write_s": 1.0, "partial_bytes_max": "4MiB"}


class Bystander:
    """An honest client: sends, pulls, acknowledges, all the time, and knows its slowest call."""

    def __init__(self, server: RealServer) -> None:
        self._server = server
        self._stop = threading.Event()
        self._slowest_s = 0.0
        self.calls = 0
        self._began: float | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            ports = self._server.ports
            with Client(ports["producer"]) as producer, Client(ports["consumer"]) as consumer:
                result = None
                while not self._stop.wait(PACE_S):
                    self._began = time.monotonic()
                    assert producer.send("bystander", b"b" * 100).code == 0
                    self._record_latency()
                    self._began = time.monotonic()
                    answer = consumer.pull("bystander", "bystander", maxLingerTime=20, result=result)
                    self._record_latency()
                    result = done(answer) if answer.messages else None
        except BaseException as error:
            self.failure = error

    def _record_latency(self) -> None:
        assert self._began is not None
        took = time.monotonic() - self._began
        self._slowest_s = max(self._slowest_s, took)
        self._began = None
        self.calls += 1

    def slowest_s(self) -> float:
        """The slowest call so far, one that is still open included."""
        began = self._began
        open_s = 0.0 if began is None else time.monotonic() - began
        return max(self._slowest_s, open_s)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("hostile")
    with running(folder, write_config(folder / "conf", rpc=RPC)) as started:
        for group, name in (("hostile", "quiet"), ("bystander", "bystander")):  # quiet: nobody sends to it
            started.admin("POST", "topics", name, body={"create": True})
            started.admin("POST", "groups", group, body={"topics": [name], "start": "last"})
        yield started


@pytest.fixture(autouse=True)
def bystander(server: RealServer) -> Iterator[Bystander]:
    """In every test: the honest client was answered promptly all the while, and the server lives."""
    honest = Bystander(server)
    try:
        yield honest
        _check(honest)
    finally:
        honest.stop()
    assert server.process is not None
    assert server.process.poll() is None, server.log[-2000:]


def _check(honest: Bystander) -> None:
    until(lambda: honest.calls >= 2 or honest.failure, "a call of the honest client comes to its end")
    assert honest.failure is None, honest.failure
    assert honest.slowest_s() < PROMPT_S


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)
